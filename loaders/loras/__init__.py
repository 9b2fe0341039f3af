"""LoRA files: the layers that their keys name, and the scale that they state."""
