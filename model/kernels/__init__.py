"""Triton kernels. Import this package on GPUs with Triton only."""
