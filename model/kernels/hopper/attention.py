"""The launch of attention.cu: attention in float8_e4m3fn or bf16 on GPUs of compute capability 9.0."""

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
QUERIES, QUERY_TILES, HEAD, ROW, VALUES_ROW, TURNED = 192, 2, 128, 128, 32, 64
"""Constants that must have the same values in the CUDA sources.

QUERIES: the number of queries in a tile.
QUERY_TILES: the number of tiles of queries in shared memory.
HEAD: the head size.
ROW: the bytes of a row that TMA loads, for all operands except 8-bit v.
VALUES_ROW: the bytes of a row that TMA loads, for 8-bit v.
TURNED: the side of the blocks (tokens and channels) that the kernel `across` transposes.
"""
THREADS, WARPS, THREAD_RESULTS = 512, 12, HEAD // 2 + 4
MOST_PARTS, PART_COST = 16, 640
"""Keys are split into at most MOST_PARTS parts. The split costs as much time as attention to PART_COST keys."""


class Configuration(NamedTuple):
    """The configuration of the attention kernel for one dtype of q, k and v.

    name, bytes: the dtype's name in PTX, and the bytes of one number.
    tile, stages: the number of keys in a tile, which is loaded in one step, and the number of such tiles in shared
    memory.
    scores: the number of bits in which attention scores are stored: 16 for fp16, 32 for fp32.
    cluster: the number of thread blocks that share the loaded keys and values. 1 means that no blocks share them.
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


KINDS = {
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
    shares: Tensor | None = None,
    unlike: Tensor | None = None,
) -> Result:
    """Write attention of q [tokens, heads*128] over k and v [keys, heads*128] to `out`, and return `out`.

    q, k, v: all bf16 or all float8_e4m3fn, with adjacent channels and a stride of a multiple of 16 bytes between
    tokens. A float8_e4m3fn v is [heads*128, columns], made by `transpose`.
    out: bf16, may be q; or, for float8_e4m3fn, an EightBit (8-bit values with a scale for each token).
    scales: five tensors for float8_e4m3fn. The first three are the scales of q, k and v, fp32 [1] each. The fourth is
    the values' mean, fp32 [heads*128], which is added to the result. The fifth is needed for an EightBit `out`: an
    upper bound of the results, fp32 [1].
    shares: fp32 [frames], 0 for each latent frame to attend to, -inf for the frames to ignore, which must be the last
    frames. None means all frames.
    unlike: for keys that end with equal keys and equal values, the index of the first equal key, int32 [1]. The kernel
    then reads only one of the equal keys. None means that it reads all keys.

    Raises RuntimeError if the driver reports an error.
    """
    queries, keys, kind, blocks = len(q), len(k), KINDS[q.dtype], _blocks(q)
    shared, parts = divided(queries, 0 if unlike is not None else keys, heads, blocks, kind)
    results, stored = None, None
    if parts > 1:
        results = torch.empty(shared * parts, WARPS * THREAD_RESULTS * 32, dtype=torch.float32, device=q.device)
        stored = torch.zeros(shared * WARPS, dtype=torch.int32, device=q.device)
    with torch.cuda.device_of(q):
        of_keys = (ROW, kind.tile // kind.cluster), hopper.SWIZZLE_128
        of_values = ((VALUES_ROW, HEAD), hopper.SWIZZLE_32) if kind.bytes == 1 else of_keys
        of_queries = (ROW, QUERIES), hopper.SWIZZLE_128
        maps = (hopper.tensor_map(*each) for each in ((q, *of_queries), (k, *of_keys), (v, *of_values)))
        counts = 0 if shares is None else len(shares), queries, keys, heads, parts
        values, token_scales = out if isinstance(out, EightBit) else (out, None)
        *others, reach = scales
        given = values, results, stored, *others, shares, unlike, None if token_scales is None else reach, token_scales
        _attend(q.device, q.dtype)(Launch((blocks, 1), THREADS, kind.shared), *maps, *given, *counts)
    return out


def divided(queries: int, keys: int, heads: int, blocks: int, kind: Configuration) -> tuple[int, int]:
    """Return the number of query tiles in the incomplete last round, rounded up to full clusters. Also return the
    number of parts into which to split the keys for these tiles, so that they take the least time.

    Each head has one tile for every QUERIES queries. In a round, each of the `blocks` thread blocks processes one tile
    over all keys. In the last round only some blocks have a tile, so the keys are split among the blocks.
    """
    clusters, key_tiles = blocks // kind.cluster, max(1, -(-keys // kind.tile))
    groups = -(-(-(-queries // QUERIES) * heads) // kind.cluster) % clusters

    def time(parts: int) -> float:
        return -(-groups * parts // clusters) * (key_tiles / parts + PART_COST / kind.tile * (parts > 1))

    return groups * kind.cluster, min(range(1, min(MOST_PARTS, key_tiles) + 1), key=time)


def _blocks(x: Tensor) -> int:
    """Return the number of thread blocks to launch: one for each multiprocessor (SM). An odd number is rounded down,
    because a cluster of the 8-bit kernel has two blocks."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count // 2 * 2


