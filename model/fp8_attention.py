"""Attention of float8_e4m3fn operands by cuDNN, whose Python package builds the kernel, and the same in plain torch.

Queries, keys and values have one scale each: cuDNN takes no more. The means of keys and values over the tokens are
taken off before. The keys' adds the same to all scores of a query, so that the softmax does not change; the values' is
added to the result. A channel that is large in all tokens thus costs no exactness. cuDNN gives its result in 8 bits
too: on Hopper it gives no other."""

from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .attention import TILE, sdpa
from .pointwise import from_fp8_, to_fp8_
from .quantized import LARGEST

FP8 = torch.float8_e4m3fn
SAMPLE = 512
"""At least so many tokens, evenly spread, are looked at for the largest value and for the keys' mean."""
HEADROOM = 4.0
"""A value may be so many times as large as the largest that was looked at. A float is as exact at any size, so this
costs only values below 1/3584 of that largest."""
PADDED_KEYS = 256
"""Of so many keys one may be a key of zeros, see `padding`."""
NUMERATORS = 256.0
"""What the softmax's numerators, at most 1, are multiplied by before they become 8 bits in the kernel."""


class Operand(NamedTuple):
    """A tensor in 8 bits: `values` [tokens, dim] times `scale` [1] plus `mean` [dim]; scale and mean in fp32. Further
    tokens of zeros may follow.

    The scale is a power of two. So a value becomes the same float whatever heads share the scale, in one process or
    among several, unless it is so small that it is no normal number."""

    values: Tensor
    scale: Tensor
    mean: Tensor


