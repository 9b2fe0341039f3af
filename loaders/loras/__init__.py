"""The facts about a LoRA file that its tensor shapes do not show: each tensor's layer and role, and the scale."""
