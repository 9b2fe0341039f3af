"""Operations on tensors, each with its kernels."""
