"""Queries, keys and values in float8_e4m3fn for attention, and attention to them in plain torch.

Each tensor has one scale, because cuDNN supports no more. The means of keys and values over the tokens are subtracted
first. The keys' mean adds the same amount to all scores of a query, so the softmax does not change; the values' mean is
added to the result. So a channel that is large in all tokens costs no precision."""

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from ..ops.matrix_8bit import LARGEST
from ..ops.plain import KEY_LENGTH, NormRope
from ..ops.pointwise import Rows, encode_8bit, from_fp8_, or_else, to_fp8_
from ..ops.scatter import Unrotated
from .exact import sdpa

FP8 = torch.float8_e4m3fn
MOST_QUERY, MOST_KEY = 11.0, 36.0
"""The magnitudes to which queries and keys are scaled in 8 bits if no norm bounds them.

With 128 channels a head, the scaled vectors are at most as long as vectors that a norm bounds (`plain.QUERY_LENGTH`).
The choice costs no precision, because a float has the same relative precision at any magnitude."""
SAMPLE = 512
"""The minimum number of evenly spaced tokens that are sampled for the maximum and for the keys' mean."""
HEADROOM = 4.0
"""The factor by which a value may exceed the sampled maximum.

A float is equally precise at any magnitude, so this only costs values below 1/3584 of that maximum."""


class Scaling(NamedTuple):
    """The mapping of numbers to 8 bits: (x - mean) * factor.

    `scale` is 1 / factor; scale and factor [1], mean [dim], in fp32. If `reach` [1] is known, no decoded number exceeds
    it. The scale is a power of two. So a value becomes the same float whichever heads share the scale, in one process
    or several, unless the value is subnormal."""

    scale: Tensor
    factor: Tensor
    mean: Tensor
    reach: Tensor | None = None

    @property
    def shift_and_factor(self) -> Pair:
        """The mean and factor, as the functions that encode 8 bits take them."""
        return self.mean, self.factor

    def with_reach(self) -> "Scaling":
        """Return a copy with `reach` computed from mean and scale."""
        return self._replace(reach=self.mean.abs().amax() + LARGEST[FP8] * self.scale)


class Operand(NamedTuple):
    """A tensor [tokens, dim] in 8 bits. Tokens of zeros may follow the true ones.

    If `transposed` is set, the values are [dim, tokens and zeros], and `transposed` is the number of tokens, which
    are in the order of `transposed_columns`."""

    values: Tensor
    scaling: Scaling
    transposed: int | None = None

    @property
    def rows(self) -> Tensor:
        """The values as [tokens, dim], whether or not they are transposed."""
        if self.transposed is None:
            return self.values
        places = transposed_columns(torch.arange(self.transposed, device=self.values.device))
        return self.values.view(torch.uint8)[:, places].T.contiguous().view(FP8)


def transposed_columns(tokens: Tensor) -> Tensor:
    """Return the columns of transposed tokens.

    Of every 16 tokens, the order is 0, 1, 8, 9, 2, 3, 10, 11, 4, 5 and so on, as the Hopper kernel requires."""
    return tokens // 16 * 16 + tokens % 8 // 2 * 4 + tokens % 16 // 8 * 2 + tokens % 2


