"""The LingBot-World video model: Wan2.2's image-to-video transformer with camera layers in every block."""
