"""Attention over float8_e4m3fn operands by a cuDNN graph, with a result in 8 bits too."""

import atexit
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.pointwise import R, Rows, empty_rows, merge_fp8_
from .fp8 import FP8, Operand, queries_to_operand, to_operands
from .splitting import TILE, key_parts, multiprocessors, part_length

MIN_KEYS_PER_ZERO = 256
"""Padding keys (zeros) are appended only if there are at least this many keys for each of them."""
NUMERATOR_FACTOR = 256.0
"""The kernel multiplies the softmax's numerators by this factor before it rounds them to 8 bits."""


def padding(keys: int) -> int:
    """Return the number of zero keys that fill the last tile of `keys` keys. Attention does not mask these padding
    keys. Return 0 if they would be more than one in MIN_KEYS_PER_ZERO keys and distort the softmax."""
    added = -keys % TILE
    return added if added * MIN_KEYS_PER_ZERO <= keys else 0


def cudnn_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return 8-bit attention of q [B, L, heads*head_dim] over k and v [B, S, heads*head_dim], in q's dtype. A
    contiguous q is overwritten. Raise cuDNN's errors for unsupported sizes."""
    batch, zeros = len(q), padding(k.shape[1]) if len(q) == 1 else 0
    with torch.cuda.device_of(q):
        in_8_bits = to_operands(q, k, v, zeros)
        return _by_cudnn(q.flatten(0, 1), *in_8_bits, heads, batch).view(q.shape)


def cudnn_attention_fp8_kv(q: Tensor, k: Operand, v: Operand, heads: int) -> Tensor:
    """Return attention of q [1, L, heads*head_dim] over fp8 k and v. The result overwrites q. Raise cuDNN's errors for
    unsupported sizes."""
    with torch.cuda.device_of(q):
        return _by_cudnn(q[0], queries_to_operand(q[0]), k, v, heads)[None]


def cudnn_attention_fp8_qkv(
    q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype, frame_mask: Tensor | None = None
) -> Rows:
    """Attend to fp8 k and v with fp8 q. Return the result [L, heads*head_dim] in `dtype`. For `frame_mask` see
    `attend_to_frames`. Raise cuDNN's errors for unsupported sizes."""
    out = empty_rows(q.values, dtype)
    with torch.cuda.device_of(q.values):
        if frame_mask is None:
            return _by_cudnn(out, q, k, v, heads)
        queries, keys, head_dim = len(q.values), len(k.values) // len(frame_mask), q.values.shape[1] // heads
        graph = _graph(q.values.device, GraphShape(len(frame_mask), queries, keys, heads, head_dim, in_parts=True))
        parts, log_sums = graph(q, k, v)
        return merge_fp8_(out, parts, v.scaling.mean, v.scaling.scale, log_sums + frame_mask[:, None, None])


