"""Triton kernels of pointwise.py: each reads and writes a token once. Imported on GPUs with Triton only.

One program computes one token, or a part of it where no statistics are needed. Arithmetic is fp32."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
PART = 1024
"""Channels, or packed bytes, that a program takes at once."""


@triton.jit
def _layer_norm(x_ptr, weight_ptr, bias_ptr, out_ptr, dim, eps, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64) * dim
    cols = tl.arange(0, BLOCK)
    inside = cols < dim
    x = tl.load(x_ptr + token + cols, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / dim
    centred = tl.where(inside, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / dim + eps)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=inside, other=0.0)
    tl.store(out_ptr + token + cols, (centred * scale * weight + bias).to(DTYPE), mask=inside)


@triton.jit
def _rms(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, dim, eps, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, HALF: tl.constexpr,
    ROPE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for block in tl.static_range(BLOCKS):
        cols = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * dim + cols, mask=cols < dim, other=0.0).to(tl.float32)
        total += x * x
    scale = tl.rsqrt(tl.sum(total, axis=0) / dim + eps)
    for block in tl.static_range(BLOCKS):  # the second read comes from the GPU's cache
        cols = block * BLOCK + tl.arange(0, BLOCK)
        at = x_ptr + row * dim + cols
        x = tl.load(at, mask=cols < dim, other=0.0).to(tl.float32)
        x = x * scale * tl.load(weight_ptr + cols, mask=cols < dim, other=0.0)
        if ROPE:
            angle = row * HALF + (block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)) % HALF
            cos = tl.load(cos_ptr + angle)
            sin = tl.load(sin_ptr + angle)
            even, odd = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
            x = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (BLOCK,))
        tl.store(at, x.to(x_ptr.dtype.element_ty), mask=cols < dim)


@triton.jit
def _gated_add(x_ptr, y_ptr, gate_ptr, dim, BLOCK: tl.constexpr):
    parts = tl.cdiv(dim, BLOCK)
    cols = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    inside = cols < dim
    at = (tl.program_id(0) // parts).to(tl.int64) * dim + cols
    x = tl.load(x_ptr + at, mask=inside)
    y = tl.load(y_ptr + at, mask=inside).to(tl.float32)
    gate = tl.load(gate_ptr + cols, mask=inside)
    tl.store(x_ptr + at, x + y * gate, mask=inside)


@triton.jit
def _affine(x_ptr, scale_ptr, shift_ptr, dim, BLOCK: tl.constexpr):
    parts = tl.cdiv(dim, BLOCK)
    cols = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    inside = cols < dim
    at = (tl.program_id(0) // parts).to(tl.int64) * dim + cols
    x = tl.load(x_ptr + at, mask=inside)
    scale = tl.load(scale_ptr + at, mask=inside).to(tl.float32)
    shift = tl.load(shift_ptr + at, mask=inside).to(tl.float32)
    tl.store(x_ptr + at, x * (1.0 + scale) + shift, mask=inside)


@triton.jit
def _blend(x_ptr, y_ptr, share_ptr, rows, dim, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (cols < dim)
    x = tl.load(x_ptr + row * dim + cols, mask=inside).to(tl.float32)
    y = tl.load(y_ptr + row * dim + cols, mask=inside).to(tl.float32)
    share = tl.load(share_ptr + row, mask=row < rows)
    tl.store(x_ptr + row * dim + cols, x + (y - x) * share, mask=inside)


@triton.jit
def _encode_8bit(values_ptr, scales_ptr, x_ptr, rows, dim, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (row[:, None] < rows) & (cols < dim)
    at = row[:, None] * dim + cols
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-30) / 127
    tl.store(scales_ptr + row, scale, mask=row < rows)
    x = tl.extra.libdevice.rint(x / scale[:, None])
    tl.store(values_ptr + at, x.to(tl.int8), mask=inside)


@triton.jit
def _decode_8bit(out_ptr, values_ptr, scales_ptr, rows, dim, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (row[:, None] < rows) & (cols < dim)
    at = row[:, None] * dim + cols
    values = tl.load(values_ptr + at, mask=inside, other=0).to(tl.float32)
    scale = tl.load(scales_ptr + row, mask=row < rows, other=0.0)
    tl.store(out_ptr + at, (values * scale[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _decode_4bit(
    out_ptr, packed_ptr, absmax_ptr, code_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr, count,
    BLOCKSIZE: tl.constexpr, NESTED: tl.constexpr, NESTED_BLOCKSIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    byte = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = byte * 2 < count
    packed = tl.load(packed_ptr + byte, mask=inside, other=0).to(tl.int32)
    block = byte * 2 // BLOCKSIZE
    scale = tl.load(absmax_ptr + block, mask=inside, other=0)
    if NESTED:
        outer = tl.load(nested_absmax_ptr + block // NESTED_BLOCKSIZE, mask=inside, other=0.0)
        scale = tl.load(nested_code_ptr + scale.to(tl.int32)) * outer + tl.load(offset_ptr)
    high = tl.load(code_ptr + (packed >> 4)) * scale
    low = tl.load(code_ptr + (packed & 15)) * scale
    values = tl.reshape(tl.join(high, low), (2 * BLOCK,)).to(out_ptr.dtype.element_ty)
    at = tl.program_id(0).to(tl.int64) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    tl.store(out_ptr + at, values, mask=at < count)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """See pointwise.layer_norm."""
    out = torch.empty_like(x, dtype=dtype)
    with torch.cuda.device_of(x):
        _layer_norm[(len(x),)](
            x, weight.contiguous(), bias.contiguous(), out, x.shape[1], eps, DTYPE=_TYPES[dtype], **_token_block(x)
        )
    return out


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See pointwise.rms_norm_."""
    return _normalise(x, weight, weight, weight, 1, eps, rope=False)


