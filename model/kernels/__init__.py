"""The Triton kernels, which can only be imported on machines with a GPU and Triton."""
