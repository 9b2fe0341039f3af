"""Guiders, samplers, rollouts and walks inside ComfyUI's sampling."""
