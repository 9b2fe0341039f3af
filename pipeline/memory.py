"""Estimates of a run's GPU memory, and the choice of the base model's weights that stay there."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..loaders import Checkpoint
from ..loaders.offload import weight_bytes
from ..model.memory import activation_bytes, camera_cache_bytes
from ..options import CameraCacheMode, KeyValueMode, PerExpert, Precision, ResidencyMode
from ..text.weights import UMT5Config
from ..vae.splitting import HALO
from .geometry import Geometry
from .two_experts import ONE_PROCESS, ParallelGroups

log = logging.getLogger(__name__)

MARGIN = 1_000_000_000
"""The bytes left free in addition to an estimate, for workspaces and fragmentation."""

# counted on meta tensors, with the state from frame to frame; cuDNN copies four fp32 frames of `width` channels
VAE_DECODE, VAE_ENCODE, VAE_CONVOLUTION = 128.5, 85, 16
"""Factors of the VAE's peak memory in fp32. A factor is the bytes per pixel of a frame, per base channel.

VAE_DECODE, VAE_ENCODE: the tensors while decoding and while encoding.
VAE_CONVOLUTION: the copy that cuDNN adds for a convolution.
"""
VAE_STATE = 98.5
"""The size, in fp32, of the decoder's tensors that stay allocated from one frame to the next: bytes per pixel of a
frame, per base channel. VAE_DECODE, the peak while decoding, includes them."""
VAE_WEIGHTS = 13_770
"""A factor for estimating the VAE's size. A VAE with c base channels has about VAE_WEIGHTS * c**2 parameters."""
TILE_PIXELS = 256 * 256
TEXT_TOKENS = 512


@dataclass(frozen=True)
class StageEstimate:
    """The estimated bytes on the device in one stage: the weights, and `work`, the peak of all other tensors."""

    name: str
    weights: int
    work: int

    @property
    def total(self) -> int:
        return self.weights + self.work


def estimate_text(config: UMT5Config, dtype: torch.dtype) -> StageEstimate:
    """Return the memory estimate for encoding two prompts with streamed weights. `dtype` is the dtype of the matrix
    products."""
    block = sum(math.prod(shape) for shape in config.block_shapes().values()) * 2
    scores = 2 * config.num_heads * TEXT_TOKENS**2 * 4
    streams = 6 * TEXT_TOKENS * config.dim * 4 + 3 * TEXT_TOKENS * config.ffn_dim * dtype.itemsize
    return StageEstimate("text", 2 * block, scores + streams)


def estimate_sampling(
    checkpoints: Sequence[Checkpoint],
    geometry: Geometry,
    precision: Precision,
    *,
    camera: bool,
    guided: bool = True,
    resident_blocks: int | None = None,
    holders: int = 1,
) -> StageEstimate:
    """Return the memory estimate of one process's denoising steps.

    checkpoints: the experts on the device at the same time.
    guided: whether prompt and negative prompt run as one batch.
    resident_blocks: the blocks of each model that stay on the device; None: all.
    holders: the number of processes that shard the streamed blocks.
    """
    cells = geometry.lat_f, geometry.lat_h, geometry.lat_w
    config, rows = checkpoints[0].config, 2 if guided else 1
    step = activation_bytes(config, *cells, precision, batch=rows, camera=camera)
    resident = "one expert" if len(checkpoints) == 1 else "both experts"
    if resident_blocks is not None:
        resident = f"{resident_blocks} of {config.num_layers} blocks"
    inputs = 4 * geometry.tokens * 4 * (3 * 16 + 20 + rows * config.in_dim + camera * config.control_channels)
    weights = sum(weight_bytes(checkpoint, resident_blocks, holders) for checkpoint in checkpoints)
    return StageEstimate(f"steps, {resident} resident", weights, step + inputs)


def estimate_camera_cache(checkpoint: Checkpoint, geometry: Geometry, dtype: torch.dtype) -> int:
    """Return the bytes of an expert's full camera cache with tensors of `dtype`."""
    return camera_cache_bytes(checkpoint.config, geometry.lat_f, geometry.lat_h, geometry.lat_w, dtype=dtype)


def estimate_encoding(channels: int, geometry: Geometry, *, tiling: bool = False) -> StageEstimate:
    """Return the memory estimate of a VAE's encoder, with `channels` base channels, in fp32."""
    work = _vae_work(VAE_ENCODE, channels, geometry, tiling)
    return StageEstimate(f"VAE encode{', tiled' * tiling}", 4 * VAE_WEIGHTS * channels**2, work)


