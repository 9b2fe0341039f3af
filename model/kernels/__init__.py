"""The Triton kernels. Import the modules of this package on GPUs with Triton only."""
