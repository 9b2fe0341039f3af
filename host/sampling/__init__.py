"""Sampling inside ComfyUI: the guider of both experts, the solvers, rollouts of causal models, and walks (videos that a
user steers while they are generated)."""
