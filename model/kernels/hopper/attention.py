"""The launch of attention.cu: attention in float8_e4m3fn or bf16 on Hopper GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ...ops.matrix_8bit import EightBit
from . import launch as hopper
from .nvrtc import CudaKernel, Launch, load

Result = TypeVar("Result", bound=Tensor | EightBit)
# Constants of the CUDA sources:
QUERIES, QUERY_TILES = 192, 2  # queries in a tile, tiles in a thread block
HEAD = 128  # the head size
ROW, VALUES_ROW = 128, 32  # bytes in a row of a TMA box; VALUES_ROW for 8-bit v
V_BLOCK = 64  # rows and columns of the block that a thread block transposes
THREADS, WARPS, THREAD_RESULTS = 512, 12, HEAD // 2 + 4
MAX_PARTS, PART_COST = 16, 640
"""The maximum number of parts into which keys are split. With two or more parts, each part takes extra time, estimated
as the time for PART_COST more keys."""


class Configuration(NamedTuple):
    """The configuration of the attention kernel for one dtype of q, k and v.

    name: the dtype's name in PTX.
    bytes: the size of a number of this dtype.
    tile: the number of keys in a tile.
    stages: the number of tiles in shared memory.
    scores: the number of bits of an attention score.
    cluster: the number of thread blocks that share loaded keys and values.
    """

    name: str
    bytes: int
    tile: int
    stages: int
    scores: int
    cluster: int

    @property
    def shared(self) -> int:
        """The bytes of shared memory that a thread block needs."""
        queries, keys_and_values = QUERY_TILES * QUERIES, 2 * self.stages * self.tile
        return 1024 + HEAD * self.bytes * (queries + keys_and_values) + 16 * QUERY_TILES + 32 * self.stages


CONFIGURATIONS = {
    torch.float8_e4m3fn: Configuration("e4m3", 1, 160, 4, 16, 2),
    torch.bfloat16: Configuration("bf16", 2, 80, 3, 32, 1),
}


def attend(
    out: Result,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    scales: Sequence[Tensor | None] = 5 * (None,),
    frame_mask: Tensor | None = None,
    padding_start: Tensor | None = None,
) -> Result:
    """Write attention of q [tokens, heads*128] over k and v [keys, heads*128] to `out`, and return `out`. An EightBit
    `out` receives fp8 values and scales.

    v: if fp8, transposed by `transpose`.
    scales: for fp8, five fp32 tensors: q's, k's and v's scale, v's mean, and the upper bound of v's magnitudes.
    frame_mask: fp32 [frames], 0 for visible latent frames, -inf for hidden ones; None: all are visible.
    padding_start: int32 [1], the index of the first padding token. All padding tokens are equal. None: no padding.
    """
    queries, keys, kind, blocks = len(q), len(k), CONFIGURATIONS[q.dtype], _blocks(q)
    shared, parts = split_last_round(queries, 0 if padding_start is not None else keys, heads, blocks, kind)
    results, stored = None, None
    if parts > 1:
        results = torch.empty(shared * parts, WARPS * THREAD_RESULTS * 32, dtype=torch.float32, device=q.device)
        stored = torch.zeros(shared * WARPS, dtype=torch.int32, device=q.device)
    with torch.cuda.device_of(q):
        of_keys = (ROW, kind.tile // kind.cluster), hopper.SWIZZLE_128
        of_values = ((VALUES_ROW, HEAD), hopper.SWIZZLE_32) if kind.bytes == 1 else of_keys
        of_queries = (ROW, QUERIES), hopper.SWIZZLE_128
        maps = (hopper.tensor_map(*each) for each in ((q, *of_queries), (k, *of_keys), (v, *of_values)))
        counts = 0 if frame_mask is None else len(frame_mask), queries, keys, heads, parts
        values, token_scales = out if isinstance(out, EightBit) else (out, None)
        others, bound = scales[:-1], None if token_scales is None else scales[-1]
        given = values, results, stored, *others, frame_mask, padding_start, bound, token_scales
        _attend(q.device, q.dtype)(Launch((blocks, 1), THREADS, kind.shared), *maps, *given, *counts)
    return out


def split_last_round(queries: int, keys: int, heads: int, blocks: int, kind: Configuration) -> tuple[int, int]:
    """Split the last round of query tiles, in which some of the `blocks` thread blocks would be idle. Return the number
    of query tiles in this round, and the number of parts into which to split their keys. Return (0, 1) if none would be
    idle."""
    clusters, key_tiles = blocks // kind.cluster, max(1, -(-keys // kind.tile))
    groups = -(-(-(-queries // QUERIES) * heads) // kind.cluster) % clusters

    def time(parts: int) -> float:
        return -(-groups * parts // clusters) * (key_tiles / parts + PART_COST / kind.tile * (parts > 1))

    return groups * kind.cluster, min(range(1, min(MAX_PARTS, key_tiles) + 1), key=time)


def _blocks(x: Tensor) -> int:
    """Return the number of thread blocks to launch: one for each multiprocessor (SM), rounded down to an even number
    for clusters of two."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count // 2 * 2


