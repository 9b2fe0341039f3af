"""What is trained: sizes of the models, the videos and the batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...model.config import ModelConfig
from ...options import BOUNDARY
from .paths import FRAMES
from .render import HEIGHT, WIDTH

CONFIG = ModelConfig(dim=192, ffn_dim=768, num_heads=4, num_layers=6, freq_dim=256, text_dim=64)
VAE_WIDTH = 8
EXPERTS = "high", "low"
MODELS = "vae", *EXPERTS
"""What a training's folder has a checkpoint of."""
SHIFT = 5.0
"""The engine's own: noise levels are drawn as its schedule spreads them."""

SPLIT = BOUNDARY / (SHIFT - (SHIFT - 1) * BOUNDARY)
"""Where in the unshifted schedule, 0 to 1, the experts change."""

TEXT_TOKENS = 64
"""Tokens that a prompt has at most in training; beyond them only padding is left."""


def compute_dtype(device: torch.device) -> torch.dtype:
    """What forwards run in: bfloat16 on a GPU, float32 on the CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@dataclass(frozen=True)
class Sizes:
    """Pixels and frames of a video, and how many are worked on at a time by one process.

    clips, clip_frames, crop: the VAE's batches in the first part of its training; whole: whole videos in the second.
    videos: kept to train the VAE on. fill: rendered and encoded at once for the experts. batch: the experts'."""

    height: int = HEIGHT
    width: int = WIDTH
    frames: int = FRAMES
    clips: int = 24
    clip_frames: int = 9
    crop: tuple[int, int] = (64, 96)
    whole: int = 6
    videos: int = 1024
    fill: int = 64
    encoded: int = 32
    batch: int = 192
    held_out: int = 64


TINY = Sizes(
    height=32,
    width=48,
    frames=9,
    clips=2,
    clip_frames=5,
    crop=(16, 32),
    whole=1,
    videos=4,
    fill=4,
    encoded=2,
    batch=2,
    held_out=2,
)
"""For a test of the whole training on a CPU."""
