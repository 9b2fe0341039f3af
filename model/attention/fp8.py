"""Queries, keys and values in float8_e4m3fn for attention, and attention of them in plain torch.

Each has one scale: cuDNN takes no more. The means of keys and values over the tokens are taken off before. The keys'
adds the same to all scores of a query, so that the softmax does not change; the values' is added to the result. A
channel that is large in all tokens thus costs no exactness."""

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from ..ops.matrix_8bit import LARGEST
from ..ops.plain import KEY_LENGTH, Turning
from ..ops.pointwise import Rows, encode_8bit, from_fp8_, or_else, to_fp8_
from ..ops.scatter import Unturned
from .exact import sdpa

FP8 = torch.float8_e4m3fn
MOST_QUERY, MOST_KEY = 11.0, 36.0
"""The largest numbers of queries and keys that no norm bounds: with heads of 128 they are no longer than those that a
norm bounds (see `pointwise_plain.QUERY_LENGTH`). A float is as exact at any size."""
SAMPLE = 512
"""At least so many tokens, evenly spread, are looked at for the largest value and for the keys' mean."""
HEADROOM = 4.0
"""A value may be so many times as large as the largest that was looked at. A float is as exact at any size, so this
costs only values below 1/3584 of that largest."""


class Scaling(NamedTuple):
    """How numbers become 8 bits: (x - mean) * factor. `scale` is 1 / factor; scale and factor [1], mean [dim], in fp32.
    Some know their `reach` [1]: no number that comes back is larger.

    The scale is a power of two. So a value becomes the same float whatever heads share the scale, in one process or
    among several, unless it is so small that it is no normal number."""

    scale: Tensor
    factor: Tensor
    mean: Tensor
    reach: Tensor | None = None

    @property
    def shift_and_factor(self) -> Pair:
        """As the functions that make 8 bits take them."""
        return self.mean, self.factor

    def with_reach(self) -> "Scaling":
        """It, with its reach."""
        return self._replace(reach=self.mean.abs().amax() + LARGEST[FP8] * self.scale)


class Operand(NamedTuple):
    """A tensor in 8 bits, [tokens, dim]. Tokens of zeros may follow the true ones. With `across`, so many tokens lie
    along the rows, [dim, tokens and zeros], in the order of `places_across`."""

    values: Tensor
    scaling: Scaling
    across: int | None = None

    @property
    def rows(self) -> Tensor:
        """[tokens, dim], however they lie."""
        if self.across is None:
            return self.values
        places = places_across(torch.arange(self.across, device=self.values.device))
        return self.values.view(torch.uint8)[:, places].T.contiguous().view(FP8)


def places_across(tokens: Tensor) -> Tensor:
    """Where tokens lie that lie along the rows: of every 16 of them 0, 1, 8, 9, 2, 3, 10, 11, 4, 5 and so on come one
    after the other. The Hopper kernel wants that."""
    return tokens // 16 * 16 + tokens % 8 // 2 * 4 + tokens % 16 // 8 * 2 + tokens % 2


