"""Memory of a run: what each stage needs, computed from file headers, and what of the base model stays on the GPU."""

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
from ..vae.stripes import HALO
from .geometry import Geometry
from .two_experts import ONE_PROCESS, ParallelGroups

log = logging.getLogger(__name__)

MARGIN = 1_000_000_000
"""Bytes left free beside the estimate: cuDNN and cuBLAS workspaces, fragments, the display."""

VAE_DECODE, VAE_ENCODE, VAE_CONVOLUTION = 128.5, 85, 16
"""Bytes a pixel of one frame and unit of VAE width, fp32: the highest sum of living tensors while the network runs on
meta tensors (the state between frames is 98.5 and 58.4 of it, so none of them depends on the number of frames), and
room for cuDNN to copy a convolution's four frames of operands. The decoder of vae/pooled.py does without that room: it
stays a seventh under all this, and its state, 107 with a free slot a pool, under what VAE_STATE's share comes to. Once
it is recorded, 129 to 143 stay, with what torch and cuBLAS round up."""
VAE_STATE = 98.5
"""Of VAE_DECODE what stays between frames."""
VAE_WEIGHTS = 13_770
"""Parameters of the VAE per square of its width: 126.9 million at 96."""
TILE_PIXELS = 256 * 256
TEXT_TOKENS = 512


@dataclass(frozen=True)
class StageEstimate:
    """Bytes on the device: `weights`, and `work`, the peak of everything else."""

    name: str
    weights: int
    work: int

    @property
    def total(self) -> int:
        return self.weights + self.work


def estimate_text(config: UMT5Config, dtype: torch.dtype) -> StageEstimate:
    """Two prompts of 512 tokens through the text encoder. Two of its bf16 blocks are on the device at a time."""
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
    """The steps, with all `checkpoints` on the device at once and `resident_blocks` blocks of each (None: all).
    `holders` divide the blocks that are not resident; the bytes are those of one process."""
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
    """Bytes of a camera cache: what an expert's camera layers compute, kept between its steps."""
    return camera_cache_bytes(checkpoint.config, geometry.lat_f, geometry.lat_h, geometry.lat_w, dtype=dtype)


def estimate_vae(
    width: int, geometry: Geometry, *, tiling: bool = False, processes: int = 1, half: bool = False
) -> tuple[StageEstimate, StageEstimate]:
    """Encoding in fp32, and decoding in fp32 or in `half` of it, with a VAE of that width (96 in the package). Where
    several `processes` decode a stripe each, one's bytes; a stripe is counted with all that its convolutions reach
    beside it."""
    weights = 4 * VAE_WEIGHTS * width**2
    frame = geometry.height * geometry.width
    pixels = min(frame, TILE_PIXELS) if tiling else frame
    encode, decode = (int((each + VAE_CONVOLUTION) * width * pixels) for each in (VAE_ENCODE, VAE_DECODE))
    if processes > 1 and not tiling:
        decode = int(decode * min(1, 1 / processes + max(HALO.values()) / max(geometry.lat_h, geometry.lat_w)))
    if tiling:  # of every frame the lower quarter of a row of tiles is kept, and the right quarter of one tile
        decode += 12 * geometry.frames * 64 * (geometry.width * 4 // 3 + 256)
    names = ("VAE encode, tiled", "VAE decode, tiled") if tiling else ("VAE encode", "VAE decode")
    if half:
        return StageEstimate(names[0], weights, encode), StageEstimate(f"{names[1]}, fp16", weights // 2, decode // 2)
    return StageEstimate(names[0], weights, encode), StageEstimate(names[1], weights, decode)


def free_memory(device: torch.device) -> int:
    """Bytes that torch can still allocate: free ones, its own unused reserve, no more than its limit for this process
    (set_per_process_memory_fraction). On the CPU, where weights are mapped, a number larger than any need."""
    if device.type != "cuda":
        return 2**62
    index = torch.cuda.current_device() if device.index is None else device.index
    used = torch.cuda.memory_allocated(index)
    free, total = torch.cuda.mem_get_info(index)
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _index: 1.0)(index)  # older torch lacks it
    return min(free + torch.cuda.memory_reserved(index) - used, int(share * total) - used)


@dataclass(frozen=True)
class Residency:
    """What stays on the GPU during the steps: `both` experts or one at a time, a camera cache of so many bytes, and
    `resident_blocks` of an expert's blocks (None: all). The other blocks are read from the file in every step, or
    gathered from the processes that divide them."""

    both: bool = False
    camera_cache_bytes: int = 0
    resident_blocks: int | None = None


@dataclass(frozen=True)
class MemoryWishes:
    """What the user asks of memory. `shard`: several processes divide the weights among them."""

    residency: ResidencyMode = "auto"
    camera_cache: CameraCacheMode = "auto"
    kv_cache: KeyValueMode = "auto"
    vae_tiling: bool = False
    shard: bool = False


@dataclass(frozen=True)
class SamplingWork:
    """The base model's steps, as far as memory depends on them; `together`: who computes a step."""

    experts: PerExpert[Checkpoint]
    geometry: Geometry
    precision: Precision
    camera: bool
    guided: bool
    together: ParallelGroups = ONE_PROCESS

    def needed(self, experts: int, resident_blocks: int | None = None) -> int:
        """Bytes with so many experts on the device, the larger first, and so many blocks of each."""
        weights = self.together.weights
        larger_first = sorted(self.experts, key=lambda checkpoint: -checkpoint.nbytes)
        steps = estimate_sampling(
            larger_first[:experts],
            self.geometry,
            replace(self.precision, processes=self.together.size),
            camera=self.camera,
            guided=self.guided and self.together.guidance is None,
            resident_blocks=resident_blocks,
            holders=1 if weights is None else weights.size(),
        )
        return steps.total + MARGIN

    def camera_cache(self, mode: CameraCacheMode, room: int) -> int:
        """Bytes of a camera cache in so much room."""
        if not self.camera or mode == "off":
            return 0
        whole = estimate_camera_cache(self.experts.high, self.geometry, self.precision.dtype)
        whole = -(-whole // self.together.size)
        return whole if mode == "gpu" else min(whole, max(0, room))


def choose_residency(work: SamplingWork, wishes: MemoryWishes, device: torch.device, free: int) -> Residency:
    """What stays when `free` bytes of the device are free before the steps.

    The mode "auto" gives memory to the camera cache first, as much of it as fits: the cache saves time in every step,
    a second resident expert only the wait at the switch. Where one expert does not fit, as many of its blocks stay as
    do. On the CPU weights are mapped, so that residency and cache gain nothing.
    """
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
            "An expert does not fit into the GPU beside its work: %d of its %d blocks stay there, the others "
            "come from the file in every step.",
            resident,
            layers,
        )
        return Residency(resident_blocks=resident)
    cache = work.camera_cache(wishes.camera_cache, free - (two if mode == "both" else one))
    return Residency(mode == "both" or (mode == "auto" and two + cache <= free), cache)
