"""Triton kernels. Imported on GPUs with Triton only."""
