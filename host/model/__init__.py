"""The models in ComfyUI's form: an expert or a causal model as a MODEL, a CLIP, and the VAE."""
