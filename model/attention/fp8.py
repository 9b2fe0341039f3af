"""Conversion of queries, keys and values to float8_e4m3fn, and attention over the converted tensors in plain torch.

Each tensor has a single scale, because cuDNN supports nothing finer. The mean over the tokens is first subtracted from
keys and from values, so a channel that is large in all tokens costs no precision. The keys' mean does not change the
softmax. The values' mean is added to the result.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from ..ops.implementation import fastest
from ..ops.matrix_8bit import LARGEST
from ..ops.plain import KEY_LENGTH, NormRope
from ..ops.pointwise import Rows, encode_8bit, from_fp8_, to_fp8_
from ..ops.scatter import Unrotated
from .exact import sdpa

FP8 = torch.float8_e4m3fn
MOST_QUERY, MOST_KEY = 11.0, 36.0
"""After scaling to 8 bits, the numbers in queries and keys have magnitudes of at most MOST_QUERY and MOST_KEY. The
limits are used if no norm bounds the vectors' lengths.

With a head size of 128, a head's query vector is then at most `plain.QUERY_LENGTH` long, and its key vector at most
`plain.KEY_LENGTH`. In a KV cache, keys of later chunks keep to the limit up to the cache's headroom.
"""
SAMPLE = 512
"""At least this many evenly spaced tokens are used to estimate a tensor's maximum and the mean of keys. If a tensor has
fewer tokens, all are used."""
HEADROOM = 4.0
"""A value may be this factor times the maximum of the sampled tokens without being clamped.

