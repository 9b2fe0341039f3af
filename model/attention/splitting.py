"""The split of attention's keys into parts, so that few queries occupy all multiprocessors (SMs) of a GPU."""

from functools import lru_cache

import torch

TILE = 128
"""A tile of cuDNN's kernel has this number of queries, and this number of keys. If the number of keys is not a multiple
of TILE, the kernel takes 9 % longer (38.6 instead of 35.5 ms on an H200)."""

MIN_KEYS_TO_SPLIT = 64 * TILE
"""The least number of keys at which a separate call for the last, incomplete tile of keys is faster than a single
call."""

PART_KEYS, MOST_PARTS, PART_COST = 1024, 8, 0.015
"""The constants for splitting keys into parts, so that few queries occupy the whole GPU:

- A part has at least PART_KEYS keys.
- There are at most MOST_PARTS parts.
- Each part after the first lengthens the computation by the fraction PART_COST.

On an H100, 1,508 queries over 27,144 keys in 12 heads take 663 us unsplit, and 406 us in 8 parts.
"""

HOPPER = 132
"""The number of multiprocessors (SMs) of an H100 and an H200."""


def key_parts(queries: int, keys: int, heads: int, processors: int = HOPPER) -> int:
    """Return the number of parts into which to split the keys, so that few queries occupy all `processors`
    multiprocessors (SMs). Without a split, an SM processes one tile of queries with all its keys at a time. So 132 SMs
    need two rounds for 144 tiles, the same time as for 264 tiles."""
    tiles = -(-queries // TILE) * heads

    def time(parts: int) -> float:
        return -(-tiles * parts // processors) / parts * (1 + PART_COST * (parts - 1))

    return min(range(1, max(1, min(MOST_PARTS, keys // PART_KEYS)) + 1), key=time)


def part_length(keys: int, parts: int) -> int:
    """Return the number of keys in each of `parts` equal parts, rounded down to a multiple of TILE. The remaining keys
    are in no part."""
    return keys // parts // TILE * TILE


@lru_cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors (SMs) of a GPU. For other devices, return the number of an H200."""
    if device.type != "cuda":
        return HOPPER
    return torch.cuda.get_device_properties(device).multi_processor_count
