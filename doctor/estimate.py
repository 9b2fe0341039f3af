"""Estimates of a chunk's time, and of the placement in memory, from a GPU's kernel rates."""

import math
from typing import NamedTuple

import torch

from ..model.config import ModelConfig
from ..model.kv.place import KeyValuePlace
from ..options import RELEASES, Precision
from ..pipeline.rollout_memory import DecoderSettings, RolloutMemory, RolloutWork, estimate_rollout
from ..pipeline.world import WorldMemory

VAE_PIXEL, VAE_BYTES = 8.04e6, 4220
"""The VAE's work per pixel of a frame (tools/cards/per_clock.py). VAE_PIXEL: floating-point operations of the
convolutions. VAE_BYTES: bytes that the norms move."""
VAE_WIDTH = 96
PASSES = 28  # reads and writes of a 16-bit activation [tokens, dim] in a block: norms 22, RoPE and cache update 6
PASSES_8_BITS = 2  # added by 8-bit attention
PASSES_QUANTIZED = 1.75  # added by each quantized input
QUANTIZED_INPUTS = 5
"""The number of activations [tokens, dim] that a block quantizes for 8-bit products. The second feed-forward layer's
input, [tokens, ffn_dim], counts separately."""
LAUNCHES, LAUNCHES_8_BITS = 16, 32
"""The number of kernels and memory fills that a transformer block launches with 16-bit kernels (LAUNCHES), and with
comfy-kitchen's 8-bit kernels (LAUNCHES_8_BITS), counted by tools/cards/try_kernels.py."""
LAUNCH, LAUNCH_RECORDED = 9e-6, 1.5e-6
"""The launch overhead of a kernel in seconds: from Python (LAUNCH), or within a CUDA graph (LAUNCH_RECORDED)."""
HELD_BY_OTHERS = 1e9
"""The bytes of GPU memory that the desktop and CUDA are assumed to use."""
FOUR_BIT = 0.57
"""The average bytes of a weight in NF4, including the scales."""


