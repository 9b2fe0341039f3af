"""The folder of a walk that is kept."""
