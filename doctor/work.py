"""An estimate of a chunk's seconds from a card's rates: products, attention, the VAE, memory traffic, kernel launches,
and weights that are copied over the bus."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..model.config import ModelConfig
from ..model.kv.place import KeyValuePlace
from ..options import RELEASES, Precision
from ..pipeline.rollout_memory import DecoderSettings, RolloutMemory, RolloutWork, estimate_rollout
from ..pipeline.world import WorldMemory

VAE_PIXEL = 8.42e6
"""The VAE's operations for each pixel of a frame: 52 TFLOP for 16 frames of 464x832."""
VAE_WIDTH = 96
ROW_PASSES = 58
"""The reads and writes of an activation [tokens, dim] of 2 bytes by a block, outside products and attention: measured
on an RTX 5090, 0.09 s a chunk at 1.79 TB/s."""
LAUNCHES, LAUNCHES_8_BITS = 16, 33
"""The kernels and memory fills of a block in exact arithmetic and in 8 bits (comfy-kitchen's products and attention),
counted by tools/cards/try_kernels.py on an H100 that played a card of 8.6."""
LAUNCH, LAUNCH_RECORDED = 9e-6, 1.5e-6
"""The least seconds of a launch: from Python, and from a CUDA graph."""
HELD_BY_OTHERS = 1e9
"""The bytes of a card's memory that the desktop and CUDA use."""
FOUR_BIT = 0.57
"""The bytes of a weight in NF4, including its scales."""


class Rates(NamedTuple):
    """A card's rates: TFLOP/s of 16-bit and 8-bit products, of exact and 8-bit attention, and of the VAE's
    convolutions; GB/s of its memory and of its bus; its memory in bytes. `recorded`: kernels run from a CUDA graph."""

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
    """The setting of a chunk: height and width of the video; latent frames of the chunk, of the window and of its sink;
    forwards for each chunk; and whether products and attention use 8 bits."""

    size: tuple[int, int]
    frames: int = 4
    window: int = 18
    sink: int = 6
    forwards: int = 5
    eight_bit: bool = False

    @property
    def tokens(self) -> int:
        """The number of tokens of a chunk."""
        return self.frames * (self.size[0] // 16) * (self.size[1] // 16)

    @property
    def keys(self) -> int:
        """The number of tokens in a full window."""
        return self.window * self.tokens // self.frames


class Seconds(NamedTuple):
    """The seconds of a chunk, by cause."""

    products: float
    attention: float
    vae: float
    memory: float
    launches: float
    bus: float = 0.0

    @property
    def model(self) -> float:
        """The seconds of the model's forwards."""
        return max(self.products + self.attention + self.memory + self.launches, self.bus)

    @property
    def total(self) -> float:
        """The seconds of the chunk."""
        return self.model + self.vae


class Fit(NamedTuple):
    """The placement of a run in memory: `where` as text, and the bytes `fetched` over the bus by each forward."""

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
"""The models of the estimate: name of the release, configuration, and bytes of each stored weight."""
PRESETS = (
    Setting((464, 832)),
    Setting((384, 640)),
    Setting((304, 528)),
    Setting((304, 528), window=12),
    Setting((304, 528), window=6, sink=1),
)
"""Settings from the best quality to the fastest; the first one that fits and is fast enough is a card's preset."""
BASE_VIDEO = Setting((480, 832), frames=21, window=21, forwards=80)
"""Five seconds by the base model: 81 frames in 40 guided steps of two forwards. All tokens attend to all."""
BASE_WORK = 3.9e9
"""The bytes that a forward of the base model uses besides its weights, for such a video."""
FAST_ENOUGH = 6.0
"""The frames a second from which an interactive walk feels fluent."""


def worked_out(config: ModelConfig, setting: Setting, rates: Rates, fetched: int = 0) -> Seconds:
    """Return the estimated seconds of a chunk on a card with these rates. `fetched` is the bytes that each forward
    copies over the bus, in parallel to its computation."""
    tokens, keys, blocks = setting.tokens, setting.keys, config.num_layers * setting.forwards
    linear, attention, launches = rates.linear, rates.attention, LAUNCHES
    if setting.eight_bit:
        linear, attention, launches = rates.linear_8bit, rates.attention_8bit, LAUNCHES_8_BITS
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
        blocks * launches * (LAUNCH_RECORDED if rates.recorded else LAUNCH),
        fetched * setting.forwards / rates.bus / 1e9,
    )


