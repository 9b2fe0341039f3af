"""The files of a run: images that are read, frames that are written, and what is there already."""
