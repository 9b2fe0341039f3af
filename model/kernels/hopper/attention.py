"""Attention in float8_e4m3fn or bf16 on GPUs of compute capability 9.0: see attention.cu."""

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
"""The constants of the CUDA source; TURNED: tokens and channels that a block of the CUDA kernel `across` transposes."""
THREADS, WARPS, THREAD_RESULTS = 512, 12, HEAD // 2 + 4
MOST_PARTS, PART_COST = 16, 640
"""The largest number of parts of the keys, and the overhead of a part in keys."""


class Configuration(NamedTuple):
    """The configuration of the kernel for an operand dtype.

    It has the dtype's name in PTX and its bytes, the number of keys loaded at once, and the number of pipeline stages.
    It also has the bits of a score and the number of thread blocks that load keys and values together."""

    name: str
    bytes: int
    tile: int
    stages: int
    scores: int
    cluster: int

    @property
    def shared(self) -> int:
        """The bytes of shared memory."""
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
    """Write attention of q to keys k and values v [keys, heads * 128] to `out`, and return it.

    `out`, bf16, and q are [tokens, heads * 128]. q, k and v are all bf16, or all float8_e4m3fn with the values
    transposed by `transpose`. A token's channels must be adjacent; tokens may be strided by a multiple of 16 bytes.
    `out` may be q.

    `scales`, in 8 bits: the scales of q, k and v, fp32 [1] each; the values' mean, fp32 [heads * 128], which is added
    to the result; and an upper bound of the results, fp32 [1], if `out` is float8_e4m3fn too. `shares` as in
    `exact.attend_to_frames`. `unlike`, int32 [1]: all keys from this index on are equal. Raises RuntimeError for an
    error of the driver."""
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
    """Return the query tiles that remain after full rounds of all clusters, and the number of key parts for them.

    The remaining round is often nearly empty, and parts make shorter rounds."""
    clusters, key_tiles = blocks // kind.cluster, max(1, -(-keys // kind.tile))
    groups = -(-(-(-queries // QUERIES) * heads) // kind.cluster) % clusters

    def time(parts: int) -> float:
        return -(-groups * parts // clusters) * (key_tiles / parts + PART_COST / kind.tile * (parts > 1))

    return groups * kind.cluster, min(range(1, min(MOST_PARTS, key_tiles) + 1), key=time)


def _blocks(x: Tensor) -> int:
    """Return the number of thread blocks: one for each multiprocessor (SM), in full clusters of two."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count // 2 * 2


def transpose(v: Tensor) -> Tensor:
    """Return values [tokens, dim] as [dim, tokens], padded with zeros to a multiple of TURNED tokens. The order within
    16 tokens is that of values_across.cu."""
    tokens, dim = v.shape
    row = -(-tokens // TURNED) * TURNED
    out = torch.empty(dim, row, dtype=v.dtype, device=v.device)
    with torch.cuda.device_of(v):
        _transposing(v.device)[0](Launch((dim // TURNED, row // TURNED), 256), v, out, tokens, dim, row)
    return out


def scatter_transposed_(out: Tensor, places: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Implement scatter.scatter_transposed_. `out` has a multiple of 64 columns, x a multiple of 64 channels."""
    x = x.bfloat16()
    if x.stride(0) % 8 or x.data_ptr() % 16:  # the kernel reads eight numbers at once
        x = x.contiguous()
    (tokens, dim), blocks = x.shape, -(-len(x) // TURNED)
    with torch.cuda.device_of(out):
        launch, counts = Launch((dim // TURNED, blocks), 256), (tokens, x.stride(0), out.stride(0))
        _transposing(out.device)[1](launch, x, out, places, shift, factor, *counts)
    return out


def source(dtype: torch.dtype) -> str:
    """Return the CUDA source for operands of a dtype, with its multiply instructions."""
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
    """Return the CUDA kernels `across` and `put_across`."""
    with torch.cuda.device(device):
        module = load(hopper.source("values_across.cu"), hopper.ARCHITECTURE)
        return CudaKernel(module, "across"), CudaKernel(module, "put_across")
