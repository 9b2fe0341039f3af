"""Conversion of q, k and v to float8_e4m3fn, and attention over converted tensors in plain torch."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from ..ops.implementation import our_kernel_or
from ..ops.matrix_8bit import LARGEST
from ..ops.plain import MAX_KEY_NORM, NormRope
from ..ops.pointwise import Rows, encode_8bit, from_fp8_, to_fp8_
from ..ops.scatter import BeforeRope
from .exact import sdpa

FP8 = torch.float8_e4m3fn
MAX_QUERY, MAX_KEY = 11.0, 36.0
"""The maximum magnitudes of the elements of scaled queries and keys. They keep the dot product of a head of 128
elements within fp16. Queries and keys after an RMSNorm are limited by MAX_QUERY_NORM and MAX_KEY_NORM instead."""
SAMPLE = 512
"""The mean and the maximum of a tensor are estimated from at least this many tokens, or from all tokens if the tensor
has fewer."""
HEADROOM = 4.0
"""The factor by which a value may exceed the maximum of the sampled tokens without being clamped."""


class Scaling(NamedTuple):
    """The mapping of numbers x to fp8 values: (x - mean) * factor.

    scale: 1 / factor, a power of two, fp32 [1].
    factor: fp32 [1].
    mean: fp32 [dim], or a zero [1].
    bound: an upper bound of the decoded magnitudes, fp32 [1], or None.
    """

    scale: Tensor
    factor: Tensor
    mean: Tensor
    bound: Tensor | None = None

    @property
    def shift_and_factor(self) -> Pair:
        """The arguments `shift` and `factor` of functions that compute (x - shift) * factor."""
        return self.mean, self.factor

    def with_bound(self) -> "Scaling":
        """Return a copy of this Scaling with `bound` set. No fp8 value that is decoded by this scale and mean has a
        larger magnitude."""
        return self._replace(bound=self.mean.abs().amax() + LARGEST[FP8] * self.scale)


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
        """The fp8 values as [tokens, dim]. If the values are stored transposed, they are copied without padding tokens.
        Otherwise they are returned as stored, and may end with padding tokens."""
        if self.transposed_tokens is None:
            return self.values
        places = transposed_columns(torch.arange(self.transposed_tokens, device=self.values.device))
        return self.values.view(torch.uint8)[:, places].T.contiguous().view(FP8)


def transposed_columns(tokens: Tensor) -> Tensor:
    """Return the column (int64 [n]) of each token index in a transposed Operand. Every 16 columns hold 16 tokens in the
    order of the Hopper kernel: 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15."""
    return tokens // 16 * 16 + tokens % 8 // 2 * 4 + tokens % 16 // 8 * 2 + tokens % 2


def sample(x: Tensor) -> Tensor:
    """Return a view of at least SAMPLE evenly spaced tokens of x [tokens, dim], or of all tokens if x has fewer."""
    return x[:: max(1, len(x) // SAMPLE)]


def sampled_scaling(x: Tensor, mean_tokens: Tensor | None = None, headroom: float = HEADROOM) -> Scaling:
    """Return the Scaling of x [tokens, dim] to fp8. It subtracts the mean of `mean_tokens` [n, dim], or nothing if
    None. The scale fits `headroom` times the maximum of a sample of x; larger numbers are clamped."""
    mean = _mean(x, mean_tokens)
    return Scaling(*_scale(sample(x), mean, headroom), mean)


def limited_scaling(limit: float, x: Tensor, mean_tokens: Tensor | None = None) -> Scaling:
    """Return the Scaling of x [tokens, dim] to magnitudes of at most `limit`, after subtraction of the mean of
    `mean_tokens` [n, dim] (None: no mean)."""
    mean = _mean(x, mean_tokens)
    return Scaling(*_scale(x, mean, LARGEST[FP8] / limit), mean)


def normed_key_scaling(norm_rope: NormRope, mean_tokens: Tensor) -> Scaling:
    """Return the fp8 Scaling of keys after RMSNorm and RoPE. The Scaling subtracts the mean of `mean_tokens` [n, dim],
    a sample of these keys. A head's scaled key has a Euclidean norm of at most `plain.MAX_KEY_NORM`."""
    length = norm_rope.weight.float().abs().amax().view(1).clamp_min(1e-30) * (2 * mean_tokens.shape[1] ** 0.5)
    scale = torch.exp2(torch.log2(length / MAX_KEY_NORM).ceil())
    return Scaling(scale, 1 / scale, mean_tokens.mean(0, dtype=torch.float32))


def first_keys_and_scalings(
    keys: Tensor | BeforeRope, values: Tensor, headroom: float
) -> tuple[Tensor, tuple[Scaling, Scaling]]:
    """Return the first chunk's keys [tokens, dim] after norm and RoPE, and the Scalings of keys and values for all
    chunks of the video. Numbers in later chunks may be `headroom` times as large without clamping."""
    of_values = sampled_scaling(values, values, headroom).with_bound()
    if isinstance(keys, BeforeRope):
        rotated = keys.apply_rope_()
        return rotated, (normed_key_scaling(keys.norm_rope, sample(rotated)), of_values)
    return keys, (sampled_scaling(keys, sample(keys), headroom * LARGEST[FP8] / MAX_KEY), of_values)


