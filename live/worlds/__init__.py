"""Additions to a world: events, which extend its prompt, and the walls of a known map."""
