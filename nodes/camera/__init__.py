"""Nodes that load, make, convert and draw camera paths for a video."""
