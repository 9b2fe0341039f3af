"""The launch of the CUDA kernel in attention.cu: attention in float8_e4m3fn or bf16 on GPUs of compute capability
9.0."""

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
"""The constants that must have the same values in the CUDA sources.

`QUERIES` is the number of queries in a tile, and `QUERY_TILES` the number of such tiles in shared memory. `HEAD` is the
head size. TMA loads rows of `VALUES_ROW` bytes for 8-bit values, and of `ROW` bytes for all other operands. A thread
block of the kernel `across` transposes `TURNED` tokens times `TURNED` channels.
"""
THREADS, WARPS, THREAD_RESULTS = 512, 12, HEAD // 2 + 4
MOST_PARTS, PART_COST = 16, 640
"""The constants of key splitting: `MOST_PARTS` is the largest number of parts, `PART_COST` the overhead of splitting.

The overhead is a number of keys: splitting takes as long as attention to so many keys.
"""


class Configuration(NamedTuple):
    """The configuration of the attention kernel for one dtype of q, k and v.

    `name` is the dtype's name in PTX, and `bytes` is the size of one number. `tile` is the number of keys that are
    loaded at once, and `stages` is the number of such tiles in shared memory. `scores` is the number of bits in which
    the kernel computes attention scores. `cluster` is the number of thread blocks that share the loaded keys and
    values.
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

    q, k and v are all bf16, or all float8_e4m3fn. A float8_e4m3fn v is [heads*128, columns], made by `transpose`. A
    token's channels must be adjacent, and the stride between tokens a multiple of 16 bytes. `out` is bf16 and may be q.
    For float8_e4m3fn operands `out` may also be an EightBit (8-bit values with a scale for each token).

    `scales` are five tensors for float8_e4m3fn operands. The first three are the scales of q, k and v, fp32 [1] each.
    The fourth is the values' mean, fp32 [heads*128], which is added to the result. The last is an upper bound of the
    results, fp32 [1], which is only needed for an EightBit `out`.

    `shares` (fp32 [frames]) is 0 for each latent frame to attend to, and -inf for each frame to ignore. The ignored
    frames must be the last ones. None means all frames.

    If the last keys are all equal, and so are their values, `unlike` (int32 [1]) may be the index of the first equal
    key. The kernel then reads only one of the equal keys. Raises RuntimeError if the driver reports an error.
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
    """Return the number of query tiles in the incomplete last round, and the number of key parts for these tiles.

    Each of the `heads` heads has one tile for every QUERIES of the `queries`. In a round, each of the `blocks` thread
    blocks processes one tile, over all `keys`. The last round often has few tiles, so the keys are split into the
    number of parts that takes the least time. The first result is rounded up to full clusters. `kind` is the kernel's
    configuration.
    """
    clusters, key_tiles = blocks // kind.cluster, max(1, -(-keys // kind.tile))
    groups = -(-(-(-queries // QUERIES) * heads) // kind.cluster) % clusters

    def time(parts: int) -> float:
        return -(-groups * parts // clusters) * (key_tiles / parts + PART_COST / kind.tile * (parts > 1))

    return groups * kind.cluster, min(range(1, min(MOST_PARTS, key_tiles) + 1), key=time)


def _blocks(x: Tensor) -> int:
    """Return the number of thread blocks to launch: the number of multiprocessors (SMs), rounded down to an even
    number.

    The number is even because a cluster has two blocks if the operands are in 8 bits.
    """
    return torch.cuda.get_device_properties(x.device).multi_processor_count // 2 * 2


def transpose(v: Tensor) -> Tensor:
    """Return 8-bit values v [tokens, dim] transposed to [dim, columns], for `attend`.

    The number of columns is a multiple of TURNED, and additional columns are zero. Within every 16 tokens the columns
    have the order that values_across.cu describes.
    """
    tokens, dim = v.shape
    row = -(-tokens // TURNED) * TURNED
    out = torch.empty(dim, row, dtype=v.dtype, device=v.device)
    with torch.cuda.device_of(v):
        _transposing(v.device)[0](Launch((dim // TURNED, row // TURNED), 256), v, out, tokens, dim, row)
    return out


def scatter_transposed_(out: Tensor, places: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor, for x [tokens, dim], to columns of `out` (float8_e4m3fn [dim, columns]).

    Return `out`. shift [dim] and factor [1] are fp32. `places` (int64 [tokens]) are the columns of `out` to which the
    tokens are written. `dim` and the number of columns must be multiples of 64.
    """
    x = x.bfloat16()
    if x.stride(0) % 8 or x.data_ptr() % 16:  # the kernel reads eight numbers at once
        x = x.contiguous()
    (tokens, dim), blocks = x.shape, -(-len(x) // TURNED)
    with torch.cuda.device_of(out):
        launch, counts = Launch((dim // TURNED, blocks), 256), (tokens, x.stride(0), out.stride(0))
        _transposing(out.device)[1](launch, x, out, places, shift, factor, *counts)
    return out


def source(dtype: torch.dtype) -> str:
    """Return the CUDA source of the attention kernel for operands of a dtype, including its matrix instructions."""
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
    """Return the CUDA kernels `across` (transposes) and `put_across` (converts to 8 bits and transposes)."""
    with torch.cuda.device(device):
        module = load(hopper.source("values_across.cu"), hopper.ARCHITECTURE)
        return CudaKernel(module, "across"), CudaKernel(module, "put_across")
