"""The planner of a causal run's memory, which chooses for the command where weights, keys and values are stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter

import torch

from ..errors import InputError
from ..loaders import Checkpoint
from ..loaders.offload import streamed_weights, weight_bytes
from ..model.attention.choose_8bit import takes_operands
from ..model.kv.place import HOST_SHARE, KeyValuePlace, key_value_places
from ..model.memory import decoded_bytes
from .memory import MARGIN, MemoryWishes
from .rollout_memory import DecoderSettings, Free, RolloutMemory, RolloutWork, decodes, estimate_rollout
from .world import WorldMemory

PAGES_SHARE = 0.85
"""Pinned keys and values, together with the pages of the weight file that every forward reads, may take at most this
share of the free host memory. Above it, the operating system would evict pages of the weight file, and every forward
would read the disk."""


@dataclass(frozen=True)
class RolloutPlanner:
    """A planner that chooses where a causal run stores weights, keys and values, and caches."""

    work: RolloutWork
    checkpoint: Checkpoint
    decoder: DecoderSettings
    wishes: MemoryWishes
    device: torch.device

    def choose(self, free: Free, whole_video: bool = False) -> RolloutMemory:
        """Return the most preferred storage choices that fit into memory.

        free: the free bytes of the GPU and of host memory. All processes share the host memory equally.
        whole_video: whether the run has no window. The error message then suggests one.

        The order of preference:

        1. All blocks stay on the GPU, and the VAE decodes without tiles, because tiles leave seams. To make room, keys
           and values may be stored in 8 bits or in host memory, as far as `kv_cache` allows. The VAE's state may move
           to host memory between chunks.
        2. The same, but the VAE decodes in tiles.
        3. As many blocks as fit stay on the GPU, and the rest are streamed.

        Further rules:

        - With the `residency` "stream", all blocks are streamed. With "one" or "both", only 1 and 2 are tried.
        - With sharded weights, only 1 and 2 are tried, for the shards.
        - If the user chose tiles, choices without tiles are skipped.
        - In 3, keys and values go to host memory only if no block stays on the GPU, or if the user chose host memory.
          They get GPU memory before weights: in host memory they are pinned, while the system may drop the file pages
          of streamed weights.
        - If keys and values go to host memory without the user's choice, as many blocks as fit still have theirs on the
          GPU.
        - GPU memory that is left goes to a camera cache, and then to CUDA graphs and decoded weights.
        - A choice that reads the disk in every forward is returned only if no other choice fits.

        Raises InputError if nothing fits. Without a CUDA GPU, the user's options are returned without a check.
        """
        wishes, processes = self.wishes, self.work.precision.processes
        weights = cache(lambda resident: weight_bytes(self.checkpoint, resident, processes if wishes.shard else 1))
        pages = cache(self._pages)
        fp8 = takes_operands(self.work.precision.attention, self.device, self.checkpoint.config)
        places = key_value_places(wishes.kv_cache, fp8)
        if self.device.type != "cuda":
            place = KeyValuePlace(wishes.kv_cache == "8bit" and not fp8, wishes.kv_cache == "host", fp8)
            resident = 0 if wishes.shard else None
            return RolloutMemory(WorldMemory(place, 0), resident_blocks=resident, vae_tiling=wishes.vae_tiling)
        free_host = free.host // processes
        best: RolloutMemory | None = None  # the best of the choices that read the disk in every forward
        for memory in self._choices(places):
            stage = estimate_rollout(self.work, memory, weights(memory.resident_blocks), self.decoder)[0]
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
            f"values of {self.work.held} latent frames with `kv_cache` {wishes.kv_cache}; use {window}, a smaller video"
            f"{elsewhere}"
        )

    def _choices(self, places: Sequence[KeyValuePlace]) -> Iterator[RolloutMemory]:
        """Yield the storage choices in the order of preference (see `choose`), with keys and values in `places`.

        If blocks are streamed and the VAE is in fp32, only tiles are tried: without tiles, the VAE would take the
        memory of further blocks. Streaming these as well would cost about as much time as tiles.
        """
        wishes = self.wishes
        places, exact_first = list(places), sorted(places, key=attrgetter("eight_bit"))
        if wishes.shard or wishes.residency != "stream":
            whole = 0 if wishes.shard else None
            for place, park in ((place, park) for place in places for park in (False, True)):
                yield RolloutMemory(WorldMemory(place, 0), whole, park_decoder=park)
            for place in places:
                yield RolloutMemory(WorldMemory(place, 0), whole, vae_tiling=True, park_decoder=True)
        counts = {"auto": range(self.checkpoint.config.num_layers - 1, -1, -1), "stream": range(1)}
        for tiles in (False, True) if self.decoder.half else (True,):
            for place in exact_first:
                for resident in () if wishes.shard else counts.get(wishes.residency, ()):
                    if not resident or not place.on_host or wishes.kv_cache == "host":
                        yield RolloutMemory(WorldMemory(place, 0), resident, tiles, True)

    def _pages(self, resident: int | None) -> int:
        """Return the bytes of the weight file that every forward reads if `resident` blocks (None: all) stay loaded.
        Return 0 for sharded weights."""
        if resident is None or self.wishes.shard:
            return 0
        streamed = streamed_weights(self.checkpoint, resident).values()
        return sum(entry.file_bytes for names in streamed for entry in self.checkpoint.entries(names))

    def _use_remaining(self, memory: RolloutMemory, room: int) -> RolloutMemory:
        """Return the plan `memory` with, in this order and as far as `room` bytes suffice, a camera cache, CUDA graphs
        and decoded weights. Graphs and decoded weights are planned only if all weights, keys and values stay on the
        GPU. Decoded weights leave a further MARGIN bytes free."""
        if memory.place.on_host and self.wishes.kv_cache != "host":
            return self._keep_keys_and_values(memory, room)
        work = self.work
        cache = work.camera_cache(self.wishes.camera_cache, room)
        whole = memory.resident_blocks is None and memory.place.in_place
        graphs = whole and work.recorded <= room - cache
        room -= cache + graphs * work.recorded + MARGIN
        decoded = 0
        if whole and decodes(self.checkpoint, work.precision):
            # decoded weights save a fortieth of a chunk's time, a tenth where four processes share it
            config, precision = self.checkpoint.config, work.precision
            block = decoded_bytes(config, precision.dtype, precision.arithmetic)
            decoded = min(config.num_layers, max(0, room) // block)
        world = WorldMemory(memory.place, cache, graphs)
        return replace(memory, world=world, decoded_blocks=decoded)

    def _keep_keys_and_values(self, memory: RolloutMemory, room: int) -> RolloutMemory:
        """Return `memory` with a camera cache and as many blocks' keys and values on the GPU as fit into `room` bytes.
        The camera cache gets memory first if all weights stay on the GPU, or if the user requested it. Otherwise keys
        and values get memory first."""
        work, mode, place = self.work, self.wishes.camera_cache, memory.place
        none, one = (work.key_values(place._replace(device_blocks=count)).device for count in (0, 1))
        first = memory.resident_blocks is None or mode == "gpu"
        cache = work.camera_cache(mode, room) if first else 0
        blocks = min(work.config.num_layers, max(0, room - cache) // (one - none))
        cache = cache or work.camera_cache(mode, room - blocks * (one - none))
        return replace(memory, world=WorldMemory(place._replace(device_blocks=blocks), cache))
