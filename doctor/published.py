"""The published figures of common cards, and measurements by other people on some of these cards.

A kernel reaches a fraction of a card's published rate. The fractions come from measurements by other people. On an RTX
5090, matrix products reach 176 to 229 TFLOP/s in bf16, 375 to 430 in fp8 and 537 to 648 in int8. Exact attention
reaches 184 TFLOP/s, 8-bit attention 524, and the VAE 173. On Strix Halo a chunk takes 0.8 s, of which attention takes
44 % and matrix products 38 %.
"""

from typing import NamedTuple

from .work import Rates


class Shares(NamedTuple):
    """The fractions of a card's published rates that kernels reach. `linear`, `attention` and `convolution` are
    fractions of the fp16 rate. `int8` and `fp8` are fractions of the rates of these types, `attention_8bit` of the int8
    rate, and `bandwidth` of the memory bandwidth."""

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
    """The published figures of a card. `memory` is in GB, and `bandwidth` (of the memory) and `bus` are in GB/s. `half`
    (fp16 with fp32 accumulation), `int8` and `fp8` are dense TFLOP/s; 0 means unsupported. `shares`: the fractions of
    these figures that kernels reach."""

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
    """A measurement by other people with their own code, on a `card` in CARDS. `code`: a description of their code.
    `model` and `chunk`: the seconds for the model alone and for the full chunk, None if unknown. `size`: height and
    width of the video. `frames` and `window`: latent frames of a chunk and of the attention window. `forwards`:
    forwards for each chunk. `eight_bit`: whether 8-bit kernels were used."""

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
"""Measurements of the 1.3B model from public forks of lingbot-world-v2, September to October 2026. The runs on the
laptop and on Strix Halo used the tiny decoder."""


def rates_of(card: Published) -> Rates:
    """Return the estimated rates of kernels on a card: published figures times the fractions in `card.shares`."""
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
