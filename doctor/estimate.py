"""An estimate of a chunk's time from a GPU's kernel rates: the sum of matrix products, attention, VAE, memory traffic
and kernel launches. Copies of weights over the bus run in parallel."""

import math
from typing import NamedTuple

import torch

from ..model.config import ModelConfig
from ..model.kv.place import KeyValuePlace
from ..options import RELEASES, Precision
from ..pipeline.rollout_memory import DecoderSettings, RolloutMemory, RolloutWork, estimate_rollout
from ..pipeline.world import WorldMemory

VAE_PIXEL, VAE_BYTES = 8.04e6, 4220
"""The floating-point operations of the VAE's convolutions for a pixel of a frame, and the bytes that its norms read and
write for it: 49.7 TFLOP and 26 GB for 16 frames of 464x832 (tools/cards/per_clock.py --dry)."""
VAE_WIDTH = 96
ROW_PASSES, ROW_COPIES, ROW_QUANTIZED = 28, 2, 1.75
"""The number of 16-bit passes (reads or writes) over an activation [tokens, dim] in a transformer block, apart from
matrix products and attention.

ROW_PASSES: three norms with the additions before them (20), the norm of cross-attention's queries (2), and RoPE with
the cache update (6). These passes occur in every block.
ROW_COPIES: the copy of the attention's result, only with 8-bit attention.
ROW_QUANTIZED: comfy-kitchen's quantization of one input of an 8-bit matrix product. The quantization moves the bytes of
1.5 passes. It takes as long as 1.75 passes, because its arithmetic limits it on an H100 (tools/cards/per_clock.py).
"""
QUANTIZED_INPUTS = 5
"""The number of activations [tokens, dim] that a transformer block quantizes for 8-bit matrix products. They are the
inputs of self-attention's q, k and v layers (one shared input), of both output layers, of cross-attention's q layer,
and of the feed-forward's first layer. The input of the feed-forward's second layer, [tokens, ffn_dim], is not counted
here."""
LAUNCHES, LAUNCHES_8_BITS = 16, 32
"""The number of kernels and memory fills that a transformer block launches, with 16-bit products (LAUNCHES) or with
comfy-kitchen's 8-bit products and attention. Counted on an H100 that imitated compute capability 12.0
(tools/cards/try_kernels.py)."""
LAUNCH, LAUNCH_RECORDED = 9e-6, 1.5e-6
"""Lower bounds of the time that a kernel takes, in seconds, however small its work: if Python launches it (LAUNCH), and
if a CUDA graph does (LAUNCH_RECORDED)."""
HELD_BY_OTHERS = 1e9
"""The bytes of GPU memory that the desktop and CUDA are assumed to use."""
FOUR_BIT = 0.57
"""The average bytes of a weight in NF4, including the scales."""