def sample(x: Tensor) -> Tensor:
    """Return an evenly spaced sample of the tokens x [tokens, dim]."""
    return x[:: max(1, len(x) // SAMPLE)]


def scaling(x: Tensor, mean_of: Tensor | None = None, headroom: float = HEADROOM) -> Scaling:
    """Return the scaling for x [tokens, dim] minus the mean of the tokens `mean_of`.

    Numbers up to `headroom` times a sample's maximum fit."""
    mean = _mean(x, mean_of)
    return Scaling(*_fastest_scale(x.device.type)(sample(x), mean, headroom), mean)


def scaling_to(most: float, x: Tensor, mean_of: Tensor | None = None) -> Scaling:
    """Return the scaling for x [tokens, dim] minus the mean of the tokens `mean_of`, at most `most` in 8 bits."""
    mean = _mean(x, mean_of)
    return Scaling(*_fastest_scale(x.device.type)(x, mean, LARGEST[FP8] / most), mean)


def scaling_of_keys(norm_rope: NormRope, mean_of: Tensor) -> Scaling:
    """Return the scaling for all keys that this norm bounds, minus the mean of the tokens `mean_of` [tokens, dim].

    A mean is at most as long as the longest key, so a difference is at most twice as long."""
    length = norm_rope.weight.float().abs().amax().view(1).clamp_min(1e-30) * (2 * mean_of.shape[1] ** 0.5)
    scale = torch.exp2(torch.log2(length / KEY_LENGTH).ceil())
    return Scaling(scale, 1 / scale, mean_of.mean(0, dtype=torch.float32))


def scalings_for_all(
    keys: Tensor | Unrotated, values: Tensor, headroom: float
) -> tuple[Tensor, tuple[Scaling, Scaling]]:
    """Return the first chunk's keys [tokens, dim] after norm and RoPE, and the scalings of keys and values for all
    chunks.

    `headroom`: the factor by which values, and keys that no norm bounds, may be larger in later chunks."""
    of_values = scaling(values, values, headroom).with_reach()
    if isinstance(keys, Unrotated):
        rotated = keys.rotated()
        return rotated, (scaling_of_keys(keys.norm_rope, sample(rotated)), of_values)
    return keys, (scaling(keys, sample(keys), headroom * LARGEST[FP8] / MOST_KEY), of_values)


def _mean(x: Tensor, mean_of: Tensor | None) -> Tensor:
    return x.new_zeros(x.shape[1], dtype=torch.float32) if mean_of is None else mean_of.mean(0, dtype=torch.float32)


def plain_scale(x: Tensor, mean: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
    """Return the scale and 1 / scale for x [tokens, dim] minus mean [dim], fp32 [1] each.

    The scale is the smallest power of two with which `headroom` times the largest magnitude fits into float8_e4m3fn."""
    least, most = x.aminmax(dim=0)
    largest = torch.maximum(most - mean, mean - least).amax().view(1).clamp_min(1e-30)
    scale = torch.exp2(torch.log2(largest * (headroom / LARGEST[FP8])).ceil())
    return scale, 1 / scale


@lru_cache
def _fastest_scale(device_type: str) -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    """Return the function for a device: two Triton kernels instead of ten on a GPU if Triton works."""
    if device_type != "cuda" or find_spec("triton") is None:
        return plain_scale
    from ..kernels.matrix_8bit import fp8_scale

    return or_else(fp8_scale, plain_scale, "fp8_scale")


def operand(x: Tensor, made: Scaling, zeros: int = 0) -> Operand:
    """Return x [tokens, dim] in 8 bits by a scaling, followed by `zeros` tokens of zeros."""
    values = empty_values(x, zeros)
    to_fp8_(values[: len(x)], x, *made.shift_and_factor)
    return Operand(values, made)


def empty_values(x: Tensor, zeros: int = 0) -> Tensor:
    """Return memory for x [tokens, dim] in 8 bits, followed by `zeros` tokens of zeros."""
    values = torch.empty(len(x) + zeros, x.shape[1], dtype=FP8, device=x.device)
    values[len(x) :].view(torch.uint8).zero_()
    return values


def queries_in_8_bits(q: Tensor) -> Operand:
    """Return queries [tokens, dim] without a known bound in 8 bits."""
    return operand(q, scaling_to(MOST_QUERY, q))


def by_norm(values: Tensor, scale: Tensor, factor: Tensor) -> Operand:
    """Return an Operand of queries that `scatter.rotated_fp8` has quantized, with its scale and factor."""
    return Operand(values, Scaling(scale, factor, _no_mean(scale.device)))


@lru_cache
def _no_mean(device: torch.device) -> Tensor:
    return torch.zeros(1, device=device)


def operands(q: Tensor, k: Tensor, v: Tensor, zeros: int = 0) -> tuple[Operand, Operand, Operand]:
    """Return queries, keys and values [B, tokens, dim] in 8 bits, with `zeros` tokens of zeros after keys and values.

    All B elements share a scale and a mean. The keys' mean is sampled. The values' mean is exact, because a query that
    attends to all values alike returns little more than this mean."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    keys = operand(k, scaling_to(MOST_KEY, k, sample(k)), zeros)
    return queries_in_8_bits(q), keys, operand(v, scaling(v, v), zeros)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return attention with an exact softmax over 8-bit operands, in the dtype of q, which is unchanged."""
    return _plain(q, *operands(q, k, v), heads)


def plain_attention_to(q: Tensor, k: Operand, v: Operand, heads: int) -> Tensor:
    """Return `cudnn_attention_to` with an exact softmax, in the dtype of q, which is unchanged."""
    return _plain(q, queries_in_8_bits(q[0]), k, v, heads)


def plain_attention_of(q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype) -> Rows:
    """Return `cudnn_attention_of` with an exact softmax."""
    eight_bit = dtype in LARGEST
    out = _plain(torch.empty(1, 0, dtype=torch.float32 if eight_bit else dtype), q, k, v, heads)[0]
    return encode_8bit(out, dtype=dtype) if eight_bit else out


def _plain(like: Tensor, q: Operand, k: Operand, v: Operand, heads: int) -> Tensor:
    queries, keys, values = (decode(x, like.dtype, mean=False).unflatten(0, (len(like), -1)) for x in (q, k, v))
    return sdpa(queries, keys, values, heads, {}).add_(v.scaling.mean)


def decode(x: Operand, dtype: torch.dtype, mean: bool = True) -> Tensor:
    """Return the values [tokens, dim] of an Operand in `dtype`, with its mean added if `mean`."""
    added, values = x.scaling.mean if mean else torch.zeros_like(x.scaling.mean), x.rows
    return from_fp8_(torch.empty_like(values, dtype=dtype), values, added, x.scaling.scale)
