"""From noise to latent: the base model's steps with its two experts, and a causal model's world, chunk by chunk."""
