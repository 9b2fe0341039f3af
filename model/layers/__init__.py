"""Layers of a transformer block."""
