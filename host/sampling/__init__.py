"""Sampling inside ComfyUI: the guider of both experts, the solvers, rollouts of causal models, and walks. A rollout is
a causal model's video. A walk is a video that a user steers while it is generated."""