def _mean(x: Tensor, tokens: Tensor | None) -> Tensor:
    return x.new_zeros(x.shape[1], dtype=torch.float32) if tokens is None else tokens.mean(0, dtype=torch.float32)


def plain_scale(x: Tensor, mean: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
    """Return the tuple (scale, 1 / scale), fp32 [1] each. The scale is a power of two, so large that headroom * (x -
    mean) / scale fits float8_e4m3fn. x is [tokens, dim], mean [dim] or [1]."""
    least, limit = x.aminmax(dim=0)
    largest = torch.maximum(limit - mean, mean - least).amax().view(1).clamp_min(1e-30)
    scale = torch.exp2(torch.log2(largest * (headroom / LARGEST[FP8])).ceil())
    return scale, 1 / scale


def _scale(x: Tensor, mean: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
    return our_kernel_or("fp8_scale", plain_scale, x.device.type)(x, mean, headroom)


def to_operand(x: Tensor, scaling: Scaling, zeros: int = 0) -> Operand:
    """Convert x [tokens, dim] to fp8 with a Scaling. Append `zeros` tokens of zeros."""
    values = empty_values(x, zeros)
    to_fp8_(values[: len(x)], x, *scaling.shift_and_factor)
    return Operand(values, scaling)


def empty_values(x: Tensor, zeros: int = 0) -> Tensor:
    """Allocate fp8 values for x [tokens, dim] on x's device. Return float8_e4m3fn [tokens + zeros, dim], uninitialized
    except for the last `zeros` rows, which are zero."""
    values = torch.empty(len(x) + zeros, x.shape[1], dtype=FP8, device=x.device)
    values[len(x) :].view(torch.uint8).zero_()
    return values


def queries_to_operand(q: Tensor) -> Operand:
    """Convert queries q [tokens, dim], after norm and RoPE, to fp8, scaled so that no magnitude exceeds MAX_QUERY."""
    return to_operand(q, limited_scaling(MAX_QUERY, q))


def wrap_fp8_queries(values: Tensor, scale: Tensor, factor: Tensor) -> Operand:
    """Return an Operand of fp8 queries, whose Scaling subtracts no mean. The arguments are the results of
    `scatter.rope_fp8`: fp8 [tokens, dim], the scale, and `factor`, which is 1 / scale. The queries are values *
    scale."""
    return Operand(values, Scaling(scale, factor, _no_mean(scale.device)))


@lru_cache
def _no_mean(device: torch.device) -> Tensor:
    return torch.zeros(1, device=device)


def to_operands(q: Tensor, k: Tensor, v: Tensor, zeros: int = 0) -> tuple[Operand, Operand, Operand]:
    """Convert q, k and v [B, tokens, dim] to fp8 Operands [B * tokens, dim]. The mean over tokens is subtracted from k
    and v. Attention adds v's mean back, from the Operand's `scaling`.

    zeros: the number of zero tokens to append to k and v as padding; above 0 only if B is 1.
    """
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    keys = to_operand(k, limited_scaling(MAX_KEY, k, sample(k)), zeros)
    return queries_to_operand(q), keys, to_operand(v, sampled_scaling(v, v), zeros)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Convert q, k and v [B, tokens, heads*head_dim] to fp8, and attend in plain torch. Return the result in q's
    dtype."""
    return _plain(q, *to_operands(q, k, v), heads)


def plain_attention_fp8_kv(q: Tensor, k: Operand, v: Operand, heads: int) -> Tensor:
    """Convert q [1, L, heads*head_dim] to fp8, and attend to fp8 k and v in plain torch. Return the result in q's
    dtype."""
    return _plain(q, queries_to_operand(q[0]), k, v, heads)


def plain_attention_fp8_qkv(q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype) -> Rows:
    """Attend to fp8 k and v with fp8 q in plain torch. Return the result [L, heads*head_dim] in `dtype`. A result in an
    8-bit dtype has a scale for each token."""
    eight_bit = dtype in LARGEST
    out = _plain(torch.empty(1, 0, dtype=torch.float32 if eight_bit else dtype), q, k, v, heads)[0]
    return encode_8bit(out, dtype=dtype) if eight_bit else out


def _plain(like: Tensor, q: Operand, k: Operand, v: Operand, heads: int) -> Tensor:
    queries, keys, values = (decode(x, like.dtype, mean=False).unflatten(0, (len(like), -1)) for x in (q, k, v))
    return sdpa(queries, keys, values, heads, {}).add_(v.scaling.mean)


def decode(x: Operand, dtype: torch.dtype, mean: bool = True) -> Tensor:
    """Return the values [tokens, dim] of an Operand, decoded to `dtype`. If `mean` is False, the Operand's mean is not
    added."""
    added, values = x.scaling.mean if mean else torch.zeros_like(x.scaling.mean), x.rows
    return from_fp8_(torch.empty_like(values, dtype=dtype), values, added, x.scaling.scale)
