"""The published rates of common GPUs, and the fractions of these rates that kernels reach (docs/cards.md)."""

from typing import NamedTuple

from ..errors import InputError
from .estimate import Rates


class RateShares(NamedTuple):
    """Fractions of a GPU's published rates that kernels reach.

    linear, attention, convolution: fractions of the fp16 rate with fp32 accumulation.
    int8, fp8: fractions of the int8 and fp8 rates, respectively, for matrix products.
    attention_8bit: a fraction of the int8 rate.
    """

    linear: float = 0.90
    int8: float = 0.71
    fp8: float = 0.95
    attention: float = 0.88
    attention_8bit: float = 0.62
    convolution: float = 1.35  # above 1, because most of its sums are in fp16
    bandwidth: float = 0.80


GEFORCE = RateShares()
RADEON = RateShares(0.57, 0.50, 0.0, 0.42, 0.42, 0.23)


class PublishedCard(NamedTuple):
    """The published data of a GPU.

    memory: in GB.
    bandwidth: GB/s of GPU memory.
    half, int8, fp8: dense TFLOP/s; 0 if unsupported.
    bus: GB/s of copies from host memory.
    """

    memory: float
    bandwidth: float
    half: float
    int8: float
    fp8: float
    bus: float = 25.0
    shares: RateShares = GEFORCE


CARDS: dict[str, PublishedCard] = {
    "RTX 3060 12 GB": PublishedCard(12, 360, 25.5, 102, 0, 25.0),
    "RTX 3090": PublishedCard(24, 936, 71, 284, 0, 25.0),
    "RTX 4060 8 GB": PublishedCard(8, 272, 30.2, 121, 60.5, 12.5),
    "RTX 4090": PublishedCard(24, 1008, 165.2, 660.6, 330.3, 25.0),
    "RTX 5060 8 GB": PublishedCard(8, 448, 38.4, 154, 76.8, 25.0),
    "RTX 5090": PublishedCard(32, 1792, 209.5, 838, 419, 50.0),
    "RX 7900 XTX": PublishedCard(24, 960, 122.8, 122.8, 0, 25.0, RADEON),
    "Strix Halo": PublishedCard(96, 256, 59.4, 59.4, 0, 200.0, RADEON),
}


def find_card(name: str) -> str:
    """Return the key of CARDS that `name` means, such as "4090". Raise InputError if it means none or several."""
    found = [card for card in CARDS if _essence(name) in _essence(card)]
    if len(found) != 1:
        why = "this is part of several names" if found else "no published figures are known"
        raise InputError(f"`card` {name}: {why}; expected one of {', '.join(found or CARDS)}")
    return found[0]


def _essence(name: str) -> str:
    words = name.casefold().replace("-", " ").split()
    return "".join(word for word in words if word not in ("nvidia", "geforce", "amd", "radeon"))


def rates_of(card: PublishedCard) -> Rates:
    """Return a GPU's estimated kernel rates: the published rates times `card.shares`."""
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
