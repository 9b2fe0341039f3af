"""The files of a run: reading of images and videos, writing of frames, and protection of existing files."""
