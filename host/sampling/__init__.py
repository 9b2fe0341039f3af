"""Sampling inside ComfyUI: the guider of both experts, the solvers, rollouts of causal models, and walks (steered
videos)."""
