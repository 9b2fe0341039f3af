"""Additions to a walk's world: known maps with walls, and checks for a stuck camera and a degrading video."""
