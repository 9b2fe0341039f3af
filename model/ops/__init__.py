"""Operations on tensors that have several implementations: Triton or CUDA kernels, and plain torch."""
