"""The KV cache of a causal model: keys and values of earlier latent frames."""