def estimate_decoding(
    channels: int, geometry: Geometry, *, tiling: bool = False, processes: int = 1, half: bool = False
) -> StageEstimate:
    """Return the memory estimate of a VAE's decoder in one process.

    channels: the number of base channels.
    processes: the number of processes that split each frame; ignored with `tiling`.
    half: whether the decoder runs in fp16, else in fp32.
    """
    decode = _vae_work(VAE_DECODE, channels, geometry, tiling)
    if processes > 1 and not tiling:
        decode = int(decode * min(1, 1 / processes + max(HALO.values()) / max(geometry.lat_h, geometry.lat_w)))
    if tiling:  # the lower quarter of a row of tiles and the right quarter of one tile are kept for every frame
        decode += 12 * geometry.frames * 64 * (geometry.width * 4 // 3 + 256)
    name, weights = f"VAE decode{', tiled' * tiling}", 4 * VAE_WEIGHTS * channels**2
    return StageEstimate(f"{name}, fp16", weights // 2, decode // 2) if half else StageEstimate(name, weights, decode)


def _vae_work(per_pixel: float, channels: int, geometry: Geometry, tiling: bool) -> int:
    frame = geometry.height * geometry.width
    return int((per_pixel + VAE_CONVOLUTION) * channels * (min(frame, TILE_PIXELS) if tiling else frame))


def free_memory(device: torch.device) -> int:
    """Return the bytes that torch can still allocate on a CUDA device, or 2**62 for another device."""
    if device.type != "cuda":
        return 2**62
    index = torch.cuda.current_device() if device.index is None else device.index
    used = torch.cuda.memory_allocated(index)
    free, total = torch.cuda.mem_get_info(index)
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _index: 1.0)(index)  # older torch lacks it
    return min(free + torch.cuda.memory_reserved(index) - used, int(share * total) - used)


@dataclass(frozen=True)
class Residency:
    """The weights and caches that stay on the GPU during the denoising steps.

    both: whether both experts stay, instead of one at a time.
    camera_cache_bytes: the limit of the camera cache; 0: no cache.
    resident_blocks: the number of an expert's blocks that stay; None: all.
    """

    both: bool = False
    camera_cache_bytes: int = 0
    resident_blocks: int | None = None


@dataclass(frozen=True)
class MemoryWishes:
    """The user's options for memory, named as in GenerateOptions.

    kv_cache: the allowed places of keys and values (see `key_value_places`).
    shard: whether several processes split the weights.
    """

    residency: ResidencyMode = "auto"
    camera_cache: CameraCacheMode = "auto"
    kv_cache: KeyValueMode = "auto"
    vae_tiling: bool = False
    shard: bool = False


@dataclass(frozen=True)
class SamplingWork:
    """The properties of the base model's denoising steps that determine their memory."""

    experts: PerExpert[Checkpoint]
    geometry: Geometry
    precision: Precision
    camera: bool
    guided: bool
    together: ParallelGroups = ONE_PROCESS

    def needed(self, experts: int, resident_blocks: int | None = None) -> int:
        """Return the bytes that the denoising steps need in one process, including MARGIN. `experts`, 1 or 2, is the
        number of models on the device at once. `resident_blocks` is the number of each model's blocks there; None:
        all."""
        weights = self.together.weights
        larger_first = sorted(self.experts, key=lambda checkpoint: -checkpoint.nbytes)
        steps = estimate_sampling(
            larger_first[:experts],
            self.geometry,
            replace(self.precision, processes=self.together.sequence_size),
            camera=self.camera,
            guided=self.guided and self.together.guidance is None,
            resident_blocks=resident_blocks,
            holders=1 if weights is None else weights.size(),
        )
        return steps.total + MARGIN

    def camera_cache(self, mode: CameraCacheMode, room: int) -> int:
        """Return the byte limit of one process's camera cache. "auto" caches as much as fits into `room` bytes."""
        if not self.camera or mode == "off":
            return 0
        whole = estimate_camera_cache(self.experts.high, self.geometry, self.precision.dtype)
        whole = -(-whole // self.together.sequence_size)
        return whole if mode == "gpu" else min(whole, max(0, room))


def choose_residency(work: SamplingWork, wishes: MemoryWishes, device: torch.device, free: int) -> Residency:
    """Choose the weights and the camera cache's size to keep on the GPU, by the user's memory options and the `free`
    bytes before the denoising steps."""
    mode, on_gpu = wishes.residency, device.type == "cuda"
    if work.together.weights is not None:
        cache = work.camera_cache(wishes.camera_cache, free - work.needed(1, 0)) if on_gpu else 0
        return Residency(camera_cache_bytes=cache, resident_blocks=0)
    if mode == "stream":
        return Residency(resident_blocks=0)
    if not on_gpu:
        return Residency(both=mode == "both")
    one, two = (work.needed(count) for count in (1, 2))
    if mode == "auto" and one > free:
        layers = work.experts.high.config.num_layers
        resident = next((count for count in range(layers - 1, 0, -1) if work.needed(1, count) <= free), 0)
        log.warning(
            "An expert does not fit into the GPU next to its work: %d of its %d blocks stay there, the others "
            "come from the file in every step.",
            resident,
            layers,
        )
        return Residency(resident_blocks=resident)
    cache = work.camera_cache(wishes.camera_cache, free - (two if mode == "both" else one))
    return Residency(mode == "both" or (mode == "auto" and two + cache <= free), cache)
