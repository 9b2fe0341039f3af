"""Memory of a causal run: where keys and values lie, which blocks stay on the GPU, how the VAE works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path

import torch

from ..errors import InputError
from ..loaders.offload import streamed_weights, weight_bytes
from ..model.attention_8bit import takes_operands
from ..model.config import ModelConfig
from ..model.kv_cache import HOST_SHARE, KeyValueBytes, KeyValuePlace, key_value_bytes, key_value_places
from ..model.memory import activation_bytes, camera_cache_bytes, decoded_bytes
from ..options import CHUNK, Arithmetic, AttentionMode
from ..pipeline.geometry import Geometry
from ..vae import vae_width
from .memory import MARGIN, VAE_DECODE, VAE_STATE, StageEstimate, estimate_vae
from .processes import ALONE, Processes
from .rollout_plan import RolloutPlan

PAGES_SHARE = 0.85
"""The share of the free host memory that pinned keys and values may take together with the file's pages that every
forward reads. Beyond it the disk would be read in every forward, so 8 bits are taken, if that helps."""

RECORDED_TOKENS = 2000
"""Processes that share a chunk, with no more tokens than this each, wait for Python. On H200s recorded kernels take
0.68 of the time with 1,170 tokens (480x832 on four); they gain nothing with 2,340 on two, or on one with any number."""


@dataclass(frozen=True)
class RolloutMemory:
    """Where a causal run keeps what: the `place` of keys and values; how many blocks' weights stay on the GPU (None:
    all); the bytes of the camera cache; the VAE in tiles, and its state in host memory between chunks. `graphs`: the
    blocks' kernels are recorded (see BlockGraphs), which takes a second forward's memory. So many `decoded_blocks` keep
    the decoded weights of their main layers."""

    place: KeyValuePlace = KeyValuePlace()
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
    then come the keys and values, then the model's blocks, then the camera cache. Where the GPU has room neither for
    all keys and values nor for all blocks, the weights of no block stay, and the keys and values of some blocks do: in
    host memory they are pinned, while weights are pages of the file, which the system may drop. Raises InputError where
    nothing fits."""
    mode, fp8 = plan.options.kv_cache, takes_operands(plan.options.attention, plan.device, plan.checkpoint.config)
    if plan.device.type != "cuda":
        resident, tiling = 0 if plan.options.shard else None, plan.options.vae_tiling
        place = KeyValuePlace(mode == "8bit" and not fp8, mode == "host", fp8)
        return RolloutMemory(place, resident_blocks=resident, vae_tiling=tiling)
    free_host = (available_host_memory() if free_host is None else free_host) // processes
    weights = cache(lambda resident: _weights(plan, resident, processes))
    pages = cache(lambda resident: _pages(plan, resident))
    best: RolloutMemory | None = None  # of those for which the disk is read in every forward
    for memory in _ways(plan, key_value_places(mode, fp8)):
        stage = _estimate(plan, memory, processes, weights(memory.resident_blocks))
        room = free - MARGIN - stage.total
        if room < 0 or (plan.options.vae_tiling and not memory.vae_tiling):
            continue
        kept = _with_what_is_left(plan, memory, room, processes)
        pinned = _held(plan, kept.place, processes).host
        if pinned > HOST_SHARE * free_host:
            continue
        if pinned + pages(kept.resident_blocks) // processes <= PAGES_SHARE * free_host:
            return kept
        best = best or kept
    if best is not None:
        return best
    window = "a smaller `window`"
    if plan.window == 0:
        window = "`window` 18 and `sink` 6, since without a window all frames are held"
    elsewhere = "" if mode == "auto" else ", or `kv_cache` auto"
    raise InputError(
        f"the GPU has {free / 1e9:.1f} GB free and the host {free_host / 1e9:.1f}: too little for keys and values of "
        f"{plan.held_frames} latent frames with `kv_cache` {mode}; use {window}, a smaller video{elsewhere}"
    )


def _ways(plan: RolloutPlan, places: Sequence[KeyValuePlace]) -> Iterator[RolloutMemory]:
    """What may be kept where, the best way first. Blocks that are streamed cost about as much time as a VAE in tiles
    does; but in fp32 the whole VAE takes the room of twice as many as in fp16."""
    options, exact_first = plan.options, sorted(places, key=attrgetter("eight_bit"))
    if options.shard or options.residency != "stream":
        whole = 0 if options.shard else None
        yield from (RolloutMemory(place, whole, park_decoder=park) for place in places for park in (False, True))
        yield from (RolloutMemory(place, whole, vae_tiling=True, park_decoder=True) for place in places)
    counts = {"auto": range(plan.checkpoint.config.num_layers - 1, -1, -1), "stream": range(1)}
    for tiles in (False, True) if plan.decodes_in_half else (True,):
        for place in exact_first:
            for resident in () if options.shard else counts.get(options.residency, ()):
                if not resident or not place.on_host or options.kv_cache == "host":
                    yield RolloutMemory(place, resident, tiles, True)


def _pages(plan: RolloutPlan, resident: int | None) -> int:
    """Bytes of the file that every forward reads."""
    if resident is None or plan.options.shard:
        return 0
    streamed = streamed_weights(plan.checkpoint, resident).values()
    return sum(entry.nbytes for names in streamed for entry in plan.checkpoint.entries(names))