def fits(config: ModelConfig, weight: float, setting: Setting, memory: float) -> Fit | None:
    """Return the first placement in which a model with `weight` bytes a weight fits into `memory` bytes of a card; None
    if none fits."""
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
        stage, _ = estimate_rollout(work, plan, kept, DecoderSettings(VAE_WIDTH, half=True))
        if stage.total <= memory - HELD_BY_OTHERS:
            held = work.key_values(KeyValuePlace()).device if place.on_host else 0
            return Fit(where, held + (0 if resident is None else stored))
    return None


def _work(config: ModelConfig, setting: Setting) -> RolloutWork:
    precision = Precision(torch.bfloat16, "int8" if setting.eight_bit else "auto")
    size = setting.size[0] // 8, setting.size[1] // 8
    return RolloutWork(config, size, setting.frames, setting.window, precision)


class Row(NamedTuple):
    """The estimate for a model in a setting on a card: placement and seconds, None if the model does not fit."""

    model: str
    setting: Setting
    fit: Fit | None
    seconds: Seconds | None

    @property
    def frames_a_second(self) -> float:
        """The frames of video computed in a second; 0 if the model does not fit."""
        return 0.0 if self.seconds is None else 4 * self.setting.frames / self.seconds.total


def rows_of(small: Rates, large: Rates | None = None) -> list[Row]:
    """Return the estimate for each model in each setting, in exact and 8-bit arithmetic.

    `large`: a card's rates at the sizes of the 14B, by default `small`, those at the sizes of the 1.3B."""
    rows = []
    for name, (_release, config, weight) in MODELS.items():
        rates = small if large is None or name == "1.3B" else large
        for setting in (each._replace(eight_bit=eight) for each in PRESETS for eight in (False, True)):
            fit = fits(config, weight, setting, rates.memory)
            seconds = None if fit is None else worked_out(config, setting, rates, fit.fetched)
            rows.append(Row(name, setting, fit, seconds))
    return rows


def base_rows(rates: Rates) -> list[Row]:
    """Return the estimate for a video of the base model in 4 bits, in exact and 8-bit arithmetic. Blocks that do not
    fit on the card are copied to it in every forward."""
    config = MODELS["14B"][1]
    stored = int(FOUR_BIT * sum(math.prod(shape) for shape in config.parameter_shapes().values()))
    room = rates.memory - HELD_BY_OTHERS - BASE_WORK
    fetched = max(0, stored - max(0, int(room)))
    fit = None if room < 0 else Fit("some blocks in host memory" if fetched else "an expert on the card", fetched)
    rows = []
    for setting in (BASE_VIDEO._replace(eight_bit=eight) for eight in (False, True)):
        rows.append(Row("base", setting, fit, None if fit is None else worked_out(config, setting, rates, fetched)))
    return rows


def preset(rows: list[Row], model: str) -> Row | None:
    """Return a model's recommended setting: the best quality that is fast enough, else the fastest that fits; None if
    none fits."""
    fitting = [row for row in rows if row.model == model and row.fit is not None]
    fast = (row for row in fitting if row.frames_a_second >= FAST_ENOUGH)
    return next(fast, None) or max(fitting, key=lambda row: row.frames_a_second, default=None)


def released(name: str) -> str:
    """Return the name of the release of a model in MODELS."""
    return RELEASES[MODELS[name][0]].name
