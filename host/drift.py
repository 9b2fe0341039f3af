"""Drift of a video inside ComfyUI."""

import torch

from ..drift import find_faults, measure_frames, render_drift, table, words
from .image import as_image


def measure_drift(images: torch.Tensor, fps: float, size: tuple[int, int]) -> tuple[torch.Tensor, list[str], list[str]]:
    """IMAGE [F, H, W, 3] over time: a drawing [1, h, w, 3], the faults in words and the table, lines of words. Raises
    InputError."""
    frames = ((image[..., :3].clamp(0, 1) * 255).byte().cpu().numpy() for image in images)
    figures = measure_frames(frames, fps)
    faults = find_faults(figures)
    return as_image(render_drift(figures, faults, size)), words(figures, faults), table(figures)
