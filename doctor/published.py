"""The published figures of common cards, and others' measurements on some of them.

A kernel reaches a fraction of a card's published rate. The fractions come from others' measurements. On an RTX 5090:
products at 176 to 229 TFLOP/s in bf16, 375 to 430 in fp8 and 537 to 648 in int8; exact attention at 184, 8-bit
attention at 524; the VAE at 173. On Strix Halo: a chunk of 0.8 s, 44 % of it attention and 38 % products."""

from __future__ import annotations

from typing import NamedTuple

from .work import Rates


class Shares(NamedTuple):
    """The fractions of published rates that kernels reach: of the fp16 rate (`linear`, `attention`, `convolution`), of
    the 8-bit rates, and of the memory bandwidth."""

    linear: float = 0.90
    int8: float = 0.71
    fp8: float = 0.95
    attention: float = 0.88
    attention_8bit: float = 0.62
    convolution: float = 0.83
    bandwidth: float = 0.80


GEFORCE = Shares()
RADEON = Shares(0.57, 0.50, 0.0, 0.42, 0.42, 0.23)


class Published(NamedTuple):
    """A card's published figures: memory in GB and its GB/s; dense TFLOP/s in fp16 with fp32 accumulation, in int8 and
    in fp8 (0: unsupported); and the GB/s of its bus."""

    memory: float
    bandwidth: float
    half: float
    int8: float
    fp8: float
    bus: float = 25.0
    shares: Shares = GEFORCE


CARDS: dict[str, Published] = {
    "RTX 3060 12 GB": Published(12, 360, 25.5, 102, 0, 25.0),
    "RTX 3090": Published(24, 936, 71, 284, 0, 25.0),
    "RTX 4060 8 GB": Published(8, 272, 30.2, 121, 60.5, 12.5),
    "RTX 4090": Published(24, 1008, 165.2, 660.6, 330.3, 25.0),
    "RTX 5060 8 GB": Published(8, 448, 38.4, 154, 76.8, 25.0),
    "RTX 5090": Published(32, 1792, 209.5, 838, 419, 50.0),
    "RX 7900 XTX": Published(24, 960, 122.8, 122.8, 0, 25.0, RADEON),
    "Strix Halo": Published(96, 256, 59.4, 59.4, 0, 200.0, RADEON),
}


class Measured(NamedTuple):
    """Others' measurement with their own code: the card, the code, the seconds of the model and of the full chunk
    (None: unknown), and the setting: size, latent frames of a chunk and of the window, forwards, 8 bits."""

    card: str
    code: str
    model: float | None
    chunk: float | None
    size: tuple[int, int]
    frames: int
    window: int
    forwards: int
    eight_bit: bool


OTHERS: tuple[Measured, ...] = (
    Measured("RTX 5090", "official", 1.63, 2.68, (464, 832), 4, 18, 5, False),
    Measured("RTX 5090", "FlashDreams", 1.35, 1.86, (464, 832), 4, 18, 5, False),
    Measured("RTX 5090", "one who built kernels for it", 0.64, 0.98, (464, 832), 4, 18, 5, True),
    Measured("RTX 5060 8 GB", "official, laptop", 0.72, 0.766, (304, 528), 1, 6, 4, False),
    Measured("Strix Halo", "ROCm fork", 0.83, 0.87, (384, 672), 1, 12, 4, False),
)
"""Measurements of the 1.3B from public forks of lingbot-world-v2, September to October 2026. The laptop and Strix Halo
use the tiny decoder."""


def rates_of(card: Published) -> Rates:
    """Return the estimated rates of kernels on a card: its published figures times the fractions in `card.shares`."""
    shares = card.shares
    return Rates(
        card.half * shares.linear,
        max(card.int8 * shares.int8, card.fp8 * shares.fp8),
        card.half * shares.attention,
        card.int8 * shares.attention_8bit,
        card.half * shares.convolution,
        card.bandwidth * shares.bandwidth,
        card.bus,
        card.memory * 1e9,
    )