float8_e4m3fn reaches 448, so scaling maps the sampled maximum to at most 448 / 4 = 112. Scales are powers of two, so
the sampled maximum becomes more than 56. Numbers below 2**-6 are subnormal, so only values below 1/3584 of the maximum
lose precision.
"""


class Scaling(NamedTuple):
    """The mapping of numbers x to 8 bits: (x - mean) * factor.

    `scale`, a power of two, is 1 / `factor`; both are fp32 [1]. `mean` is fp32 [dim], or a zero [1] for queries after a
    norm. `reach` (fp32 [1]) is an upper bound of the decoded magnitudes, or None if unknown.
    """

    scale: Tensor
    factor: Tensor
    mean: Tensor
    reach: Tensor | None = None

    @property
    def shift_and_factor(self) -> Pair:
        """The arguments `shift` and `factor` of functions such as `to_fp8_`, which compute (x - shift) * factor."""
        return self.mean, self.factor

    def with_reach(self) -> "Scaling":
        """Return a copy with `reach`, an upper bound of the decoded magnitudes, computed from mean and scale."""
        return self._replace(reach=self.mean.abs().amax() + LARGEST[FP8] * self.scale)


class Operand(NamedTuple):
    """A tensor of tokens in float8_e4m3fn, for 8-bit attention, with the Scaling that decodes it.

    If `transposed` is None, `values` is [tokens, dim], and tokens of zeros may follow as padding. Otherwise
    `transposed` is the number of tokens without padding, and `values` is [dim, columns] in the order of
    `transposed_columns`.
    """

    values: Tensor
    scaling: Scaling
    transposed: int | None = None

    @property
    def rows(self) -> Tensor:
        """The values as [tokens, dim], not transposed. If `transposed` is None, this is `values` itself, with its
        padding; otherwise it is a copy without padding."""
        if self.transposed is None:
            return self.values
        places = transposed_columns(torch.arange(self.transposed, device=self.values.device))
        return self.values.view(torch.uint8)[:, places].T.contiguous().view(FP8)


def transposed_columns(tokens: Tensor) -> Tensor:
    """Return the column of each token number in `tokens` (int64 [n]) in a transposed Operand (fp8 values with their
    scale). The Hopper kernel requires an order within every 16 columns: tokens 0, 1, 8, 9, 2, 3, 10, 11, 4, 5 and so
    on."""
    return tokens // 16 * 16 + tokens % 8 // 2 * 4 + tokens % 16 // 8 * 2 + tokens % 2


def sample(x: Tensor) -> Tensor:
    """Return at least SAMPLE evenly spaced tokens of x [tokens, dim], as a view; all tokens if x has fewer."""
    return x[:: max(1, len(x) // SAMPLE)]


def scaling(x: Tensor, mean_of: Tensor | None = None, headroom: float = HEADROOM) -> Scaling:
    """Return the Scaling that maps x [tokens, dim], minus the mean of the tokens `mean_of` [n, dim] (None: 0), to
    float8_e4m3fn. Magnitudes up to `headroom` times the maximum of a sample of x are not clamped."""
    mean = _mean(x, mean_of)
    return Scaling(*_scale(sample(x), mean, headroom), mean)


def scaling_to(most: float, x: Tensor, mean_of: Tensor | None = None) -> Scaling:
    """Return the Scaling that maps x [tokens, dim], minus the mean of the tokens `mean_of` [n, dim] (None: 0), to
    float8_e4m3fn. The largest magnitude becomes at most `most`."""
    mean = _mean(x, mean_of)
    return Scaling(*_scale(x, mean, LARGEST[FP8] / most), mean)


def scaling_of_keys(norm_rope: NormRope, mean_of: Tensor) -> Scaling:
    """Return the Scaling that maps keys, after the norm in `norm_rope` and minus the mean of the sampled keys `mean_of`
    [n, dim], to float8_e4m3fn.

    The norm's weights bound a key's length. The subtraction of the mean at most doubles this bound. The scale maps the
    doubled bound to at most `plain.KEY_LENGTH`, so no key of a head is longer than that after scaling.
    """
    length = norm_rope.weight.float().abs().amax().view(1).clamp_min(1e-30) * (2 * mean_of.shape[1] ** 0.5)
    scale = torch.exp2(torch.log2(length / KEY_LENGTH).ceil())
    return Scaling(scale, 1 / scale, mean_of.mean(0, dtype=torch.float32))


def scalings_for_all(
    keys: Tensor | Unrotated, values: Tensor, headroom: float
) -> tuple[Tensor, tuple[Scaling, Scaling]]:
    """Return the first chunk's keys [tokens, dim], and the Scalings of keys and of values for the whole video. Norm and
    RoPE are applied to keys that are Unrotated.

    Values of later chunks may be `headroom` times as large as the first chunk's without being clamped. The same applies
    to keys, unless a norm bounds them.
    """
    of_values = scaling(values, values, headroom).with_reach()
    if isinstance(keys, Unrotated):
        rotated = keys.rotated()
        return rotated, (scaling_of_keys(keys.norm_rope, sample(rotated)), of_values)
    return keys, (scaling(keys, sample(keys), headroom * LARGEST[FP8] / MOST_KEY), of_values)


def _mean(x: Tensor, mean_of: Tensor | None) -> Tensor:
    return x.new_zeros(x.shape[1], dtype=torch.float32) if mean_of is None else mean_of.mean(0, dtype=torch.float32)


def plain_scale(x: Tensor, mean: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
    """Return the scale for x [tokens, dim] minus mean [dim], and 1 / scale, both fp32 [1]. The scale is the smallest
    power of two with which `headroom` times the largest magnitude fits into float8_e4m3fn."""
    least, most = x.aminmax(dim=0)
    largest = torch.maximum(most - mean, mean - least).amax().view(1).clamp_min(1e-30)
    scale = torch.exp2(torch.log2(largest * (headroom / LARGEST[FP8])).ceil())
    return scale, 1 / scale


def _scale(x: Tensor, mean: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
    """Return `plain_scale(x, mean, headroom)`, on a GPU with Triton by two kernels instead of ten."""
    return fastest("fp8_scale", plain_scale, x.device.type)(x, mean, headroom)


def operand(x: Tensor, made: Scaling, zeros: int = 0) -> Operand:
    """Return x [tokens, dim] as an Operand in float8_e4m3fn. Its values are (x - mean) * factor with the mean and
    factor of the Scaling `made`, rounded, followed by `zeros` zero tokens as padding."""
    values = empty_values(x, zeros)
    to_fp8_(values[: len(x)], x, *made.shift_and_factor)
    return Operand(values, made)


def empty_values(x: Tensor, zeros: int = 0) -> Tensor:
    """Return a float8_e4m3fn tensor [tokens + zeros, dim] for the values of x [tokens, dim]. The last `zeros` rows are
    zero, and the other rows are uninitialized."""
    values = torch.empty(len(x) + zeros, x.shape[1], dtype=FP8, device=x.device)
    values[len(x) :].view(torch.uint8).zero_()
    return values


def queries_in_8_bits(q: Tensor) -> Operand:
    """Return q [tokens, dim] as an Operand (float8_e4m3fn values with their scale), with magnitudes of at most
    MOST_QUERY. For queries before norm and RoPE, use `scatter.rotated_fp8` instead."""
    return operand(q, scaling_to(MOST_QUERY, q))


def by_norm(values: Tensor, scale: Tensor, factor: Tensor) -> Operand:
    """Return queries as an Operand with a mean of zero, from the results of `scatter.rotated_fp8`: float8_e4m3fn
    `values` [tokens, dim], `scale` and `factor` = 1 / scale, both fp32 [1]."""
    return Operand(values, Scaling(scale, factor, _no_mean(scale.device)))


@lru_cache
def _no_mean(device: torch.device) -> Tensor:
    return torch.zeros(1, device=device)


def operands(q: Tensor, k: Tensor, v: Tensor, zeros: int = 0) -> tuple[Operand, Operand, Operand]:
    """Return q, k and v [B, tokens, dim] as Operands [B * tokens, dim] (float8_e4m3fn values with their scale), with
    `zeros` tokens of zeros after keys and values. Each Operand has one scale for all batch elements.

    Before the conversion, the mean over all tokens is subtracted from keys and from values. The keys' mean is estimated
    from a sample, because it does not change the softmax. The values' mean is exact, because attention adds it to the
    result, and an error in it would be an error of the result.
    """
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    keys = operand(k, scaling_to(MOST_KEY, k, sample(k)), zeros)
    return queries_in_8_bits(q), keys, operand(v, scaling(v, v), zeros)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return attention of q over k and v [B, tokens, heads*head_dim] in plain torch, in q's dtype. q, k and v are
    rounded to float8_e4m3fn; the softmax is exact. q is not overwritten."""
    return _plain(q, *operands(q, k, v), heads)


