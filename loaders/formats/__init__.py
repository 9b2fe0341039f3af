"""Weights in fewer bits, one file for each family of formats: which tensors belong together, checked from headers."""