def sample(x: Tensor) -> Tensor:
    """Some of the tokens x [tokens, dim]."""
    return x[:: max(1, len(x) // SAMPLE)]


def scaling(x: Tensor, mean_of: Tensor | None = None, headroom: float = HEADROOM) -> Scaling:
    """For x [tokens, dim], less the mean of the tokens `mean_of`, and what is `headroom` times as large as a sample."""
    mean = _mean(x, mean_of)
    return Scaling(*_fastest_scale(x.device.type)(sample(x), mean, headroom), mean)


def scaling_to(most: float, x: Tensor, mean_of: Tensor | None = None) -> Scaling:
    """For x [tokens, dim], less the mean of the tokens `mean_of`: no number of it is larger than `most` in 8 bits."""
    mean = _mean(x, mean_of)
    return Scaling(*_fastest_scale(x.device.type)(x, mean, LARGEST[FP8] / most), mean)


def scaling_of_keys(turning: Turning, mean_of: Tensor) -> Scaling:
    """For all keys that this norm bounds, less the mean of the tokens `mean_of` [tokens, dim]. A mean is no longer than
    the longest key, so no difference is more than twice as long."""
    length = turning.weight.float().abs().amax().view(1).clamp_min(1e-30) * (2 * mean_of.shape[1] ** 0.5)
    scale = torch.exp2(torch.log2(length / KEY_LENGTH).ceil())
    return Scaling(scale, 1 / scale, mean_of.mean(0, dtype=torch.float32))


def scalings_for_all(
    keys: Tensor | Unturned, values: Tensor, headroom: float
) -> tuple[Tensor, tuple[Scaling, Scaling]]:
    """The first keys [tokens, dim] after norm and rotation; and how keys and values become 8 bits, later ones too.
    `headroom`: how many times as large later ones may be, where no norm bounds them."""
    of_values = scaling(values, values, headroom).with_reach()
    if isinstance(keys, Unturned):
        turned = keys.turned()
        return turned, (scaling_of_keys(keys.turning, sample(turned)), of_values)
    return keys, (scaling(keys, sample(keys), headroom * LARGEST[FP8] / MOST_KEY), of_values)


def _mean(x: Tensor, mean_of: Tensor | None) -> Tensor:
    return x.new_zeros(x.shape[1], dtype=torch.float32) if mean_of is None else mean_of.mean(0, dtype=torch.float32)


def plain_scale(x: Tensor, mean: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
    """fp32 [1] each: the least power of two by which `headroom` times the largest magnitude of x [tokens, dim] less
    mean [dim] becomes a float8_e4m3fn, and 1 over it."""
    least, most = x.aminmax(dim=0)
    largest = torch.maximum(most - mean, mean - least).amax().view(1).clamp_min(1e-30)
    scale = torch.exp2(torch.log2(largest * (headroom / LARGEST[FP8])).ceil())
    return scale, 1 / scale


@lru_cache
def _fastest_scale(device_type: str) -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    """Two kernels in place of ten where Triton works on a GPU."""
    if device_type != "cuda" or find_spec("triton") is None:
        return plain_scale
    from ..kernels.matrix_8bit import fp8_scale

    return or_else(fp8_scale, plain_scale, "fp8_scale")


def operand(x: Tensor, made: Scaling, zeros: int = 0) -> Operand:
    """x [tokens, dim] in 8 bits as the scaling makes it; so many tokens of `zeros` come behind it."""
    values = empty_values(x, zeros)
    to_fp8_(values[: len(x)], x, *made.shift_and_factor)
    return Operand(values, made)


def empty_values(x: Tensor, zeros: int = 0) -> Tensor:
    """Memory for x [tokens, dim] in 8 bits, with so many tokens of `zeros` behind it."""
    values = torch.empty(len(x) + zeros, x.shape[1], dtype=FP8, device=x.device)
    values[len(x) :].view(torch.uint8).zero_()
    return values


def queries_in_8_bits(q: Tensor) -> Operand:
    """Queries [tokens, dim] of which nothing is known."""
    return operand(q, scaling_to(MOST_QUERY, q))


def by_norm(values: Tensor, scale: Tensor, factor: Tensor) -> Operand:
    """Queries by the scale that their norm allows: see `puts.turned_fp8`."""
    return Operand(values, Scaling(scale, factor, _no_mean(scale.device)))


@lru_cache
def _no_mean(device: torch.device) -> Tensor:
    return torch.zeros(1, device=device)


def operands(q: Tensor, k: Tensor, v: Tensor, zeros: int = 0) -> tuple[Operand, Operand, Operand]:
    """Queries, keys and values [B, tokens, dim] in 8 bits, and tokens of `zeros` behind keys and values. All B rows
    share a scale and a mean. The keys' mean need not be exact, but where a query attends to all values alike its result
    is little more than their mean."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    keys = operand(k, scaling_to(MOST_KEY, k, sample(k)), zeros)
    return queries_in_8_bits(q), keys, operand(v, scaling(v, v), zeros)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """The same with an exact softmax, in the dtype of q, which stays as it is."""
    return _plain(q, *operands(q, k, v), heads)


def plain_attention_to(q: Tensor, k: Operand, v: Operand, heads: int) -> Tensor:
    """`cudnn_attention_to` with an exact softmax, in the dtype of q, which stays as it is."""
    return _plain(q, queries_in_8_bits(q[0]), k, v, heads)


def plain_attention_of(q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype) -> Rows:
    """`cudnn_attention_of` with an exact softmax."""
    eight_bit = dtype in LARGEST
    out = _plain(torch.empty(1, 0, dtype=torch.float32 if eight_bit else dtype), q, k, v, heads)[0]
    return encode_8bit(out, dtype=dtype) if eight_bit else out


def _plain(like: Tensor, q: Operand, k: Operand, v: Operand, heads: int) -> Tensor:
    queries, keys, values = (decode(x, like.dtype, mean=False).unflatten(0, (len(like), -1)) for x in (q, k, v))
    return sdpa(queries, keys, values, heads, {}).add_(v.scaling.mean)


def decode(x: Operand, dtype: torch.dtype, mean: bool = True) -> Tensor:
    """[tokens, dim] in `dtype`; without the `mean` if that is wanted."""
    added, values = x.scaling.mean if mean else torch.zeros_like(x.scaling.mean), x.rows
    return from_fp8_(torch.empty_like(values, dtype=dtype), values, added, x.scaling.scale)
