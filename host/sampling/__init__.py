"""Sampling inside ComfyUI: the guider of both experts, solvers, causal models' rollouts, and walks (steered videos)."""
