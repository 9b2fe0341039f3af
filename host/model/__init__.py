"""An expert as ComfyUI's MODEL, with its CLIP and VAE."""
