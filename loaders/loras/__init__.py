"""The parts of a LoRA file that its shapes do not show: which layer each tensor belongs to, and the scale."""
