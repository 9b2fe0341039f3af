"""CUDA kernels for Hopper GPUs, compiled by NVRTC."""