class Rates(NamedTuple):
    """The rates of a GPU. Fields from `linear` to `convolution` are in TFLOP/s.

    linear, attention: the rates of 16-bit kernels.
    bandwidth: GB/s of GPU memory.
    bus: GB/s of copies from host memory.
    memory: the size of GPU memory in bytes.
    recorded: whether kernels run from a CUDA graph, with less launch overhead.
    """

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
    """The settings of a chunk of video.

    size: height and width in pixels.
    frames: latent frames of the chunk.
    window: latent frames of the attention window, including the sink.
    sink: latent frames at the start that stay in the window.
    eight_bit: whether matrix products and attention use 8 bits.
    """

    size: tuple[int, int]
    frames: int = 4
    window: int = 18
    sink: int = 6
    forwards: int = 5
    eight_bit: bool = False

    @property
    def tokens(self) -> int:
        """The number of tokens in a chunk."""
        return self.frames * (self.size[0] // 16) * (self.size[1] // 16)

    @property
    def keys(self) -> int:
        """The number of tokens in a full attention window."""
        return self.window * self.tokens // self.frames


class Seconds(NamedTuple):
    """The estimated seconds of a chunk, by part.

    products: the model's matrix products.
    memory: the model's reads and writes of GPU memory.
    bus: copies from host memory, in parallel with the model.
    """

    products: float
    attention: float
    vae: float
    memory: float
    launches: float
    bus: float = 0.0

    @property
    def model(self) -> float:
        """The estimated seconds of the model's forwards: the maximum of the computing times' sum and `bus`, the copies
        from host memory in parallel."""
        return max(self.products + self.attention + self.memory + self.launches, self.bus)

    @property
    def total(self) -> float:
        """The estimated seconds of the chunk: the sum of the model's forwards and the VAE."""
        return self.model + self.vae


class Placement(NamedTuple):
    """Where a model's weights, keys and values lie.

    where: a description, such as "all on the card".
    fetched: bytes that each forward copies from host memory.
    """

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
"""The estimated models by name: release, configuration, and bytes of a stored weight."""
PRESETS = (
    Setting((464, 832)),
    Setting((384, 640)),
    Setting((304, 528)),
    Setting((304, 528), window=12),
    Setting((304, 528), window=6, sink=1),
)
"""The compared settings, from the best quality to the highest speed."""
BASE_VIDEO = Setting((480, 832), frames=21, window=21, forwards=80)
"""The base model's video of 81 frames (21 latent frames), as one chunk of 40 guided steps with two forwards each."""
BASE_WORK = 3.9e9
"""The bytes of GPU memory that the base model needs for BASE_VIDEO besides its weights."""
FAST_ENOUGH = 6.0
"""The frames per second at which a walk (a steered live video) begins to feel fluent."""


def estimate_chunk(config: ModelConfig, setting: Setting, rates: Rates, fetched: int = 0) -> Seconds:
    """Return the estimated time of generating and decoding a chunk. `fetched`: the bytes that each forward copies from
    host memory."""
    tokens, keys, blocks = setting.tokens, setting.keys, config.num_layers * setting.forwards
    linear, attention, launches, passes = rates.linear, rates.attention, LAUNCHES, float(PASSES)
    if setting.eight_bit:
        linear, attention, launches = rates.linear_8bit, rates.attention_8bit, LAUNCHES_8_BITS
        passes += PASSES_8_BITS + PASSES_QUANTIZED * (QUANTIZED_INPUTS + config.ffn_dim / config.dim)
    weights = 6 * config.dim**2 + 2 * config.dim * config.ffn_dim
    products = 2.0 * tokens * weights * blocks + 2.0 * tokens * 4 * config.dim**2 * config.num_layers
    row = 2.0 * tokens * config.dim
    moved = blocks * (passes * row + weights * (1 if setting.eight_bit else 2))
    pixels = 4 * setting.frames * setting.size[0] * setting.size[1]
    return Seconds(
        products / linear / 1e12,
        4.0 * tokens * keys * config.dim * blocks / attention / 1e12,
        VAE_PIXEL * pixels / rates.convolution / 1e12 + VAE_BYTES * pixels / rates.bandwidth / 1e9,
        moved / rates.bandwidth / 1e9,
        blocks * launches * (LAUNCH_RECORDED if rates.recorded else LAUNCH),
        fetched * setting.forwards / rates.bus / 1e9,
    )


def place_model(config: ModelConfig, weight: float, setting: Setting, memory: float) -> Placement | None:
    """Return a placement with which a model fits on a GPU, preferring GPU memory to host memory. Return None if none
    fits.

    weight: the average bytes of a stored weight.
    memory: the size of the GPU's memory in bytes.
    """
    work = _work(config, setting)
    stored = int(weight * sum(math.prod(shape) for shape in config.parameter_shapes().values()))
    host, eight_bit = KeyValuePlace(on_host=True), KeyValuePlace(int8=True)
    for where, place, resident in (
        ("all on the card", KeyValuePlace(), None),
        ("keys and values in 8 bits", eight_bit, None),
        ("keys and values in host memory", host, None),
        ("weights and keys and values in host memory", host, 0),
    ):
        kept = stored if resident is None else int(stored * 2 / config.num_layers)
        plan = RolloutMemory(WorldMemory(place), resident, vae_tiling=place.on_host, park_decoder=place.on_host)
        stage = estimate_rollout(work, plan, kept, DecoderSettings(VAE_WIDTH, half=True))
        if stage.total <= memory - HELD_BY_OTHERS:
            held = work.key_values(KeyValuePlace()).device if place.on_host else 0
            return Placement(where, held + (0 if resident is None else stored))
    return None


def _work(config: ModelConfig, setting: Setting) -> RolloutWork:
    precision = Precision(torch.bfloat16, "int8" if setting.eight_bit else "auto")
    size = setting.size[0] // 8, setting.size[1] // 8
    return RolloutWork(config, size, setting.frames, setting.window, precision)


class Estimate(NamedTuple):
    """An estimate for one model and setting.

    model: a key of MODELS, or "base".
    place: where the weights, keys and values lie; None if the model does not fit on the GPU.
    seconds: the seconds of a chunk; None if it does not fit.
    """

    model: str
    setting: Setting
    place: Placement | None
    seconds: Seconds | None

    @property
    def frames_a_second(self) -> float:
        """The number of video frames made per second; 0 if the model does not fit."""
        return 0.0 if self.seconds is None else 4 * self.setting.frames / self.seconds.total


def estimate_releases(small: Rates, large: Rates | None = None) -> list[Estimate]:
    """Return the estimates for MODELS and PRESETS, in 16 and 8 bits. `small`, `large`: rates at the 1.3B and 14B
    model's layer sizes; `large` defaults to `small`."""
    rows = []
    for name, (_release, config, weight) in MODELS.items():
        rates = small if large is None or name == "1.3B" else large
        for setting in (each._replace(eight_bit=eight) for each in PRESETS for eight in (False, True)):
            place = place_model(config, weight, setting, rates.memory)
            seconds = None if place is None else estimate_chunk(config, setting, rates, place.fetched)
            rows.append(Estimate(name, setting, place, seconds))
    return rows


def estimate_base(rates: Rates) -> list[Estimate]:
    """Return estimates of placement and time for BASE_VIDEO, an 81-frame video, with 4-bit weights: computed in 16
    bits, and in 8 bits."""
    config = MODELS["14B"][1]
    stored = int(FOUR_BIT * sum(math.prod(shape) for shape in config.parameter_shapes().values()))
    room = rates.memory - HELD_BY_OTHERS - BASE_WORK
    fetched = max(0, stored - max(0, int(room)))
    where = "some blocks in host memory" if fetched else "an expert on the card"
    place = None if room < 0 else Placement(where, fetched)
    rows = []
    for setting in (BASE_VIDEO._replace(eight_bit=eight) for eight in (False, True)):
        seconds = None if place is None else estimate_chunk(config, setting, rates, fetched)
        rows.append(Estimate("base", setting, place, seconds))
    return rows


def recommended(rows: list[Estimate], model: str) -> Estimate | None:
    """Return the first of a model's `rows` that reaches FAST_ENOUGH, else the fastest; None if none fits."""
    fitting = [row for row in rows if row.model == model and row.place is not None]
    fast = (row for row in fitting if row.frames_a_second >= FAST_ENOUGH)
    return next(fast, None) or max(fitting, key=lambda row: row.frames_a_second, default=None)


def release_name(name: str) -> str:
    """Return the display name of a model's release. `name`: a key of MODELS, such as "14B" for "LingBot-World 2.0"."""
    return RELEASES[MODELS[name][0]].name