def transpose(v: Tensor) -> Tensor:
    """Return 8-bit values v [tokens, dim] as [dim, columns]. The columns have the order of `transposed_columns`, and
    are padded with zeros to a multiple of 64."""
    tokens, dim = v.shape
    row = -(-tokens // V_BLOCK) * V_BLOCK
    out = torch.empty(dim, row, dtype=v.dtype, device=v.device)
    with torch.cuda.device_of(v):
        _transpose_kernels(v.device)[0](Launch((dim // V_BLOCK, row // V_BLOCK), 256), v, out, tokens, dim, row)
    return out


def scatter_transposed_(out: Tensor, columns: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write token i of (x - shift) * factor to `out[:, columns[i]]`. x is [tokens, dim]. Return `out` [dim, columns].
    Both dimensions must be multiples of 64."""
    x = x.bfloat16()
    if x.stride(0) % 8 or x.data_ptr() % 16:  # the kernel reads eight numbers at once
        x = x.contiguous()
    (tokens, dim), blocks = x.shape, -(-len(x) // V_BLOCK)
    with torch.cuda.device_of(out):
        launch, counts = Launch((dim // V_BLOCK, blocks), 256), (tokens, x.stride(0), out.stride(0))
        _transpose_kernels(out.device)[1](launch, x, out, columns, shift, factor, *counts)
    return out


def source(dtype: torch.dtype) -> str:
    """Return the CUDA source of the attention kernel for operands of a dtype."""
    kind = CONFIGURATIONS[dtype]
    operands, register = (kind.name, kind.bytes), "r" if kind.scores == 16 else "f"
    products = [
        hopper.product_source("first_product", kind.tile, operands, f"={register}", adds=False),
        hopper.product_source("next_product", kind.tile, operands, f"+{register}"),
        hopper.register_product_source("add_values", HEAD, operands),
    ]
    numbers = {"BYTES": kind.bytes, "TILE": kind.tile, "STAGES": kind.stages, "CLUSTER": kind.cluster}
    constants = "".join(f"constexpr int {name} = {number};\n" for name, number in numbers.items())
    softmax = hopper.text(f"softmax_fp{kind.scores}.cuh")
    return hopper.source("attention.cu", NUMBERS=constants, PRODUCTS="\n".join(products), SOFTMAX=softmax)


@lru_cache
def _attend(device: torch.device, dtype: torch.dtype) -> CudaKernel:
    with torch.cuda.device(device):
        return CudaKernel(load(source(dtype), hopper.ARCHITECTURE), "attend", CONFIGURATIONS[dtype].shared)


@lru_cache
def _transpose_kernels(device: torch.device) -> tuple[CudaKernel, CudaKernel]:
    """Return the kernels of `transpose` and of `scatter_transposed_`."""
    with torch.cuda.device(device):
        module = load(hopper.source("values_across.cu"), hopper.ARCHITECTURE)
        return CudaKernel(module, "across"), CudaKernel(module, "put_across")
