"""The cache of a causal model's keys and values."""
