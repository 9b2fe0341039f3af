"""Memory of a causal run: where keys and values lie, which blocks stay on the GPU, how the VAE works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import InputError
from ..geometry import CHUNK, Geometry
from ..loaders.offload import weight_bytes
from ..model.config import ModelConfig
from ..model.eight_bit_attention import takes_operands
from ..model.kv_cache import HOST_SHARE, key_value_bytes, key_value_places
from ..model.memory import activation_bytes, camera_cache_bytes, decoded_bytes
from ..options import Arithmetic, AttentionMode
from ..vae import vae_width
from .memory import MARGIN, VAE_DECODE, VAE_STATE, StageEstimate, estimate_vae
from .processes import ALONE, Processes
from .rollout_plan import RolloutPlan

RECORDED_TOKENS = 2000
"""Processes that share a chunk, with no more tokens than this each, wait for Python. On H200s recorded kernels take
0.68 of the time with 1,170 tokens (480x832 on four); they gain nothing with 2,340 on two, or on one with any number."""


@dataclass(frozen=True)
class RolloutMemory:
    """Where a causal run keeps what: keys and values in 8 bits, in host memory, as attention in 8 bits takes them; how
    many blocks stay on the GPU (None: all); the bytes of the camera cache; the VAE in tiles, and its state in host
    memory between chunks. `graphs`: the blocks' kernels are recorded (see BlockGraphs), which takes a second forward's
    memory. So many `decoded_blocks` keep the decoded weights of their main layers."""

    eight_bit: bool = False
    on_host: bool = False
    fp8: bool = False
    resident_blocks: int | None = None
    vae_tiling: bool = False
    park_decoder: bool = False
    camera_cache_bytes: int = 0
    graphs: bool = False
    decoded_blocks: int = 0

    def decoding(self, processes: Processes) -> Processes:
        """The processes that divide the frames among them. Tiles are for the first one alone."""
        return ALONE if self.vae_tiling else processes


def choose_rollout_memory(
    plan: RolloutPlan, free: int, free_host: int | None = None, processes: int = 1
) -> RolloutMemory:
    """What a causal run keeps where, with so many bytes free on its device and in host memory. Each of `processes` has
    its share of the keys and values, and of the host's memory.

    The VAE stays whole if it can, since tiles leave seams, with its state in host memory between chunks if need be;
    then come the keys and values, then the model's blocks. What is left goes to the camera cache. Raises InputError
    where nothing fits."""
    mode, fp8 = plan.options.kv_cache, takes_operands(plan.options.attention, plan.device, plan.checkpoint.config)
    if plan.device.type != "cuda":
        resident, tiling = 0 if plan.options.shard else None, plan.options.vae_tiling
        return RolloutMemory(mode == "8bit", mode == "host", fp8, resident_blocks=resident, vae_tiling=tiling)
    free_host = (available_host_memory() if free_host is None else free_host) // processes
    asked, shard = plan.options.residency, plan.options.shard
    layers = plan.checkpoint.config.num_layers
    blocks: list[int | None] = [None, *range(layers - 1, -1, -1)]
    if asked != "auto" or shard:
        blocks = [0] if asked == "stream" or shard else [None]
    for resident, tiles, park in _ways(0 if shard else None, layers, plan.decodes_in_half):
        if resident not in blocks or (plan.options.vae_tiling and not tiles):
            continue
        weights = weight_bytes(plan.checkpoint, resident, processes if shard else 1)
        for place in key_value_places(mode, fp8):
            memory = RolloutMemory(*place, resident_blocks=resident, vae_tiling=tiles, park_decoder=park)
            stage, host = _estimate(plan, memory, processes, weights)
            needed = stage.total
            if needed + MARGIN <= free and host <= HOST_SHARE * free_host:
                return _with_what_is_left(plan, memory, free - needed - MARGIN, processes)
    elsewhere = "" if mode == "auto" else ", or `kv_cache` auto"
    raise InputError(
        f"the GPU has {free / 1e9:.1f} GB free and the host {free_host / 1e9:.1f}: too little for keys and values of "
        f"{plan.held_frames} latent frames with `kv_cache` {mode}; use a smaller `window`, a smaller video{elsewhere}"
    )


def _ways(most: int | None, layers: int, half: bool) -> Iterator[tuple[int | None, bool, bool]]:
    """Resident blocks, the VAE in tiles, its state in host memory: the best way first. Blocks that are streamed cost
    about as much time as tiles do; but in fp32 the whole VAE takes the room of twice as many as in `half` of it."""
    yield from ((most, False, False), (most, False, True), (most, True, True))
    for tiles in (False, True) if half else (True,):
        yield from ((count, tiles, True) for count in range(layers - 1, -1, -1))


def _with_what_is_left(plan: RolloutPlan, memory: RolloutMemory, room: int, processes: int) -> RolloutMemory:
    """With the camera cache and, where all else is on the GPU, recorded kernels if they gain something, and then, at
    twice the margin, decoded weights."""
    cache = _rollout_camera_cache(plan, room)
    geometry = plan.geometry
    few = CHUNK * geometry.lat_h * geometry.lat_w // 4 <= RECORDED_TOKENS * processes
    whole = memory.resident_blocks is None and not memory.on_host and not memory.eight_bit
    recorded = activation_bytes(
        plan.checkpoint.config, CHUNK, geometry.lat_h, geometry.lat_w, batch=1, dtype=plan.dtype, processes=processes,
        arithmetic=plan.options.arithmetic,
    )  # fmt: skip
    torchs = plan.options.attention != "8bit"  # nobody has tried to record another package's kernel
    graphs = processes > 1 and few and whole and torchs and recorded <= room - cache
    room -= cache + graphs * recorded + MARGIN
    decoded = _decoded_blocks(plan, room) if whole else 0
    return replace(memory, camera_cache_bytes=cache, graphs=graphs, decoded_blocks=decoded)


def _decoded_blocks(plan: RolloutPlan, room: int) -> int:
    """Blocks whose decoded weights have room. Decoding takes a fortieth of a chunk on an H200, a tenth where four share
    it."""
    config = plan.checkpoint.config
    block = decoded_bytes(config, plan.dtype, plan.options.arithmetic)
    return min(config.num_layers, max(0, room) // block) if plan.checkpoint.four_bit else 0


def _estimate(plan: RolloutPlan, memory: RolloutMemory, processes: int, weights: int) -> tuple[StageEstimate, int]:
    return estimate_rollout(
        plan.checkpoint.config, plan.geometry, plan.dtype, memory,
        weights=weights, held_frames=plan.held_frames, vae_width=vae_width(plan.vae), processes=processes,
        arithmetic=plan.options.arithmetic, attention=plan.options.attention, vae_half=plan.decodes_in_half,
    )  # fmt: skip


def estimate_rollout(
    config: ModelConfig,
    geometry: Geometry,
    dtype: torch.dtype,
    memory: RolloutMemory,
    *,
    weights: int,
    held_frames: int,
    vae_width: int,
    processes: int = 1,
    arithmetic: Arithmetic = "auto",
    attention: AttentionMode = "auto",
    vae_half: bool = False,
) -> tuple[StageEstimate, int]:
    """A causal run's chunks with keys and values of so many latent frames: `weights` (`offload.weight_bytes`), and keys
    and values, the VAE and a forward's work, without the camera cache; and the bytes of host memory that are pinned.
    `processes` share tokens, heads and, but in tiles, the frames. The bytes are those of the first. `vae_half`: one
    process decodes in fp16."""
    cells = geometry.lat_h, geometry.lat_w
    place = {"eight_bit": memory.eight_bit, "on_host": memory.on_host, "fp8": memory.fp8}
    local = replace(config, dim=config.dim // processes, num_heads=config.num_heads // processes)
    tokens = held_frames * cells[0] * cells[1] // 4
    held = key_value_bytes(local, tokens, dtype, **place)
    forward = activation_bytes(
        config, CHUNK, *cells, batch=1, dtype=dtype, processes=processes, arithmetic=arithmetic, attention=attention
    )
    forward += held.working
    if attention == "8bit" and not memory.fp8:
        forward += 2 * tokens * local.dim  # a block's keys and values in 8 bits
    chunk = replace(geometry, frames=4 * CHUNK)
    half = vae_half and (processes == 1 or memory.vae_tiling)
    vae = estimate_vae(vae_width, chunk, tiling=memory.vae_tiling, processes=processes, half=half)[1]
    decoder = 0 if memory.park_decoder else int(vae.work * VAE_STATE / VAE_DECODE)
    where = f"keys and values of {held_frames} latent frames {'in 8 bits ' * (memory.eight_bit or memory.fp8)}"
    name = f"chunks, {where}{'in host memory' if memory.on_host else 'on the GPU'}"
    return StageEstimate(name, weights + vae.weights, held.device + max(forward + decoder, vae.work)), held.host


def _rollout_camera_cache(plan: RolloutPlan, room: int) -> int:
    if plan.options.camera_cache == "off":
        return 0
    geometry = plan.geometry
    whole = camera_cache_bytes(
        plan.checkpoint.config, CHUNK, geometry.lat_h, geometry.lat_w, batch=1, dtype=plan.dtype
    )
    return whole if plan.options.camera_cache == "gpu" else min(whole, room)


def available_host_memory() -> int:
    """Bytes of host memory that can be had without swapping; without limit where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return 2**62
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024