def plain_attention_to(q: Tensor, k: Operand, v: Operand, heads: int) -> Tensor:
    """Return attention of q [1, L, heads*head_dim] over the Operands k and v (float8_e4m3fn values with their scale) in
    plain torch, in q's dtype. q is rounded to float8_e4m3fn too; the softmax is exact. q is not overwritten."""
    return _plain(q, queries_in_8_bits(q[0]), k, v, heads)


def plain_attention_of(q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype) -> Rows:
    """Return attention [L, heads*head_dim] of the Operands q, k and v (float8_e4m3fn values with their scale) in plain
    torch, with an exact softmax. The result is a tensor in `dtype`, or for int8 and float8_e4m3fn an EightBit with one
    scale for each token."""
    eight_bit = dtype in LARGEST
    out = _plain(torch.empty(1, 0, dtype=torch.float32 if eight_bit else dtype), q, k, v, heads)[0]
    return encode_8bit(out, dtype=dtype) if eight_bit else out


def _plain(like: Tensor, q: Operand, k: Operand, v: Operand, heads: int) -> Tensor:
    queries, keys, values = (decode(x, like.dtype, mean=False).unflatten(0, (len(like), -1)) for x in (q, k, v))
    return sdpa(queries, keys, values, heads, {}).add_(v.scaling.mean)


def decode(x: Operand, dtype: torch.dtype, mean: bool = True) -> Tensor:
    """Return the values [tokens, dim] of an Operand (fp8 values with their scale and mean) in `dtype`. If `mean` is
    False, the mean is not added."""
    added, values = x.scaling.mean if mean else torch.zeros_like(x.scaling.mean), x.rows
    return from_fp8_(torch.empty_like(values, dtype=dtype), values, added, x.scaling.scale)
