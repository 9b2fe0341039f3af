"""The command's choice of GPU or host memory for a causal run's weights, keys and values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter

import torch

from ..errors import InputError
from ..loaders import Checkpoint
from ..loaders.offload import streamed_weights, weight_bytes
from ..model.attention.choose_8bit import supports_fp8_cache
from ..model.kv.place import HOST_SHARE, KeyValuePlace, key_value_places
from ..model.memory import decoded_bytes
from .memory import MARGIN, MemoryWishes
from .rollout_memory import DecoderSettings, Free, RolloutMemory, RolloutWork, converts_weights, estimate_rollout
from .world import WorldMemory

PAGES_SHARE = 0.85
"""The maximum fraction of free host memory for pinned keys and values plus the page cache of streamed weights."""


@dataclass(frozen=True)
class RolloutPlanner:
    """A planner that chooses where a causal run stores weights, keys and values, and caches."""

    work: RolloutWork
    checkpoint: Checkpoint
    decoder: DecoderSettings
    wishes: MemoryWishes
    device: torch.device

    def choose(self, free: Free, whole_video: bool = False) -> RolloutMemory:
        """Return the most preferred memory plan that fits into `free` memory. Raises InputError if none fits.
        `whole_video` means that no attention window is set; the error then suggests one."""
        wishes, processes = self.wishes, self.work.precision.processes
        weights = cache(lambda resident: weight_bytes(self.checkpoint, resident, processes if wishes.shard else 1))
        pages = cache(self._pages)
        fp8 = supports_fp8_cache(self.work.precision.attention, self.device, self.checkpoint.config)
        places = key_value_places(wishes.kv_cache, fp8)
        if self.device.type != "cuda":
            place = KeyValuePlace(wishes.kv_cache == "8bit" and not fp8, wishes.kv_cache == "host", fp8)
            resident = 0 if wishes.shard else None
            return RolloutMemory(WorldMemory(place, 0), resident_blocks=resident, vae_tiling=wishes.vae_tiling)
        free_host = free.host // processes
        best: RolloutMemory | None = None  # the best of the choices that read the disk in every forward
        for memory in self._choices(places):
            stage = estimate_rollout(self.work, memory, weights(memory.resident_blocks), self.decoder)
            room = free.device - MARGIN - stage.total
            if room < 0 or (wishes.vae_tiling and not memory.vae_tiling):
                continue
            kept = self._use_remaining(memory, room)
            pinned = self.work.key_values(kept.place).host
            if pinned > HOST_SHARE * free_host:
                continue
            if pinned + pages(kept.resident_blocks) // processes <= PAGES_SHARE * free_host:
                return kept
            best = best or kept
        if best is not None:
            return best
        window = "a smaller `window`"
        if whole_video:
            window = "`window` 18 and `sink` 6, since without a window all frames are held"
        elsewhere = "" if wishes.kv_cache == "auto" else ", or `kv_cache` auto"
        raise InputError(
            f"the GPU has {free.device / 1e9:.1f} GB free and the host {free_host / 1e9:.1f}: too little for keys and "
            f"values of {self.work.cached_frames} latent frames with `kv_cache` {wishes.kv_cache}; use {window}, "
            f"a smaller video{elsewhere}"
        )

    def _choices(self, places: Sequence[KeyValuePlace]) -> Iterator[RolloutMemory]:
        """Yield the storage choices in the order of preference, with keys and values in `places`."""
        wishes = self.wishes
        places, exact_first = list(places), sorted(places, key=attrgetter("int8"))
        if wishes.shard or wishes.residency != "stream":
            whole = 0 if wishes.shard else None
            for place, park in ((place, park) for place in places for park in (False, True)):
                yield RolloutMemory(WorldMemory(place, 0), whole, park_decoder=park)
            for place in places:
                yield RolloutMemory(WorldMemory(place, 0), whole, vae_tiling=True, park_decoder=True)
        counts = {"auto": range(self.checkpoint.config.num_layers - 1, -1, -1), "stream": range(1)}
        # in fp32 only tiles: without tiles the VAE takes the memory of further blocks, at about the same cost in time
        for tiles in (False, True) if self.decoder.half else (True,):
            for place in exact_first:
                for resident in () if wishes.shard else counts.get(wishes.residency, ()):
                    if not resident or not place.on_host or wishes.kv_cache == "host":
                        yield RolloutMemory(WorldMemory(place, 0), resident, tiles, True)

    def _pages(self, resident: int | None) -> int:
        """Return how many bytes of the weight file every forward reads again: those of all except `resident` blocks.
        Return 0 if `resident` is None (all blocks) or the processes shard the weights."""
        if resident is None or self.wishes.shard:
            return 0
        streamed = streamed_weights(self.checkpoint, resident).values()
        return sum(entry.file_bytes for names in streamed for entry in self.checkpoint.entries(names))

    def _use_remaining(self, memory: RolloutMemory, room: int) -> RolloutMemory:
        """Return a copy of the plan `memory` that spends up to `room` bytes on a camera cache, CUDA graphs, dequantized
        weights, or keys and values."""
        if memory.place.on_host and self.wishes.kv_cache != "host":
            return self._keep_keys_and_values(memory, room)
        work = self.work
        cache = work.camera_cache(self.wishes.camera_cache, room)
        whole = memory.resident_blocks is None and memory.place.is_read_directly
        graphs = whole and work.recorded <= room - cache
        room -= cache + graphs * work.recorded + MARGIN
        decoded = 0
        if whole and converts_weights(self.checkpoint, work.precision):
            # decoded weights save a fortieth of a chunk's time, a tenth where four processes share it
            config, precision = self.checkpoint.config, work.precision
            block = decoded_bytes(config, precision.dtype, precision.arithmetic)
            decoded = min(config.num_layers, max(0, room) // block)
        world = WorldMemory(memory.place, cache, graphs)
        return replace(memory, world=world, decoded_blocks=decoded)

    def _keep_keys_and_values(self, memory: RolloutMemory, room: int) -> RolloutMemory:
        """Return a copy of the plan `memory` that spends up to `room` bytes of GPU memory on a camera cache and on the
        keys and values of as many blocks as fit."""
        work, mode, place = self.work, self.wishes.camera_cache, memory.place
        none, one = (work.key_values(place._replace(device_blocks=count)).device for count in (0, 1))
        first = memory.resident_blocks is None or mode == "gpu"
        cache = work.camera_cache(mode, room) if first else 0
        blocks = min(work.config.num_layers, max(0, room - cache) // (one - none))
        cache = cache or work.camera_cache(mode, room - blocks * (one - none))
        return replace(memory, world=WorldMemory(place._replace(device_blocks=blocks), cache))
