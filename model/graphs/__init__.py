"""CUDA graphs: recording the kernels of a forward, testing the recorded graphs, and replaying them."""
