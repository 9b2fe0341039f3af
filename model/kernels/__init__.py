"""The Triton kernels. Modules of this package can only be imported on machines with a GPU and Triton."""