def transpose(v: Tensor) -> Tensor:
    """Return 8-bit values v [tokens, dim] as [dim, columns], in the layout that `attend` reads.

    The number of columns is the number of tokens, rounded up to a multiple of TURNED; the added columns are zero. The
    columns are also permuted: every 16 tokens are stored in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15 (see
    values_across.cu).
    """
    tokens, dim = v.shape
    row = -(-tokens // TURNED) * TURNED
    out = torch.empty(dim, row, dtype=v.dtype, device=v.device)
    with torch.cuda.device_of(v):
        _transposing(v.device)[0](Launch((dim // TURNED, row // TURNED), 256), v, out, tokens, dim, row)
    return out


def scatter_transposed_(out: Tensor, places: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Launch the kernel of `ops.scatter.scatter_transposed_`, and return `out`. The numbers of channels and of columns
    must be multiples of 64."""
    x = x.bfloat16()
    if x.stride(0) % 8 or x.data_ptr() % 16:  # the kernel reads eight numbers at once
        x = x.contiguous()
    (tokens, dim), blocks = x.shape, -(-len(x) // TURNED)
    with torch.cuda.device_of(out):
        launch, counts = Launch((dim // TURNED, blocks), 256), (tokens, x.stride(0), out.stride(0))
        _transposing(out.device)[1](launch, x, out, places, shift, factor, *counts)
    return out


def source(dtype: torch.dtype) -> str:
    """Return the CUDA source of the attention kernel for operands of a dtype."""
    kind = KINDS[dtype]
    operands, register = (kind.name, kind.bytes), "r" if kind.scores == 16 else "f"
    products = [
        hopper.product("first_product", kind.tile, operands, f"={register}", adds=False),
        hopper.product("next_product", kind.tile, operands, f"+{register}"),
        hopper.product_of_registers("add_values", HEAD, operands),
    ]
    numbers = {"BYTES": kind.bytes, "TILE": kind.tile, "STAGES": kind.stages, "CLUSTER": kind.cluster}
    constants = "".join(f"constexpr int {name} = {number};\n" for name, number in numbers.items())
    softmax = hopper.text(f"softmax_fp{kind.scores}.cuh")
    return hopper.source("attention.cu", NUMBERS=constants, PRODUCTS="\n".join(products), SOFTMAX=softmax)


@lru_cache
def _attend(device: torch.device, dtype: torch.dtype) -> CudaKernel:
    with torch.cuda.device(device):
        return CudaKernel(load(source(dtype), hopper.ARCHITECTURE), "attend", KINDS[dtype].shared)


@lru_cache
def _transposing(device: torch.device) -> tuple[CudaKernel, CudaKernel]:
    """Return the kernels `across`, which transposes, and `put_across`, which converts to 8 bits first."""
    with torch.cuda.device(device):
        module = load(hopper.source("values_across.cu"), hopper.ARCHITECTURE)
        return CudaKernel(module, "across"), CudaKernel(module, "put_across")
