"""The memory of a causal run: estimates, and the storage of keys and values in ComfyUI."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ..errors import InputError
from ..loaders import Checkpoint
from ..model.attention.choose_8bit import supports_fp8_cache
from ..model.attention.exact import FRAMES_BYTES, frames_bytes
from ..model.config import ModelConfig
from ..model.kv.place import KeyValueBytes, KeyValuePlace, key_value_bytes, key_value_places
from ..model.memory import activation_bytes, camera_cache_bytes
from ..model.ops.linear_8bit import DTYPES
from ..options import CameraCacheMode, KeyValueMode, Precision
from .geometry import Geometry
from .memory import MARGIN, VAE_DECODE, VAE_STATE, StageEstimate, estimate_decoding
from .world import WorldMemory


class Free(NamedTuple):
    """The bytes that are free on the device and in host memory before a run."""

    device: int
    host: int


@dataclass(frozen=True)
class RolloutWork:
    """The properties of a causal run that determine the memory of its chunks.

    size: the height and width of the latent.
    chunk: the number of latent frames per chunk.
    cached_frames: the number of latent frames in the KV cache.
    """

    config: ModelConfig
    size: tuple[int, int]
    chunk: int
    cached_frames: int
    precision: Precision
    guided: bool = False

    @property
    def tokens(self) -> int:
        """The number of tokens per latent frame."""
        return self.size[0] * self.size[1] // 4

    @property
    def local(self) -> ModelConfig:
        """The model's configuration with only one process's share of the attention heads."""
        return self.config.shared_by(self.precision.processes)

    def key_values(self, place: KeyValuePlace) -> KeyValueBytes:
        """Return the bytes of all cached keys and values stored in `place`."""
        held = key_value_bytes(self.local, self.cached_frames, self.tokens, self.precision.dtype, place, self.chunk)
        prompts = 2 if self.guided else 1
        return KeyValueBytes(prompts * held.device, held.working, prompts * held.host)

    @property
    def activations(self) -> int:
        """The bytes of the intermediate tensors of a chunk's forward."""
        keys = self.cached_frames * self.tokens
        return activation_bytes(self.config, self.chunk, *self.size, self.precision, batch=1, keys=keys)

    @property
    def recorded(self) -> int:
        """The bytes that recorded CUDA graphs keep allocated, in addition to those of `forward`."""
        tokens = self.chunk * self.tokens
        frames = frames_bytes(self.local.dim, self.cached_frames, tokens, self.precision.dtype)
        return self.activations + (frames if frames <= FRAMES_BYTES else 0)

    def forward(self, place: KeyValuePlace) -> int:
        """Return the bytes of working memory that a chunk's forward needs besides the weights and the KV cache. `place`
        describes where and how the KV cache is stored."""
        converts = self.precision.attention == "8bit" and not place.fp8
        copies = 2 * self.cached_frames * self.tokens * self.local.dim if converts else 0
        return self.activations + self.key_values(place).working + copies

    def camera_cache(self, mode: CameraCacheMode, room: int) -> int:
        """Return the byte limit of a chunk's camera cache: 0 for "off", the full size for "gpu". "auto" limits the size
        to `room` bytes."""
        if mode == "off":
            return 0
        branches = 2 if self.guided else 1
        whole = branches * camera_cache_bytes(self.config, self.chunk, *self.size, batch=1, dtype=self.precision.dtype)
        return whole if mode == "gpu" else max(0, min(whole, room))


def choose_world(work: RolloutWork, mode: KeyValueMode, device: torch.device, free: Free, weights: int) -> WorldMemory:
    """Return the memory settings of a causal run in ComfyUI: where keys and values are stored, the camera cache, and
    CUDA graphs. Raises InputError if no place that `mode` allows has room for the keys and values.

    free: the bytes that are free when the model's weights are unloaded.
    weights: the bytes of the model's weights.
    """
    places = key_value_places(mode, supports_fp8_cache(work.precision.attention, device, work.config))
    if device.type != "cuda":
        return WorldMemory(places[0], 0)
    needed = {place: work.key_values(place).device + work.forward(place) for place in places}
    fitting = [place for place in places if work.key_values(place).host <= free.host and needed[place] <= free.device]
    if not fitting:
        raise InputError(
            f"the GPU can have {free.device / 1e9:.1f} GB free and the host {free.host / 1e9:.1f} for pinning: too "
            f"little for keys and values of {work.cached_frames} latent frames with kv_cache {mode}; use a smaller "
            "window, a smaller video, or kv_cache auto"
        )
    whole = (place for place in fitting if needed[place] + weights <= free.device)
    away = (place for place in fitting if place.on_host)
    place = next(whole, None) or next(away, None) or min(fitting, key=needed.__getitem__)
    room = free.device - weights - needed[place] - work.recorded - MARGIN
    if room < 0 or not place.is_read_directly:
        return WorldMemory(place, 0)
    return WorldMemory(place, work.camera_cache("auto", room), graphs=True)


@dataclass(frozen=True)
class RolloutMemory:
    """A plan of where a causal run stores weights, keys and values, and caches.

    world: the settings for keys and values, camera cache and CUDA graphs.
    resident_blocks: the number of blocks whose weights stay on the GPU; None: all.
    park_decoder: whether the VAE decoder's state moves to host memory between chunks.
    decoded_blocks: the number of blocks that keep dequantized weights between forwards.
    """

    world: WorldMemory = WorldMemory(camera_cache_bytes=0)
    resident_blocks: int | None = None
    vae_tiling: bool = False
    park_decoder: bool = False
    decoded_blocks: int = 0

    @property
    def place(self) -> KeyValuePlace:
        return self.world.place


class DecoderSettings(NamedTuple):
    """The settings of the VAE decoder.

    elsewhere: whether the decoder runs on another GPU than the diffusion model.
    recorded: whether its kernels are recorded as a CUDA graph.
    """

    width: int
    half: bool = False
    elsewhere: bool = False
    recorded: bool = False


def converts_weights(checkpoint: Checkpoint, precision: Precision) -> bool:
    """Return whether each forward converts weights: the checkpoint is quantized, or matrix products run in 8 bits."""
    return bool(checkpoint.quantized) or precision.arithmetic in DTYPES


def estimate_rollout(work: RolloutWork, memory: RolloutMemory, weights: int, decoder: DecoderSettings) -> StageEstimate:
    """Return the estimated GPU memory of a causal run's chunks, without the camera cache. `weights` is in bytes."""
    place, processes = memory.place, work.precision.processes
    held, forward = work.key_values(place), work.forward(place)
    chunk = Geometry(8 * work.size[0], 8 * work.size[1], 4 * work.chunk)
    half = decoder.half and processes == 1
    vae = estimate_decoding(decoder.width, chunk, tiling=memory.vae_tiling, processes=processes, half=half)
    if decoder.elsewhere and processes == 1:
        vae = StageEstimate(vae.name, 0, 0)
    recorded = decoder.recorded and processes == 1
    state = 0 if memory.park_decoder else int(vae.work * (1 if recorded else VAE_STATE / VAE_DECODE))
    where = "in 8 bits " * (place.int8 or place.fp8)
    where += "in host memory" if place.on_host else "on the GPU"
    name = f"chunks, keys and values of {work.cached_frames} latent frames {where}"
    return StageEstimate(name, weights + vae.weights, held.device + max(forward + state, vae.work))


def available_host_memory() -> int:
    """Return the bytes of host memory available without swapping, or 2**62 without /proc/meminfo."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return 2**62
    line = next(line for line in meminfo.read_text(encoding="utf-8").splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024
