"""The files of a run: reading images, writing frames, and protecting existing files."""
