"""Conversion of q, k and v to float8_e4m3fn, and attention over converted tensors in plain torch."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from ..ops.implementation import fastest
from ..ops.matrix_8bit import LARGEST
from ..ops.plain import KEY_LENGTH, NormRope
from ..ops.pointwise import Rows, encode_8bit, from_fp8_, to_fp8_
from ..ops.scatter import BeforeRope
from .exact import sdpa

FP8 = torch.float8_e4m3fn
MAX_QUERY, MAX_KEY = 11.0, 36.0
"""The maximum magnitudes in scaled queries and keys, so that the dot product of a head of 128 fits into fp16. If an
RMSNorm's weight is known, QUERY_LENGTH and KEY_LENGTH are the limits instead."""
SAMPLE = 512
"""A tensor's maximum and mean are estimated from at least this many tokens, or from all if it has fewer."""
HEADROOM = 4.0
"""The factor by which a value may exceed the maximum of the sampled tokens without being clamped."""


class Scaling(NamedTuple):
    """The mapping of numbers x to 8 bits: (x - mean) * factor.

    scale: 1 / factor, a power of two. Both are fp32 [1].
    mean: fp32 [dim], or a zero [1].
    reach: an upper bound of the decoded magnitudes, fp32 [1], or None.
    """

    scale: Tensor
    factor: Tensor
    mean: Tensor
    reach: Tensor | None = None

    @property
    def shift_and_factor(self) -> Pair:
        """The arguments `shift` and `factor` of functions that compute (x - shift) * factor."""
        return self.mean, self.factor

    def with_reach(self) -> "Scaling":
        """Return a copy with `reach`, computed from mean and scale."""
        return self._replace(reach=self.mean.abs().amax() + LARGEST[FP8] * self.scale)


class Operand(NamedTuple):
    """An fp8 tensor of queries, keys or values, with the Scaling that decodes it.

    values: [tokens, dim] with optional zero padding, or transposed [dim, columns] (see `transposed_columns`).
    transposed_tokens: the number of tokens if values are transposed, else None.
    """

    values: Tensor
    scaling: Scaling
    transposed_tokens: int | None = None

    @property
    def rows(self) -> Tensor:
        """The values as [tokens, dim]: with their padding, or a copy without padding if they are transposed."""
        if self.transposed_tokens is None:
            return self.values
        places = transposed_columns(torch.arange(self.transposed_tokens, device=self.values.device))
        return self.values.view(torch.uint8)[:, places].T.contiguous().view(FP8)


def transposed_columns(tokens: Tensor) -> Tensor:
    """Return the column of each token number (int64 [n]) in a transposed Operand. The Hopper kernel requires this
    order."""
    return tokens // 16 * 16 + tokens % 8 // 2 * 4 + tokens % 16 // 8 * 2 + tokens % 2


