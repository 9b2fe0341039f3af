"""Additions to a walk's world: the walls of a known map, and checks for a stuck camera and a degrading video."""