def rms_rope_(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """See pointwise.rms_rope_."""
    return _normalise(x, weight, cos, sin, cos.shape[1], eps, rope=True)


def _normalise(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, half: int, eps: float, rope: bool) -> Tensor:
    dim, weight = x.shape[1], weight.float().contiguous()
    sizes = {"BLOCK": PART, "BLOCKS": triton.cdiv(dim, PART), "HALF": half, "ROPE": rope, "num_warps": 8}
    with torch.cuda.device_of(x):
        _rms[(len(x),)](x, weight, cos, sin, dim, eps, **sizes)
    return x


def gated_add_(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """See pointwise.gated_add_."""
    with torch.cuda.device_of(x):
        _gated_add[_parts(x)](x, y, gate.contiguous(), x.shape[1], BLOCK=PART)
    return x


def affine_(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """See pointwise.affine_."""
    with torch.cuda.device_of(x):
        _affine[_parts(x)](x, scale, shift, x.shape[1], BLOCK=PART)
    return x


def blend_(x: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """See pointwise.blend_."""
    block = triton.next_power_of_2(x.shape[1])
    rows = max(1, 4096 // block)
    with torch.cuda.device_of(x):
        _blend[(triton.cdiv(len(x), rows),)](x, y, share, len(x), x.shape[1], ROWS=rows, BLOCK=block)
    return x


def encode_8bit_(values: Tensor, scales: Tensor, x: Tensor) -> Tensor:
    """See pointwise.encode_8bit."""
    _run_by_head(_encode_8bit, scales, values, scales, x.contiguous())
    return values


def decode_8bit_(out: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """See pointwise.decode_8bit_."""
    _run_by_head(_decode_8bit, scales, out, values, scales)
    return out


def decode_4bit(packed: Tensor, scales: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """See loaders.codec.decode; `scales` are its `Scales`. Each product and sum is rounded, as there."""
    out = torch.empty(shape, dtype=dtype, device=packed.device)
    nested = scales.nested_absmax is not None
    tables = (scales.nested_absmax, scales.nested_code, scales.offset) if nested else (scales.code,) * 3
    with torch.cuda.device_of(packed):
        _decode_4bit[(triton.cdiv(out.numel(), 2 * PART),)](
            out, packed, scales.absmax, scales.code, *tables, out.numel(),
            BLOCKSIZE=scales.blocksize, NESTED=nested, NESTED_BLOCKSIZE=scales.nested_blocksize, BLOCK=PART,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out


def _run_by_head(kernel: Any, scales: Tensor, first: Tensor, *others: Tensor) -> None:
    """A row of the kernel is one head of one token; a program computes several rows."""
    rows, dim = scales.numel(), first.numel() // scales.numel()
    block = triton.next_power_of_2(dim)
    count = max(1, 4096 // block)
    with torch.cuda.device_of(first):
        kernel[(triton.cdiv(rows, count),)](first, *others, rows, dim, ROWS=count, BLOCK=block)


def _token_block(x: Tensor) -> dict[str, int]:
    block = triton.next_power_of_2(x.shape[1])
    return {"BLOCK": block, "num_warps": max(1, min(16, block // 512))}


def _parts(x: Tensor) -> tuple[int]:
    return (len(x) * triton.cdiv(x.shape[1], PART),)
