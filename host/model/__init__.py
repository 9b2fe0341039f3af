"""The models in ComfyUI's form: an expert or a causal model as a MODEL, the text encoder as a CLIP, and the VAE."""
