"""Attention in float8_e4m3fn on GPUs of compute capability 9.0: see attention_hopper.cu."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .nvrtc import Kernel, Launch, check, driver, load

QUERIES, TILE, STAGES, HEAD, VALUES_ROW, TURNED = 192, 96, 4, 128, 32, 64
"""As in the source; TURNED: tokens and channels that a block of `across` turns."""
THREADS, WARPS, THREAD_RESULTS = 512, 12, HEAD // 2 + 4
MOST_PARTS, PART_COST = 16, 8
"""PART_COST: what a part of the keys costs beside its own, in tiles of keys."""
SHARED = 1024 + HEAD * (QUERIES + 2 * STAGES * TILE) + 16 + 32 * STAGES
UINT8, SWIZZLE_32, SWIZZLE_128, PROMOTE_256 = 0, 1, 3, 3
"""cuda.h: of CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion."""


def attend(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, heads: int, scales: tuple[Tensor, Tensor, Tensor, Tensor],
    shares: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`out` [tokens, heads * 128], bf16, becomes attention of q [tokens, heads * 128] to the keys k, alike, with the
    values v as `across` turns them, all float8_e4m3fn.

    `scales`: of q, k and v, fp32 [1], and the values' mean, fp32 [heads * 128], which is added. `shares` as in
    `attention.attend_to_frames`; the frames that count come first. Raises RuntimeError where the driver refuses."""
    queries, keys = len(q), len(k)
    blocks = torch.cuda.get_device_properties(q.device).multi_processor_count
    shared = -(-queries // QUERIES) * heads % blocks
    parts, results, stored = parts_of(shared, -(-keys // TILE), blocks), None, None
    if parts > 1:
        results = torch.empty(shared * parts, WARPS * THREAD_RESULTS * 32, dtype=torch.float32, device=q.device)
        stored = torch.zeros(shared * WARPS, dtype=torch.int32, device=q.device)
    with torch.cuda.device_of(q):
        boxes = (q, QUERIES, HEAD, SWIZZLE_128), (k, TILE, HEAD, SWIZZLE_128), (v, HEAD, VALUES_ROW, SWIZZLE_32)
        maps = (_map(*each) for each in boxes)
        counts = 0 if shares is None else len(shares), queries, keys, heads, parts
        given = out, results, stored, *scales, shares
        _kernels(q.device)[0](Launch((blocks, 1), THREADS, SHARED), *maps, *given, *counts)
    return out


def parts_of(shared: int, key_tiles: int, blocks: int) -> int:
    """Into how many parts keys are divided for the tiles of queries that are left when all blocks of threads have had
    equally many. Their last round is often nearly empty; parts make shorter rounds."""

    def time(parts: int) -> float:
        return -(-shared * parts // blocks) * (key_tiles / parts + PART_COST * (parts > 1))

    return min(range(1, min(MOST_PARTS, key_tiles) + 1), key=time)


def across(v: Tensor) -> Tensor:
    """Values [tokens, dim] with the tokens along the rows, [dim, tokens and zeros], of every 16 in another order."""
    tokens, dim = v.shape
    row = -(-tokens // TURNED) * TURNED
    out = torch.empty(dim, row, dtype=v.dtype, device=v.device)
    with torch.cuda.device_of(v):
        _kernels(v.device)[1](Launch((dim // TURNED, row // TURNED), 256), v, out, tokens, dim, row)
    return out


def put_across_(out: Tensor, places: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """See puts.put_across_. `out` has whole rows of 64 columns, x as many channels."""
    x = x.bfloat16()
    if x.stride(0) % 8 or x.data_ptr() % 16:  # it reads eight numbers at once
        x = x.contiguous()
    (tokens, dim), blocks = x.shape, -(-len(x) // TURNED)
    with torch.cuda.device_of(out):
        counts = tokens, x.stride(0), out.stride(0)
        _kernels(out.device)[2](Launch((dim // TURNED, blocks), 256), x, out, places, shift, factor, *counts)
    return out


def source() -> str:
    """The program, with the instructions that multiply."""
    text = Path(__file__).with_name("attention_hopper.cu").read_text(encoding="utf-8")
    products = [_scores("first_product", "=f", 0), _scores("next_product", "+f", 1), _values()]
    return text.replace("@PRODUCTS@", "\n".join(products))


def _scores(name: str, given: str, adds: int) -> str:
    """d (or d, if it `adds`) = 32 channels of 64 queries times those of TILE keys, both in shared memory."""
    count = TILE // 2
    return f"""INLINE void {name}(float (&d)[{count}], u64 a, u64 b) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {adds}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{TILE}k32.f32.e4m3.e4m3 {{{_registers(count)}}}, "
        "%{count}, %{count + 1}, p, 1, 1;\\n}}"
        : {_floats(given, count)} : "l"(a), "l"(b));
}}"""


def _values() -> str:
    """d += 64 queries' numerators of 32 keys, in registers, times the values of these, in shared memory."""
    count = HEAD // 2
    return f"""INLINE void add_values(float (&d)[{count}], const u32* a, u64 b) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{HEAD}k32.f32.e4m3.e4m3 {{{_registers(count)}}}, "
        "{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, %{count + 4}, 1, 1, 1;"
        : {_floats("+f", count)} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}}"""


def _registers(count: int) -> str:
    return ", ".join(f"%{i}" for i in range(count))


def _floats(given: str, count: int) -> str:
    return ", ".join(f'"{given}"(d[{i}])' for i in range(count))


@lru_cache
def _kernels(device: torch.device) -> tuple[Kernel, Kernel, Kernel]:
    """`attend`, `across` and `put_across`."""
    with torch.cuda.device(device):
        module = load(source(), "sm_90a")
        return Kernel(module, "attend", SHARED), Kernel(module, "across"), Kernel(module, "put_across")


def _map(x: Tensor, rows: int, columns: int, swizzle: int) -> ctypes.Array[ctypes.c_char]:
    """What tells the TMA of x [rows, bytes], of which it loads rows by columns at a time. What lies outside is 0."""
    made = (ctypes.c_char * 128)()
    aligned = (ctypes.c_char * 192)()  # the driver wants a multiple of 64
    at = -(-ctypes.addressof(aligned) // 64) * 64
    check(
        driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(at), UINT8, 2, ctypes.c_void_p(x.data_ptr()), (ctypes.c_uint64 * 2)(x.shape[1], x.shape[0]),
            (ctypes.c_uint64 * 1)(x.stride(0)), (ctypes.c_uint32 * 2)(columns, rows), (ctypes.c_uint32 * 2)(1, 1), 0,
            swizzle, PROMOTE_256, 0),
        "cuTensorMapEncodeTiled",
    )  # fmt: skip
    ctypes.memmove(made, at, 128)
    return made
