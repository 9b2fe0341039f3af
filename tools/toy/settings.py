"""Sizes of the models, the videos and the batches."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...model.config import ModelConfig
from .render import HEIGHT, WIDTH

CONFIG = ModelConfig(dim=256, ffn_dim=768, num_heads=4, num_layers=8, freq_dim=256, text_dim=64)  # the denoiser's sizes
VAE_WIDTH = 8
TRIES = 3  # places that are tried for a walk: it is to meet walls
TEXT_TOKENS = 64  # tokens that a prompt has at most in training; beyond them only padding is left
SHIFT = 5.0  # the shift of the base model's schedule, by which noise levels are drawn

WINDOW, SINK = 18, 6  # the window of a walk, used in half of the training


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 on a GPU, float32 on the CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def config_of(weights: Mapping[str, Tensor]) -> ModelConfig:
    """Return the sizes of a denoiser with these weights."""
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    return ModelConfig.from_shapes(shapes, num_heads=CONFIG.num_heads)


@dataclass(frozen=True)
class Sizes:
    """Pixels of a video, and the sizes of batches."""

    height: int = HEIGHT
    width: int = WIDTH
    clips: int = 8  # the VAE's batches of crops, then of whole frames
    clip_frames: int = 9
    crop: tuple[int, int] = (96, 128)
    whole: int = 2
    whole_frames: int = 17
    videos: int = 800
    video_frames: int = 33
    half: int = 12  # latent frames of half a walk, and of a base video
    base: int = 9
    fill: int = 32  # walks rendered and encoded at once
    encoded: int = 16
    walks: int = 65_536
    watched: int = 12  # the decoder's walks for training and measurement
    unwatched: int = 2
    batch: int = 8
    held_out: int = 64


TINY = Sizes(
    height=32,
    width=48,
    clips=2,
    clip_frames=5,
    crop=(16, 32),
    whole=1,
    whole_frames=9,
    videos=4,
    video_frames=9,
    half=3,
    base=3,
    fill=2,
    encoded=2,
    walks=4,
    watched=2,
    unwatched=1,
    batch=2,
    held_out=2,
)
"""For a test of the whole training on a CPU."""
