"""Triton kernels for the convolutions of the VAE's decoder, on one feature map or on a pool of several feature maps."""
# A feature map is [rows, channels]: a row per pixel, a row of zeros after each line, a line of zeros at the end.
# A pool is a tensor of several feature maps of one size, each in a numbered slot.

from functools import lru_cache, partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..choice.card import card_of
from ..choice.tiles import Tile, tile_of
from .launch import Kernel


@partial(Kernel, unspecialized=["height", "width", "add", "rows"])
def _convolve(
    x,
    x_rest,
    w,
    w_below,
    w_rest,
    w_both,
    bias_ptr,
    added_ptr,
    out_ptr,
    slots_ptr,
    height,
    width,
    add,
    rows,
    stride,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    FRAMES: tl.constexpr,
    SIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    NA: tl.constexpr,
    NB: tl.constexpr,
    KA: tl.constexpr,
    KB: tl.constexpr,
    STAGES: tl.constexpr,
    BY_TMA: tl.constexpr,
    FP16_SUMS: tl.constexpr,
):
    """The kernel of `convolve`. A program computes NA + NB output channels of PIXELS pixels, in steps of KA + KB input
    channels. The first six arguments are TMA descriptors if BY_TMA, else pointers.

    x, x_rest: x for KA and for KB channels.
    w, w_rest: the weight for NA output channels, and KA or KB input channels.
    w_below, w_both: the same for NB output channels.
    """
    columns: tl.constexpr = FRAMES * SIDE * SIDE * CHANNELS
    of_weight: tl.constexpr = SIDE * SIDE * OUT if SIDE == 2 else OUT
    blocks: tl.constexpr = (OUT + NA + NB - 1) // (NA + NB)
    parts: tl.constexpr = CHANNELS // (KA + KB)
    n = tl.program_id(0) % blocks * (NA + NB)
    block = tl.program_id(0) // blocks
    up, left, weight_row = -(SIDE // 2), -(SIDE // 2), n
    if SIDE == 2:  # one pixel becomes four, each from its own four neighbours
        quarter = block % 4
        block //= 4
        up, left, weight_row = up + quarter // 2, left + quarter % 2, weight_row + quarter * OUT
    m = block * PIXELS
    first, second, third = 0, 0, 0
    if FRAMES == 3:
        image = (height + 1) * width
        first, second, third = _start(slots_ptr, image), _start(slots_ptr + 1, image), _start(slots_ptr + 2, image)
    # Sums of both parts of the output channels, over both parts of the input channels: four, so that each product of a
    # step depends on the product of the previous step only, not on the previous product of its own step.
    # If FP16_SUMS, `apart` and `both` are sums in fp16 that wait to be added to `total` and `below`.
    total, apart = tl.zeros((PIXELS, NA), tl.float32), tl.zeros((PIXELS, NA), tl.float16 if FP16_SUMS else tl.float32)
    below, both = tl.zeros((PIXELS, NB or NA), total.dtype), tl.zeros((PIXELS, NB or NA), apart.dtype)
    for step in tl.range(0, FRAMES * SIDE * SIDE * parts, num_stages=STAGES):
        # Frame by frame: the data that all programs read at a time stay in the GPU's cache.
        number, near, channel = step // parts // SIDE**2, step // parts % SIDE**2, step % parts * (KA + KB)
        frame = tl.where(number == 0, first, tl.where(number == 1, second, third))
        row = frame + m + (near // SIDE + up) * width + near % SIDE + left
        k = (near * FRAMES + number) * CHANNELS + channel
        x_rows, last = _load(x, row, channel, rows, stride, PIXELS, KA, BY_TMA), step % parts == parts - 1
        rows_of_w = _load(w, weight_row, k, of_weight, columns, NA, KA, BY_TMA)
        total, apart = _add_product(total, apart, x_rows, rows_of_w, last, FP16_SUMS)
        if NB:
            rows_of_w = _load(w_below, weight_row + NA, k, of_weight, columns, NB, KA, BY_TMA)
            below, both = _add_product(below, both, x_rows, rows_of_w, last, FP16_SUMS)
        if KB:
            x_rows = _load(x_rest, row, channel + KA, rows, stride, PIXELS, KB, BY_TMA)
            apart = tl.dot(x_rows, _load(w_rest, weight_row, k + KA, of_weight, columns, NA, KB, BY_TMA).T, apart)
            if NB:
                both = tl.dot(
                    x_rows, _load(w_both, weight_row + NA, k + KA, of_weight, columns, NB, KB, BY_TMA).T, both
                )
    if KB:
        total, below = total + apart, below + both
    p = m + tl.arange(0, PIXELS)
    line, column = p // width, p % width
    real = ((line < height) & (column < width - 1))[:, None]
    if SIDE == 2:
        to = (2 * line + up + 1) * (2 * width - 1) + 2 * column + left + 1
        kept = real
    else:
        to = p
        kept = (line <= height)[:, None]
    cols = n + tl.arange(0, NA)[None, :]
    _finish(total, cols, p, to, real, kept, bias_ptr, added_ptr, out_ptr, add, OUT)
    if NB:
        cols = n + NA + tl.arange(0, NB)[None, :]
        _finish(below, cols, p, to, real, kept, bias_ptr, added_ptr, out_ptr, add, OUT)


@triton.jit
def _start(slot_ptr, rows):
    return tl.load(slot_ptr) * rows


@triton.jit
def _load(
    source,
    row,
    column,
    rows,
    stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BY_TMA: tl.constexpr,
):
    """Return the block [ROWS, COLUMNS] of a matrix that begins at (`row`, `column`), with zeros for rows outside the
    matrix. `source` is a TMA descriptor if BY_TMA, else a pointer to a matrix with `rows` rows, `stride` apart."""
    if BY_TMA:
        block = source.load([row, column])
    else:
        down, right = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
        first = source + (row.to(tl.int64) * stride + column)
        block = tl.load(first + (down * stride + right), mask=(row + down >= 0) & (row + down < rows), other=0.0)
    return block


@triton.jit
def _add_product(total, part, x, w, last, FP16_SUMS: tl.constexpr):
    """Add x @ w.T to `total` (fp32), or, if FP16_SUMS, to `part` (fp16). If FP16_SUMS and `last` is true, then add
    `part` to `total` and set `part` to 0. Return `total` and `part`."""
    if FP16_SUMS:
        part = tl.dot(x, w.T, part, out_dtype=tl.float16)
        if last:
            total += part
            part = tl.zeros_like(part)
    else:
        total = tl.dot(x, w.T, total)
    return total, part


@triton.jit
def _finish(total, cols, p, to, real, kept, bias_ptr, added_ptr, out_ptr, add, OUT: tl.constexpr):
    inside = cols < OUT
    y = total + tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    at = p.to(tl.int64)[:, None] * OUT + cols
    y += tl.load(added_ptr + at, mask=inside & real & (add != 0), other=0.0).to(tl.float32)
    y = tl.where(real, y, 0.0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + to.to(tl.int64)[:, None] * OUT + cols, y, mask=inside & kept)


@partial(Kernel, unspecialized=["height", "width"])
def _store(
    x_ptr,
    weight_ptr,
    pool_ptr,
    slots_ptr,
    height,
    width,
    stride,
    dim,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    line = row // width
    real = (line < height) & (row % width < width - 1)
    at = row.to(tl.int64)
    y = tl.load(x_ptr + at * stride + cols, mask=real & (cols < dim), other=0.0)
    if weight_ptr is not None:
        x = y.to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / dim + eps)
        weight = tl.load(weight_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
        y = x * scale[:, None] * weight
        y = (y * tl.sigmoid(y)).to(pool_ptr.dtype.element_ty)
    at += _start(slots_ptr + 2, (height + 1) * width)
    tl.store(pool_ptr + at * dim + cols, tl.where(real, y, 0.0), mask=(line <= height) & (cols < dim))


def convolve(
    x: Tensor,
    slots: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    size: tuple[int, int],
    side: int,
    added: Tensor | None = None,
) -> Tensor:
    """Convolve one feature map, or three frames of a pool (a tensor of stored frames), and add `added`. Return a
    feature map. Each map or frame has (height + 1) * (width + 1) rows, one per pixel, with a padding row and column.

    x: [rows, channels], a map or the pool.
    slots: int32 indices of three frames in the pool, the oldest first; None for one map.
    weight: [out, side * side * frames * channels], frames 1 or 3; for side 2, the result of `vae.weights.quarters`.
    size: x's height and width without padding.
    side: the kernel size. Side 2 doubles the result's height and width.
    added: a tensor of the result's shape.
    """
    (height, width), channels, quarters = size, x.shape[1], 4 if side == 2 else 1
    out_channels = len(weight) // quarters
    scale = 2 if side == 2 else 1
    out = x.new_empty((scale * height + 1) * (scale * width + 1), out_channels)
    b = _tile(x.device, channels, out_channels)
    pixels = triton.cdiv((height + 1) * (width + 1), b.pixels)
    grid = (pixels * quarters * triton.cdiv(out_channels, b.out + b.out_rest),)
    with torch.cuda.device_of(x):
        given = *_operands(x, weight, b), bias, bias if added is None else added.contiguous(), out
        _convolve[grid](
            *given,
            bias if slots is None else slots,
            *(height, width + 1, int(added is not None), len(x), x.stride(0)),
            OUT=out_channels,
            CHANNELS=channels,
            FRAMES=1 if slots is None else 3,
            SIDE=side,
            PIXELS=b.pixels,
            NA=b.out,
            NB=b.out_rest,
            KA=b.channels,
            KB=b.channels_rest,
            STAGES=b.stages,
            BY_TMA=b.by_tma,
            FP16_SUMS=b.fp16_sums,
            num_warps=b.warps,
        )
    return out


@lru_cache
def _tile(device: torch.device, channels: int, out: int) -> Tile:
    return tile_of(card_of(device), channels, out)


def _operands(x: Tensor, weight: Tensor, tile: Tile) -> list[Tensor | TensorDescriptor]:
    """Return the first six arguments of `_convolve`: x twice, then the weight four times. If `tile.by_tma`, each is a
    TMA descriptor for one size of blocks; otherwise they are the tensors."""
    if not tile.by_tma:
        return [x, x, weight, weight, weight, weight]
    described = TensorDescriptor.from_tensor
    channels, outs = (tile.channels, tile.channels_rest or tile.channels), (tile.out, tile.out_rest or tile.out)
    return [
        *(described(x, [tile.pixels, each]) for each in channels),
        *(described(weight, [rows, each]) for each in channels for rows in outs),
    ]


def store(x: Tensor, weight: Tensor | None, eps: float, pool: Tensor, slots: Tensor, size: tuple[int, int]) -> None:
    """Write a feature map x [rows, channels] of `size` (height, width) to a pool of frames. If `weight` is given, write
    SiLU(RMSNorm(x) * weight) instead. `slots` has a layer's three frame indices in the pool; x goes to the last one,
    `slots[2]`."""
    block = triton.next_power_of_2(x.shape[1])
    rows = max(1, 4096 // block)
    with torch.cuda.device_of(x):
        given = x, weight, pool, slots, size[0], size[1] + 1, x.stride(0), x.shape[1], eps
        _store[(triton.cdiv((size[0] + 1) * (size[1] + 1), rows),)](*given, ROWS=rows, BLOCK=block)