def _with_what_is_left(plan: RolloutPlan, memory: RolloutMemory, room: int, processes: int) -> RolloutMemory:
    """With the camera cache and, where all else is on the GPU, recorded kernels if they gain something, and then, at
    twice the margin, decoded weights."""
    if memory.place.on_host and plan.options.kv_cache != "host":
        return _with_keys_and_values(plan, memory, room, processes)
    cache = _rollout_camera_cache(plan, room)
    geometry = plan.geometry
    few = CHUNK * geometry.lat_h * geometry.lat_w // 4 <= RECORDED_TOKENS * processes
    whole = memory.resident_blocks is None and memory.place.in_place
    recorded = activation_bytes(
        plan.checkpoint.config, CHUNK, geometry.lat_h, geometry.lat_w, batch=1, dtype=plan.dtype, processes=processes,
        arithmetic=plan.options.arithmetic,
    )  # fmt: skip
    torchs = plan.options.attention != "8bit"  # nobody has tried to record another package's kernel
    graphs = processes > 1 and few and whole and torchs and recorded <= room - cache
    room -= cache + graphs * recorded + MARGIN
    decoded = _decoded_blocks(plan, room) if whole else 0
    return replace(memory, camera_cache_bytes=cache, graphs=graphs, decoded_blocks=decoded)


def _with_keys_and_values(plan: RolloutPlan, memory: RolloutMemory, room: int, processes: int) -> RolloutMemory:
    """With the keys and values of as many blocks as there is room for on the GPU. Where no weights of blocks stay, they
    come before a camera cache that nobody asked for."""
    none, one = (_held(plan, memory.place._replace(device_blocks=count), processes).device for count in (0, 1))
    first = memory.resident_blocks is None or plan.options.camera_cache == "gpu"
    cache = _rollout_camera_cache(plan, room) if first else 0
    blocks = min(plan.checkpoint.config.num_layers, max(0, room - cache) // (one - none))
    cache = cache or _rollout_camera_cache(plan, room - blocks * (one - none))
    return replace(memory, camera_cache_bytes=cache, place=memory.place._replace(device_blocks=blocks))


def _decoded_blocks(plan: RolloutPlan, room: int) -> int:
    """Blocks whose decoded weights have room. Decoding takes a fortieth of a chunk on an H200, a tenth where four share
    it."""
    config = plan.checkpoint.config
    block = decoded_bytes(config, plan.dtype, plan.options.arithmetic)
    return min(config.num_layers, max(0, room) // block) if plan.checkpoint.four_bit else 0


def _weights(plan: RolloutPlan, resident: int | None, processes: int) -> int:
    return weight_bytes(plan.checkpoint, resident, processes if plan.options.shard else 1)


def _held(plan: RolloutPlan, place: KeyValuePlace, processes: int) -> KeyValueBytes:
    tokens = plan.geometry.lat_h * plan.geometry.lat_w // 4
    return key_value_bytes(_share(plan.checkpoint.config, processes), plan.held_frames, tokens, plan.dtype, place)


def _share(config: ModelConfig, processes: int) -> ModelConfig:
    """The model as the attention of one of so many processes sees it."""
    return replace(config, dim=config.dim // processes, num_heads=config.num_heads // processes)


def _estimate(plan: RolloutPlan, memory: RolloutMemory, processes: int, weights: int) -> StageEstimate:
    return estimate_rollout(
        plan.checkpoint.config, plan.geometry, plan.dtype, memory,
        weights=weights, held_frames=plan.held_frames, vae_width=vae_width(plan.vae), processes=processes,
        arithmetic=plan.options.arithmetic, attention=plan.options.attention, vae_half=plan.decodes_in_half,
    )[0]  # fmt: skip


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
    tokens = cells[0] * cells[1] // 4
    local = _share(config, processes)
    held = key_value_bytes(local, held_frames, tokens, dtype, memory.place)
    forward = activation_bytes(
        config, CHUNK, *cells, batch=1, dtype=dtype, processes=processes, arithmetic=arithmetic, attention=attention
    )
    forward += held.working
    if attention == "8bit" and not memory.place.fp8:
        forward += 2 * held_frames * tokens * local.dim  # a block's keys and values in 8 bits
    chunk = replace(geometry, frames=4 * CHUNK)
    half = vae_half and (processes == 1 or memory.vae_tiling)
    vae = estimate_vae(vae_width, chunk, tiling=memory.vae_tiling, processes=processes, half=half)[1]
    decoder = 0 if memory.park_decoder else int(vae.work * VAE_STATE / VAE_DECODE)
    where = "in 8 bits " * (memory.place.eight_bit or memory.place.fp8)
    where += "in host memory" if memory.place.on_host else "on the GPU"
    name = f"chunks, keys and values of {held_frames} latent frames {where}"
    return StageEstimate(name, weights + vae.weights, held.device + max(forward + decoder, vae.work)), held.host


def _rollout_camera_cache(plan: RolloutPlan, room: int) -> int:
    if plan.options.camera_cache == "off":
        return 0
    geometry = plan.geometry
    whole = camera_cache_bytes(plan.checkpoint.config, CHUNK, geometry.lat_h, geometry.lat_w, batch=1, dtype=plan.dtype)
    return whole if plan.options.camera_cache == "gpu" else min(whole, room)


def available_host_memory() -> int:
    """Bytes of host memory that can be had without swapping; without limit where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return 2**62
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024
