"""CUDA graphs: recording a forward's kernels, testing a recording, and replaying it."""
