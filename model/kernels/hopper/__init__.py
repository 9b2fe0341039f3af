"""The CUDA kernels for Hopper GPUs, compiled by NVRTC at run time."""