def sample(x: Tensor) -> Tensor:
    """Return a view of at least SAMPLE evenly spaced tokens of x [tokens, dim], or of all tokens if x has fewer."""
    return x[:: max(1, len(x) // SAMPLE)]


def scaling(x: Tensor, mean_of: Tensor | None = None, headroom: float = HEADROOM) -> Scaling:
    """Return the Scaling that maps x [tokens, dim], minus the mean of the tokens `mean_of`, to float8_e4m3fn. Numbers
    up to `headroom` times the sampled maximum are not clamped."""
    mean = _mean(x, mean_of)
    return Scaling(*_scale(sample(x), mean, headroom), mean)


def scaling_to(most: float, x: Tensor, mean_of: Tensor | None = None) -> Scaling:
    """Return the Scaling that maps x [tokens, dim], minus the mean of the tokens `mean_of`, to magnitudes of at most
    `most`."""
    mean = _mean(x, mean_of)
    return Scaling(*_scale(x, mean, LARGEST[FP8] / most), mean)


def scaling_of_keys(norm_rope: NormRope, mean_of: Tensor) -> Scaling:
    """Return the Scaling of keys after RMSNorm, minus the mean of the tokens `mean_of` [n, dim]. The Euclidean length
    of a head's scaled key is at most `plain.KEY_LENGTH`."""
    length = norm_rope.weight.float().abs().amax().view(1).clamp_min(1e-30) * (2 * mean_of.shape[1] ** 0.5)
    scale = torch.exp2(torch.log2(length / KEY_LENGTH).ceil())
    return Scaling(scale, 1 / scale, mean_of.mean(0, dtype=torch.float32))


def scalings_for_all(
    keys: Tensor | BeforeRope, values: Tensor, headroom: float
) -> tuple[Tensor, tuple[Scaling, Scaling]]:
    """Return the first chunk's keys [tokens, dim] after norm and RoPE, and the Scalings of keys and values for the
    whole video. Later values may be `headroom` times as large."""
    of_values = scaling(values, values, headroom).with_reach()
    if isinstance(keys, BeforeRope):
        rotated = keys.with_rope()
        return rotated, (scaling_of_keys(keys.norm_rope, sample(rotated)), of_values)
    return keys, (scaling(keys, sample(keys), headroom * LARGEST[FP8] / MAX_KEY), of_values)


def _mean(x: Tensor, mean_of: Tensor | None) -> Tensor:
    return x.new_zeros(x.shape[1], dtype=torch.float32) if mean_of is None else mean_of.mean(0, dtype=torch.float32)


def plain_scale(x: Tensor, mean: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
    """Return the scale, a power of two, that fits `headroom` times max|x - mean| into float8_e4m3fn. Also return 1 /
    scale, fp32 [1]."""
    least, most = x.aminmax(dim=0)
    largest = torch.maximum(most - mean, mean - least).amax().view(1).clamp_min(1e-30)
    scale = torch.exp2(torch.log2(largest * (headroom / LARGEST[FP8])).ceil())
    return scale, 1 / scale


def _scale(x: Tensor, mean: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
    return fastest("fp8_scale", plain_scale, x.device.type)(x, mean, headroom)


def operand(x: Tensor, made: Scaling, zeros: int = 0) -> Operand:
    """Return x [tokens, dim] as an Operand with the Scaling `made`, followed by `zeros` tokens of zeros."""
    values = empty_values(x, zeros)
    to_fp8_(values[: len(x)], x, *made.shift_and_factor)
    return Operand(values, made)


def empty_values(x: Tensor, zeros: int = 0) -> Tensor:
    """Return a float8_e4m3fn tensor [tokens + zeros, dim], uninitialized except for the last `zeros` rows, which are
    zero."""
    values = torch.empty(len(x) + zeros, x.shape[1], dtype=FP8, device=x.device)
    values[len(x) :].view(torch.uint8).zero_()
    return values


def queries_in_8_bits(q: Tensor) -> Operand:
    """Return queries q [tokens, dim], after norm and RoPE, as an Operand with magnitudes of at most MAX_QUERY."""
    return operand(q, scaling_to(MAX_QUERY, q))


def by_norm(values: Tensor, scale: Tensor, factor: Tensor) -> Operand:
    """Wrap queries in fp8, their scale and 1 / scale, as `scatter.rotated_fp8` returns them, in an Operand."""
    return Operand(values, Scaling(scale, factor, _no_mean(scale.device)))


@lru_cache
def _no_mean(device: torch.device) -> Tensor:
    return torch.zeros(1, device=device)


def operands(q: Tensor, k: Tensor, v: Tensor, zeros: int = 0) -> tuple[Operand, Operand, Operand]:
    """Return fp8 q, k and v [B * tokens, dim]. The means of keys and of values are subtracted first. `zeros` tokens of
    zeros pad keys and values."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    keys = operand(k, scaling_to(MAX_KEY, k, sample(k)), zeros)
    return queries_in_8_bits(q), keys, operand(v, scaling(v, v), zeros)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Round q, k and v [B, tokens, heads*head_dim] to float8_e4m3fn. Return attention in q's dtype, computed by plain
    torch."""
    return _plain(q, *operands(q, k, v), heads)


def plain_attention_to(q: Tensor, k: Operand, v: Operand, heads: int) -> Tensor:
    """Round q [1, L, heads*head_dim] to float8_e4m3fn. Return attention over fp8 k and v in q's dtype, computed by
    plain torch."""
    return _plain(q, queries_in_8_bits(q[0]), k, v, heads)


def plain_attention_of(q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype) -> Rows:
    """Return attention [L, heads*head_dim] of fp8 q, k and v in `dtype`, computed by plain torch. An 8-bit result has a
    scale for each token."""
    eight_bit = dtype in LARGEST
    out = _plain(torch.empty(1, 0, dtype=torch.float32 if eight_bit else dtype), q, k, v, heads)[0]
    return encode_8bit(out, dtype=dtype) if eight_bit else out


def _plain(like: Tensor, q: Operand, k: Operand, v: Operand, heads: int) -> Tensor:
    queries, keys, values = (decode(x, like.dtype, mean=False).unflatten(0, (len(like), -1)) for x in (q, k, v))
    return sdpa(queries, keys, values, heads, {}).add_(v.scaling.mean)


def decode(x: Operand, dtype: torch.dtype, mean: bool = True) -> Tensor:
    """Return the values [tokens, dim] of an Operand in `dtype`, without its mean if `mean` is False."""
    added, values = x.scaling.mean if mean else torch.zeros_like(x.scaling.mean), x.rows
    return from_fp8_(torch.empty_like(values, dtype=dtype), values, added, x.scaling.scale)
