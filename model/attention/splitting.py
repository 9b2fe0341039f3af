"""The split of attention's keys into parts, so that even few queries occupy all multiprocessors (SMs) of a GPU."""

from functools import lru_cache

import torch

TILE = 128
"""The number of queries, and of keys, in a tile of cuDNN's kernel. Multiples of TILE are faster."""

MIN_KEYS_TO_SPLIT_TAIL = 64 * TILE
"""The minimum number of keys for which a separate kernel call for the last, incomplete tile of keys saves time."""

MIN_PART_KEYS, MAX_PARTS, PART_COST = 1024, 8, 0.015
"""The minimum keys per part, the maximum number of parts, and the fraction of run time that each further part adds."""

H200_MULTIPROCESSORS = 132
"""The number of multiprocessors (SMs) of an H100 and an H200."""


def key_parts(queries: int, keys: int, heads: int, multiprocessors: int = H200_MULTIPROCESSORS) -> int:
    """Return the number of parts into which to split the keys, so that even few queries occupy all multiprocessors
    (SMs)."""
    tiles = -(-queries // TILE) * heads

    def time(parts: int) -> float:
        return -(-tiles * parts // multiprocessors) / parts * (1 + PART_COST * (parts - 1))

    return min(range(1, max(1, min(MAX_PARTS, keys // MIN_PART_KEYS)) + 1), key=time)


def part_length(keys: int, parts: int) -> int:
    """Return the number of keys in each of `parts` equal parts, rounded down to a multiple of TILE. The remaining keys
    are in no part."""
    return keys // parts // TILE * TILE


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors (SMs) of a GPU, or an H200's number for a device without CUDA."""
    if device.type != "cuda":
        return H200_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
