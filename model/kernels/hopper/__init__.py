"""The CUDA kernels for Hopper GPUs (compute capability 9.0), compiled by NVRTC at run time."""