class Rates(NamedTuple):
    """A GPU's kernel rates.

    linear, attention: matrix products and attention in 16 bits, in TFLOP/s.
    linear_8bit, attention_8bit: the same in 8 bits.
    convolution: the VAE's convolutions, in TFLOP/s.
    bandwidth, bus: GB/s of GPU memory, and of copies from host memory.
    memory: the size of GPU memory in bytes.
    recorded: whether kernels run from a CUDA graph.
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
    """The settings with which a chunk of video is generated.

    size: the height and width of the video in pixels.
    frames: the latent frames of the chunk.
    window: the latent frames of the attention window, including the sink.
    sink: the latent frames at the video's start that remain in the window.
    forwards: the model's forwards per chunk.
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
        """The number of tokens of a chunk."""
        return self.frames * (self.size[0] // 16) * (self.size[1] // 16)

    @property
    def keys(self) -> int:
        """The number of tokens in a full attention window."""
        return self.window * self.tokens // self.frames


class Seconds(NamedTuple):
    """The estimated time of a chunk in seconds, divided into parts.

    products, attention: matrix products and attention of the model's forwards.
    vae: the decoding of the chunk.
    memory: reading and writing of GPU memory by the model's forwards.
    launches: kernel launches of the model's forwards.
    bus: copies from host memory, in parallel with the model's computation.
    """

    products: float
    attention: float
    vae: float
    memory: float
    launches: float
    bus: float = 0.0

    @property
    def model(self) -> float:
        """The seconds of the model's forwards: the sum of `products`, `attention`, `memory` and `launches`, or `bus` if
        that is longer, because the copies run in parallel with the computation."""
        return max(self.products + self.attention + self.memory + self.launches, self.bus)

    @property
    def total(self) -> float:
        """The seconds of the model's forwards and the VAE."""
        return self.model + self.vae


class Placement(NamedTuple):
    """The placement of weights, keys and values in memory. `where`: a description, such as "all on the card".
    `fetched`: the bytes that each forward copies from host memory."""

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
"""The models of the estimate by name, each as (release, configuration, bytes of a stored weight)."""
PRESETS = (
    Setting((464, 832)),
    Setting((384, 640)),
    Setting((304, 528)),
    Setting((304, 528), window=12),
    Setting((304, 528), window=6, sink=1),
)
"""The settings that are compared, from the best quality to the highest speed."""
BASE_VIDEO = Setting((480, 832), frames=21, window=21, forwards=80)
"""A five-second video by the base model: 81 frames in 40 guided steps with two forwards each. Every token attends to
all tokens."""
BASE_WORK = 3.9e9
"""The bytes of GPU memory that a forward of the base model uses besides its weights, for BASE_VIDEO."""
FAST_ENOUGH = 6.0
"""The frame rate, in frames per second, from which an interactive walk feels fluent."""


def estimate_chunk(config: ModelConfig, setting: Setting, rates: Rates, fetched: int = 0) -> Seconds:
    """Return the estimated time of generating and decoding a chunk, divided into parts.

    setting: the settings of the chunk.
    rates: the kernel rates of the GPU.
    fetched: the bytes that each forward copies from host memory while it computes; 0 if all weights are on the GPU.
    """
    tokens, keys, blocks = setting.tokens, setting.keys, config.num_layers * setting.forwards
    linear, attention, launches, passes = rates.linear, rates.attention, LAUNCHES, float(ROW_PASSES)
    if setting.eight_bit:
        linear, attention, launches = rates.linear_8bit, rates.attention_8bit, LAUNCHES_8_BITS
        passes += ROW_COPIES + ROW_QUANTIZED * (QUANTIZED_INPUTS + config.ffn_dim / config.dim)
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
    """Return the placement of a model for `setting` on a GPU with `memory` bytes, or None if no placement fits.
    `weight`: the average bytes of a stored weight. These placements are tried in this order: all on the GPU; keys and
    values in 8 bits; keys and values in host memory; keys, values and weights in host memory."""
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
            return Placement(where, held + (0 if resident is None else stored))
    return None


def _work(config: ModelConfig, setting: Setting) -> RolloutWork:
    precision = Precision(torch.bfloat16, "int8" if setting.eight_bit else "auto")
    size = setting.size[0] // 8, setting.size[1] // 8
    return RolloutWork(config, size, setting.frames, setting.window, precision)


class Estimate(NamedTuple):
    """An estimate for one model and one setting.

    model: a key of MODELS, or "base".
    setting: the setting of a chunk; the base model generates the video as one chunk.
    place: the placement in memory, or None if the model does not fit.
    seconds: the seconds of a chunk, or None if the model does not fit.
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
    """Return the estimates for each of MODELS and PRESETS, each in 16 bits and in 8 bits. `small`, `large`: a GPU's
    rates at the matrix sizes of the 1.3B and the 14B model (`large` None: equal to `small`)."""
    rows = []
    for name, (_release, config, weight) in MODELS.items():
        rates = small if large is None or name == "1.3B" else large
        for setting in (each._replace(eight_bit=eight) for each in PRESETS for eight in (False, True)):
            place = place_model(config, weight, setting, rates.memory)
            seconds = None if place is None else estimate_chunk(config, setting, rates, place.fetched)
            rows.append(Estimate(name, setting, place, seconds))
    return rows


def estimate_base(rates: Rates) -> list[Estimate]:
    """Return two estimates for BASE_VIDEO with 4-bit weights: with matrix products and attention in 16 bits, and in 8
    bits. Blocks without room on the GPU are copied from host memory in every forward."""
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
    """Return the estimate with a model's recommended setting, or None if no setting fits. The recommended setting is
    the first of `rows` that reaches FAST_ENOUGH frames per second, or else the fastest."""
    fitting = [row for row in rows if row.model == model and row.place is not None]
    fast = (row for row in fitting if row.frames_a_second >= FAST_ENOUGH)
    return next(fast, None) or max(fitting, key=lambda row: row.frames_a_second, default=None)


def release_name(name: str) -> str:
    """Return the release name of a key of MODELS."""
    return RELEASES[MODELS[name][0]].name