def sample(x: Tensor) -> Tensor:
    """Some of the tokens x [tokens, dim]."""
    return x[:: max(1, len(x) // SAMPLE)]


def operand(x: Tensor, mean_of: Tensor | None = None, zeros: int = 0) -> Operand:
    """x [tokens, dim] in 8 bits, less the mean of the tokens `mean_of`; so many tokens of `zeros` come behind it."""
    mean = x.new_zeros(x.shape[1], dtype=torch.float32) if mean_of is None else mean_of.mean(0, dtype=torch.float32)
    largest = (sample(x) - mean).abs().amax().view(1).clamp_min(1e-30)
    scale = torch.exp2(torch.log2(largest * (HEADROOM / LARGEST[FP8])).ceil())
    values = torch.empty(len(x) + zeros, x.shape[1], dtype=FP8, device=x.device)
    to_fp8_(values[: len(x)], x, mean, 1 / scale)
    values[len(x) :].view(torch.uint8).zero_()
    return Operand(values, scale, mean)


def padding(keys: int) -> int:
    """Keys and values of zeros that are added because cuDNN is faster if the keys fill its tiles.

    The scores of such a key are 0. Those of a query's true keys are 0 on the average, because the keys' mean was taken
    off; so the sum of their exponentials is at least their number. Added keys thus have no more than their share of the
    keys in the result, and draw it towards the values' mean. Where that is more than one in PADDED_KEYS none are added.
    """
    added = -keys % TILE
    return added if added * PADDED_KEYS <= keys else 0


def operands(q: Tensor, k: Tensor, v: Tensor, zeros: int = 0) -> tuple[Operand, Operand, Operand]:
    """Queries, keys and values [B, tokens, dim] in 8 bits, and tokens of `zeros` behind keys and values. All B rows
    share a scale and a mean. The keys' mean need not be exact, but where a query attends to all values alike its result
    is little more than their mean."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return operand(q), operand(k, sample(k), zeros), operand(v, v, zeros)


def cudnn_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Attention of q [B, L, heads*head_dim] over k and v [B, S, heads*head_dim]. A contiguous q is overwritten with the
    result. Raises what cuDNN raises where it has no such kernel."""
    rows, queries, dim = q.shape
    zeros = padding(k.shape[1]) if rows == 1 else 0
    with torch.cuda.device_of(q):
        in_8_bits = operands(q, k, v, zeros)
        values = _graph(q.device, rows, queries, k.shape[1] + zeros, heads, dim // heads)(*in_8_bits)
        return from_fp8_(q.flatten(0, 1), values, in_8_bits[2].mean, in_8_bits[2].scale).view(q.shape)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """The same with an exact softmax, in the dtype of q, which stays as it is."""
    in_8_bits, zeros = operands(q, k, v), torch.zeros(q.shape[-1], device=q.device)
    q, k, v = (from_fp8_(torch.empty_like(x.flatten(0, 1)), each.values, zeros, each.scale).view(x.shape)
               for x, each in zip((q, k, v), in_8_bits, strict=True))  # fmt: skip
    return sdpa(q, k, v, heads, {}).add_(in_8_bits[2].mean)


@lru_cache(maxsize=64)
def _graph(device: torch.device, *shape: int) -> "_Graph":
    return _Graph(device, *shape)


@lru_cache
def _handle(device: torch.device) -> Any:
    with torch.cuda.device(device):
        return _cudnn().create_handle()


def _cudnn() -> ModuleType:
    return import_module("cudnn")


class _Graph:
    """cuDNN's attention of one shape: in each of `rows`, `queries` tokens attend to `keys` tokens."""

    def __init__(self, device: torch.device, rows: int, queries: int, keys: int, heads: int, head_dim: int) -> None:
        kind = _cudnn().data_type
        self._device, self._shape = device, (rows * queries, heads * head_dim)
        graph = _cudnn().pygraph(
            io_data_type=kind.FP8_E4M3, intermediate_data_type=kind.FLOAT, compute_data_type=kind.FLOAT,
            handle=_handle(device),
        )  # fmt: skip

        def layout(tokens: int) -> dict[str, tuple[int, ...]]:
            """[rows, heads, tokens, head_dim] of memory that lies as [rows, tokens, heads, head_dim]."""
            dim = heads * head_dim
            return {"dim": (rows, heads, tokens, head_dim), "stride": (tokens * dim, head_dim, dim, 1)}

        one: dict[str, Any] = {"dim": (1, 1, 1, 1), "stride": (1, 1, 1, 1), "data_type": kind.FLOAT}
        self._values = [graph.tensor(**layout(tokens), data_type=kind.FP8_E4M3) for tokens in (queries, keys, keys)]
        self._scales = {name: graph.tensor(**one) for name in
                        ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")}  # fmt: skip
        self._out, _, *largest = graph.sdpa_fp8(
            *self._values, **self._scales, generate_stats=False, attn_scale=head_dim**-0.5, use_causal_mask=False
        )
        out = layout(queries)
        self._out.set_output(True).set_dim(out["dim"]).set_stride(out["stride"]).set_data_type(kind.FP8_E4M3)
        for each in largest:  # the kernel wants to write them
            each.set_output(True).set_dim(one["dim"]).set_stride(one["stride"]).set_data_type(kind.FLOAT)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([_cudnn().heur_mode.A, _cudnn().heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        self._graph, self._workspace = graph, max(1, graph.get_workspace_size())
        numerators = torch.full((1,), NUMERATORS, device=device)
        self._constants = 1 / numerators, numerators
        self._unused = {each: torch.empty_like(numerators) for each in largest}

    def __call__(self, q: Operand, k: Operand, v: Operand) -> Tensor:
        """The result in 8 bits, [rows * queries, heads * head_dim], to be multiplied by the scale of v."""
        handle = _handle(self._device)
        _cudnn().set_stream(handle, torch.cuda.current_stream(self._device).cuda_stream)
        out = torch.empty(self._shape, dtype=FP8, device=self._device)
        scales = q.scale, k.scale, v.scale, *self._constants, 1 / v.scale
        given = dict(zip(self._values, (q.values, k.values, v.values), strict=True))
        given |= dict(zip(self._scales.values(), scales, strict=True))
        workspace = torch.empty(self._workspace, dtype=torch.uint8, device=self._device)
        self._graph.execute(given | self._unused | {self._out: out}, workspace, handle=handle)
        return out
