"""Seconds of a chunk, worked out from a card's rates: products, attention, the VAE, what only moves memory, launches,
and weights that come over the bus."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..model.config import ModelConfig
from ..model.kv.place import KeyValuePlace
from ..options import RELEASES, Precision
from ..pipeline.rollout_memory import Decoder, RolloutMemory, RolloutWork, estimate_rollout
from ..pipeline.world import WorldMemory

VAE_PIXEL = 8.42e6
"""Operations of the VAE for a pixel of a frame: 52 TFLOP for 16 frames of 464x832."""
VAE_WIDTH = 96
ROW_PASSES = 58
"""How often a block reads or writes an activation [tokens, dim] of 2 bytes beside products and attention: measured on
an RTX 5090, 0.09 s a chunk at 1.79 TB/s."""
LAUNCHES, LAUNCH, LAUNCH_RECORDED = 19, 9e-6, 1.5e-6
"""Kernels of a block, and the seconds that each costs at least: started by Python, and from a recording."""
HELD_BY_OTHERS = 1e9
"""Bytes of a card that a desktop and CUDA itself take."""
FOUR_BIT = 0.57
"""Bytes of a weight in NF4 with its scales."""


class Rates(NamedTuple):
    """A card's rates: TFLOP/s of products in 16 bits, in 8 bits, of exact and 8-bit attention, and of the VAE's
    convolutions; GB/s of its memory and of its bus; and its memory in bytes."""

    linear: float
    linear_8bit: float
    attention: float
    attention_8bit: float
    convolution: float
    bandwidth: float
    bus: float
    memory: float
    recorded: bool = True


class Setting(NamedTuple):
    """A chunk: height and width of the video, latent frames of a chunk, of the window and of its sink, forwards that
    make it, and whether products and attention are in 8 bits."""

    size: tuple[int, int]
    frames: int = 4
    window: int = 18
    sink: int = 6
    forwards: int = 5
    eight_bit: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a chunk."""
        return self.frames * (self.size[0] // 16) * (self.size[1] // 16)

    @property
    def keys(self) -> int:
        """Tokens that a full window holds."""
        return self.window * self.tokens // self.frames


class Seconds(NamedTuple):
    """Seconds of a chunk by what takes them."""

    products: float
    attention: float
    vae: float
    memory: float
    launches: float
    bus: float = 0.0

    @property
    def model(self) -> float:
        """Seconds of the model's forwards."""
        return max(self.products + self.attention + self.memory + self.launches, self.bus)

    @property
    def total(self) -> float:
        """Seconds of the chunk."""
        return self.model + self.vae


class Fit(NamedTuple):
    """Where a run's parts lie on a card: `where` in words, and the bytes of weights that each forward fetches."""

    where: str
    fetched: int = 0


MODELS = {
    "1.3B": (
        "v2-1.3b",
        ModelConfig(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30, freq_dim=256, text_dim=4096, causal=True),
        2.0,
    ),
    "14B": (
        "v2",
        ModelConfig(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40, freq_dim=256, text_dim=4096, causal=True),
        FOUR_BIT,
    ),
}
"""The releases that are worked out: name of the release, sizes, and bytes of a stored weight."""
PRESETS = (
    Setting((464, 832)),
    Setting((384, 640)),
    Setting((304, 528)),
    Setting((304, 528), window=12),
    Setting((304, 528), window=6, sink=1),
)
"""Settings from the best picture to the fastest; the first that fits and is fast enough is a card's preset."""
FAST_ENOUGH = 6.0
"""Frames a second from which on a person walks rather than waits."""


def worked_out(config: ModelConfig, setting: Setting, rates: Rates, fetched: int = 0) -> Seconds:
    """Return the seconds of a chunk on a card with these rates. `fetched`: bytes of weights that each forward brings
    over the bus, which happens while it computes."""
    tokens, keys, blocks = setting.tokens, setting.keys, config.num_layers * setting.forwards
    linear, attention = rates.linear, rates.attention
    if setting.eight_bit:
        linear, attention = rates.linear_8bit, rates.attention_8bit
    weights = 6 * config.dim**2 + 2 * config.dim * config.ffn_dim
    products = 2.0 * tokens * weights * blocks + 2.0 * tokens * 4 * config.dim**2 * config.num_layers
    row = 2.0 * tokens * config.dim
    moved = blocks * (ROW_PASSES * row + weights * (1 if setting.eight_bit else 2))
    pixels = 4 * setting.frames * setting.size[0] * setting.size[1]
    return Seconds(
        products / linear / 1e12,
        4.0 * tokens * keys * config.dim * blocks / attention / 1e12,
        VAE_PIXEL * pixels / rates.convolution / 1e12,
        moved / rates.bandwidth / 1e9,
        blocks * LAUNCHES * (LAUNCH_RECORDED if rates.recorded else LAUNCH),
        fetched * setting.forwards / rates.bus / 1e9,
    )


def fits(config: ModelConfig, weight: float, setting: Setting, memory: float) -> Fit | None:
    """Return how a model whose weights take `weight` bytes each fits into so many bytes of a card; None if not."""
    work = _work(config, setting)
    stored = int(weight * sum(math.prod(shape) for shape in config.parameter_shapes().values()))
    host, eight_bit = KeyValuePlace(on_host=True), KeyValuePlace(eight_bit=True)
    for where, place, resident in (
        ("all on the card", KeyValuePlace(), None),
        ("keys and values in 8 bits", eight_bit, None),
        ("keys and values in host memory", host, None),
        ("weights and keys and values in host memory", host, 0),
    ):
        kept = stored if resident is None else int(stored * 2 / config.num_layers)
        plan = RolloutMemory(WorldMemory(place), resident, vae_tiling=place.on_host, park_decoder=place.on_host)
        stage, _ = estimate_rollout(work, plan, kept, Decoder(VAE_WIDTH, half=True))
        if stage.total <= memory - HELD_BY_OTHERS:
            held = work.key_values(KeyValuePlace()).device if place.on_host else 0
            return Fit(where, held + (0 if resident is None else stored))
    return None


def _work(config: ModelConfig, setting: Setting) -> RolloutWork:
    precision = Precision(torch.bfloat16, "int8" if setting.eight_bit else "auto")
    size = setting.size[0] // 8, setting.size[1] // 8
    return RolloutWork(config, size, setting.frames, setting.window, precision)


class Row(NamedTuple):
    """What a card does with a model in a setting."""

    model: str
    setting: Setting
    fit: Fit | None
    seconds: Seconds | None

    @property
    def frames_a_second(self) -> float:
        """Frames of video that a second of computing makes; 0 where the model does not fit."""
        return 0.0 if self.seconds is None else 4 * self.setting.frames / self.seconds.total


def rows_of(rates: Rates) -> list[Row]:
    """Return what a card does with each model in each setting, exactly and in 8 bits."""
    rows = []
    for name, (_release, config, weight) in MODELS.items():
        for setting in (each._replace(eight_bit=eight) for each in PRESETS for eight in (False, True)):
            fit = fits(config, weight, setting, rates.memory)
            seconds = None if fit is None else worked_out(config, setting, rates, fit.fetched)
            rows.append(Row(name, setting, fit, seconds))
    return rows


def preset(rows: list[Row], model: str) -> Row | None:
    """Return the setting to take for a model: the best picture that is fast enough, or else the fastest that fits."""
    fitting = [row for row in rows if row.model == model and row.fit is not None]
    fast = (row for row in fitting if row.frames_a_second >= FAST_ENOUGH)
    return next(fast, None) or max(fitting, key=lambda row: row.frames_a_second, default=None)


def released(name: str) -> str:
    """Return the name of a model's release."""
    return RELEASES[MODELS[name][0]].name
