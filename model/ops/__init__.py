"""Operations on tensors that have several implementations: Triton kernels, CUDA kernels and plain torch."""
