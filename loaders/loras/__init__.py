"""LoRA files: their layers' names, and their stated scale."""
