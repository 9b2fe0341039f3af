"""Checks before a graph runs or samples."""
