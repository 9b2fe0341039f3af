"""Additions to a walk's world: the walls of a known map, and a check for a stuck camera."""
