"""The facts about a LoRA file that its tensor shapes do not show: the layer of each tensor, and the scale."""
