"""Keys and values of a causal model."""
