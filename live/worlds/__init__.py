"""Additions to a walk's world: events that extend its prompt, the walls of a known map, and a check for a stuck
camera."""
