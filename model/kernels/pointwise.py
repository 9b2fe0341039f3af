"""Triton kernels in fp32, documented in ops/pointwise.py and ops/scatter.py."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cache import Pair
from ..ops.matrix_8bit import LARGEST
from ..ops.plain import NormRope
from .launch import Kernel
from .parts import _part
from .sizes import PART, part_grid

_FP8 = tl.constexpr(LARGEST[torch.float8_e4m3fn])


@Kernel
def _layer_norm(x_ptr, weight_ptr, bias_ptr, out_ptr, dim, eps, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64) * dim
    cols = tl.arange(0, BLOCK)
    inside = cols < dim
    x = tl.load(x_ptr + token + cols, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / dim
    centred = tl.where(inside, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / dim + eps)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=inside, other=0.0)
    tl.store(out_ptr + token + cols, (centred * scale * weight + bias).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _store_as(at, x, factor, inside):
    """Convert x to the dtype of the pointers `at`, and store it there where the mask `inside` is true. For fp8, x is
    first multiplied by `factor` and clamped."""
    if at.dtype.element_ty == tl.float8e4nv:
        x = tl.minimum(tl.maximum(x * factor, -_FP8), _FP8)
    tl.store(at, x.to(at.dtype.element_ty), mask=inside)


@Kernel
def _rms(
    out_ptr,
    rows_ptr,
    x_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    shift_ptr,
    factor_ptr,
    stride,
    out_stride,
    dim,
    eps,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    HALF: tl.constexpr,
):
    """The kernel of `_normalise`. A program normalises one token, and stores the result in the row `rows_ptr[token]` of
    the output. If `rows_ptr` is None, the row has the token's own index.

    cos_ptr, sin_ptr: the angles of RoPE; None: no RoPE.
    shift_ptr: subtracted from the result unless None.
    factor_ptr: multiplies an fp8 result; None: 1.
    """
    row = tl.program_id(0).to(tl.int64)
    to_row, factor = row, 1.0
    if rows_ptr is not None:
        to_row = tl.load(rows_ptr + row)
    if factor_ptr is not None:
        factor = tl.load(factor_ptr)
    total = tl.zeros((BLOCK,), tl.float32)
    for block in tl.static_range(BLOCKS):
        cols = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + cols, mask=cols < dim, other=0.0).to(tl.float32)
        total += x * x
    scale = tl.rsqrt(tl.sum(total, axis=0) / dim + eps)
    for block in tl.static_range(BLOCKS):  # the second read comes from the GPU's cache
        cols = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + cols, mask=cols < dim, other=0.0).to(tl.float32)
        x = x * scale * tl.load(weight_ptr + cols, mask=cols < dim, other=0.0)
        if cos_ptr is not None:
            angle = row * HALF + (block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)) % HALF
            cos = tl.load(cos_ptr + angle)
            sin = tl.load(sin_ptr + angle)
            even, odd = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
            x = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (BLOCK,))
        if shift_ptr is not None:
            x -= tl.load(shift_ptr + cols, mask=cols < dim, other=0.0)
        _store_as(out_ptr + to_row * out_stride + cols, x, factor, cols < dim)


@Kernel
def _rms_silu(x_ptr, weight_ptr, out_ptr, rows, dim, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (cols < dim)
    x = tl.load(x_ptr + row * dim + cols, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / dim + eps)
    weight = tl.load(weight_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
    y = x * scale[:, None] * weight
    tl.store(out_ptr + row * dim + cols, (y * tl.sigmoid(y)).to(out_ptr.dtype.element_ty), mask=inside)


@Kernel
def _gated_add(x_ptr, y_ptr, gate_ptr, dim, BLOCK: tl.constexpr):
    token, cols, inside = _part(dim, BLOCK)
    at = token * dim + cols
    x = tl.load(x_ptr + at, mask=inside)
    y = tl.load(y_ptr + at, mask=inside).to(tl.float32)
    if gate_ptr is not None:
        y *= tl.load(gate_ptr + cols, mask=inside)
    tl.store(x_ptr + at, x + y, mask=inside)


@Kernel
def _affine(x_ptr, scale_ptr, shift_ptr, dim, BLOCK: tl.constexpr):
    token, cols, inside = _part(dim, BLOCK)
    at = token * dim + cols
    x = tl.load(x_ptr + at, mask=inside)
    scale = tl.load(scale_ptr + at, mask=inside).to(tl.float32)
    shift = tl.load(shift_ptr + at, mask=inside).to(tl.float32)
    tl.store(x_ptr + at, x * (1.0 + scale) + shift, mask=inside)


@Kernel
def _modulated(out_ptr, times_ptr, weights_ptr, dim, BLOCK: tl.constexpr):
    row, cols, inside = _part(dim, BLOCK)
    times = tl.load(times_ptr + row * dim + cols, mask=inside)
    made = times + tl.load(weights_ptr + row % 6 * dim + cols, mask=inside).to(times.dtype)
    if row % 3 == 1:
        made += 1
    tl.store(out_ptr + row * dim + cols, made, mask=inside)


@Kernel
def _scatter(out_ptr, rows_ptr, x_ptr, stride, dim, BLOCK: tl.constexpr):
    token, cols, inside = _part(dim, BLOCK)
    x = tl.load(x_ptr + token * stride + cols, mask=inside)
    tl.store(out_ptr + tl.load(rows_ptr + token) * dim + cols, x, mask=inside)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    out, block = torch.empty_like(x, dtype=dtype), triton.next_power_of_2(x.shape[1])
    given = x, weight.contiguous(), bias.contiguous(), out, x.shape[1], eps
    with torch.cuda.device_of(x):
        _layer_norm[(len(x),)](*given, BLOCK=block, num_warps=max(1, min(16, block // 512)))
    return out


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _normalise(x, x, weight, None, eps)


def rms_rope_(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    return _normalise(x, x, weight, (cos, sin), eps)


def scatter_rope_(
    out: Tensor, rows: Tensor | None, x: Tensor, norm_rope: NormRope, shift: Tensor | None, factor: Tensor | None
) -> Tensor:
    """Write queries or keys x [tokens, dim], after RMSNorm and RoPE, to `out`, and return `out`. An fp8 `out` receives
    (result - shift) * factor.

    rows: int64 [tokens], each token's row in `out`; None: token i goes to row i.
    shift: [dim], or None for 0.
    factor: [1], or None for 1.
    """
    weight, *angles, eps = norm_rope
    return _normalise(out, x, weight, (angles[0], angles[1]), eps, (rows, shift, factor))


def _normalise(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    angles: Pair | None,
    eps: float,
    rows_and_scaling: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
) -> Tensor:
    """Write the RMSNorm of x [tokens, dim] to `out`, and return `out`.

    angles: cos and sin for RoPE after the norm; None: no RoPE.
    rows_and_scaling: (rows, shift, factor). Token i goes to row rows[i], or to row i if None. The shift [dim] is
    subtracted, unless None. The factor multiplies an fp8 result, unless None.
    """
    dim, (rows, *scaling) = x.shape[1], rows_and_scaling
    given = out, rows, x, weight.contiguous(), *(angles or (None, None)), *scaling, x.stride(0), out.stride(0), dim, eps
    sizes = {"BLOCK": PART, "BLOCKS": triton.cdiv(dim, PART), "HALF": angles[0].shape[-1] if angles else 0}
    with torch.cuda.device_of(x):
        _rms[(len(x),)](*given, **sizes, num_warps=8)
    return out


def rms_silu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.contiguous()  # after attention the VAE's pixels are strided
    out, block = torch.empty_like(x), triton.next_power_of_2(x.shape[1])
    rows = max(1, 4096 // block)
    with torch.cuda.device_of(x):
        _rms_silu[(triton.cdiv(len(x), rows),)](x, weight, out, len(x), x.shape[1], eps, ROWS=rows, BLOCK=block)
    return out


def gated_add_(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    with torch.cuda.device_of(x):
        _gated_add[part_grid(x)](x, y, None if gate is None else gate.contiguous(), x.shape[1], BLOCK=PART)
    return x


def affine_(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    with torch.cuda.device_of(x):
        _affine[part_grid(x)](x, scale, shift, x.shape[1], BLOCK=PART)
    return x


def modulated(times: Tensor, weights: Tensor) -> Tensor:
    times, out = times.contiguous(), torch.empty_like(times, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(times):
        _modulated[part_grid(times.flatten(0, 1))](
            out, times, weights.to(times.device).contiguous(), times.shape[2], BLOCK=PART
        )
    return out


def scatter_(out: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    with torch.cuda.device_of(out):
        _scatter[part_grid(x)](out, rows, x, x.stride(0), x.shape[1], BLOCK=PART)
    return out