def _by_cudnn(out: R, q: Operand, k: Operand, v: Operand, heads: int, batch: int = 1) -> R:
    """Write cuDNN's attention to `out` and return it. q, k and v hold the tokens of `batch` batch elements, one element
    after the other."""
    device, head_dim = q.values.device, q.values.shape[1] // heads
    queries, keys = (len(each.values) // batch for each in (q, k))
    parts = key_parts(queries, keys, heads, multiprocessors(device)) if batch == 1 else 1
    if parts == 1:
        values = _graph(device, GraphShape(batch, queries, keys, heads, head_dim))(q, k, v)[0]
        return merge_fp8_(out, values.flatten(0, 1)[None], v.scaling.mean, v.scaling.scale)
    # two halves that end within a tile are faster than a second call for one tile
    each = keys // 2 if parts == 2 and keys // TILE % 2 and keys % TILE == 0 else part_length(keys, parts)
    first = [x._replace(values=x.values[: parts * each]) for x in (k, v)]
    made, log_sums = _graph(device, GraphShape(parts, queries, each, heads, head_dim, in_parts=True))(q, *first)
    rest: tuple[Tensor, Tensor] | tuple[()] = ()
    if parts * each < keys:
        last = [x._replace(values=x.values[parts * each :]) for x in (k, v)]
        rest = _graph(device, GraphShape(1, queries, keys - parts * each, heads, head_dim, in_parts=True))(q, *last)
    return merge_fp8_(out, made, v.scaling.mean, v.scaling.scale, log_sums, rest)


class GraphShape(NamedTuple):
    """The sizes of a cuDNN attention graph.

    batch: the number of batch elements. If `in_parts`, the number of parts of a single element's keys.
    in_parts: whether a single element's keys are split. The graph then also returns log-sum-exps.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    head_dim: int
    in_parts: bool = False


@lru_cache(maxsize=64)
def _graph(device: torch.device, shape: GraphShape) -> "_Graph":
    return _Graph(device, shape)


@lru_cache
def _handle(device: torch.device) -> Any:
    with torch.cuda.device(device):
        return _cudnn().create_handle()


@atexit.register
def _forget_graphs() -> None:
    """Free the graphs at exit, because otherwise cuDNN's binding prints warnings about leaks."""
    _graph.cache_clear()
    _handle.cache_clear()


def _cudnn() -> ModuleType:
    return import_module("cudnn")


class _Graph:
    def __init__(self, device: torch.device, shape: GraphShape) -> None:
        kind = _cudnn().data_type
        self._device, self._shape = device, shape
        batch, queries, keys, heads, head_dim, in_parts = shape
        graph = _cudnn().pygraph(
            io_data_type=kind.FP8_E4M3,
            intermediate_data_type=kind.FLOAT,
            compute_data_type=kind.FLOAT,
            handle=_handle(device),
        )

        def layout(tokens: int, shared: bool = False) -> dict[str, tuple[int, ...]]:
            dim = heads * head_dim
            stride = 0 if shared else tokens * dim
            return {"dim": (batch, heads, tokens, head_dim), "stride": (stride, head_dim, dim, 1)}

        one: dict[str, Any] = {"dim": (1, 1, 1, 1), "stride": (1, 1, 1, 1), "data_type": kind.FLOAT}
        given = layout(queries, shared=in_parts), layout(keys), layout(keys)
        self._values = [graph.tensor(**each, data_type=kind.FP8_E4M3) for each in given]
        self._scales = {
            name: graph.tensor(**one)
            for name in ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
        }
        self._out, self._log_sums, *largest = graph.sdpa_fp8(
            *self._values, **self._scales, generate_stats=in_parts, attn_scale=head_dim**-0.5, use_causal_mask=False
        )
        out = layout(queries)
        self._out.set_output(True).set_dim(out["dim"]).set_stride(out["stride"]).set_data_type(kind.FP8_E4M3)
        if in_parts:
            sums = (batch, heads, queries, 1), (heads * queries, queries, 1, 1)
            self._log_sums.set_output(True).set_dim(sums[0]).set_stride(sums[1]).set_data_type(kind.FLOAT)
        for each in largest:  # the kernel always writes them
            each.set_output(True).set_dim(one["dim"]).set_stride(one["stride"]).set_data_type(kind.FLOAT)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([_cudnn().heur_mode.A, _cudnn().heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        self._graph, self._workspace = graph, max(1, graph.get_workspace_size())
        numerators = torch.full((1,), NUMERATOR_FACTOR, device=device)
        self._constants = 1 / numerators, numerators
        self._unused = {each: torch.empty_like(numerators) for each in largest}

    def __call__(self, q: Operand, k: Operand, v: Operand) -> tuple[Tensor, Tensor]:
        """Return the attention output and its log-sum-exps. The output, float8_e4m3fn [batch, queries, heads,
        head_dim], is unfinished: the caller must multiply it by v's scale and add v's mean.

        The log-sum-exps are fp32 [batch, heads, queries], or empty if the GraphShape's `in_parts` is False.
        """
        handle, (batch, queries, _, heads, head_dim, in_parts) = _handle(self._device), self._shape
        _cudnn().set_stream(handle, torch.cuda.current_stream(self._device).cuda_stream)
        out = torch.empty(batch, queries, heads, head_dim, dtype=FP8, device=self._device)
        log_sums = torch.empty(batch, heads, queries if in_parts else 0, device=self._device)
        scales = *(each.scaling.scale for each in (q, k, v)), *self._constants, v.scaling.factor
        given = dict(zip(self._values, (q.values, k.values, v.values), strict=True))
        given |= dict(zip(self._scales.values(), scales, strict=True))
        made = {self._out: out} | ({self._log_sums: log_sums} if in_parts else {})
        workspace = torch.empty(self._workspace, dtype=torch.uint8, device=self._device)
        self._graph.execute(given | self._unused | made, workspace, handle=handle)
        return out, log_sums
