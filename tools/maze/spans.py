"""Who attends to whom in the maze's trainings, and attention so: all spans in one kernel where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Span = tuple[int, int]
Attends = Sequence[tuple[Span, Sequence[Span]]]
"""Which frames attend to which: of the frames that are computed, span after span."""
FORWARDS = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_warps": 8, "fwd_num_stages": 3}
"""How a GPU goes through keys and queries forwards: 0.86 ms on an H100 where torch's own choice takes 2.0."""
BACKWARDS = {"bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32}
"""And backwards, first for the gradients of keys and values, then for those of queries: 1.66 ms in place of 1.88."""
SPANS_SEEN = 3
"""By a span at most: the sink, the window, itself."""


def chunks(frames: int, chunk: int, window: int | None = None, sink: int = 0, half: int = 0) -> Attends:
    """Who attends to whom where clean frames are followed by as many noisy ones: a chunk to itself and to the clean
    ones before it, with a `window` to the `sink` and the last of them. With `half`, frames from there on to no others
    before it but the sink."""
    found: list[tuple[Span, list[Span]]] = []
    for noisy in (0, frames):
        for first in range(0, frames, chunk):
            end = min(first + chunk, frames)
            start = 0 if window is None else max(min(sink, first), end - (window - sink))
            start = max(start, half) if half and first >= half else start
            before = [(0, min(sink, start)), (start, first)] if start else [(0, first)]
            own = first + noisy, end + noisy
            found.append((own, [*(span for span in before if span[0] < span[1]), own]))
    return found


def attended_to(q: Tensor, k: Tensor, v: Tensor, attends: Attends, per_frame: int) -> Tensor:
    """Attention of q to k and v [B, heads, tokens, channels], with so many tokens a frame."""
    if len(attends) == 1:
        return F.scaled_dot_product_attention(q, k, v)
    if q.device.type == "cuda":
        mask = masks(attends[-1][0][1], per_frame, q.device).of(attends)
        return cast(Tensor, _fastest()(q, k, v, block_mask=mask, kernel_options=FORWARDS | BACKWARDS))
    tokens = [
        ([first * per_frame, end * per_frame], [(per_frame * start, per_frame * stop) for start, stop in seen])
        for (first, end), seen in attends
    ]
    return cast(Tensor, _InSpans.apply(q, k, v, tokens))


class Masks:
    """Block masks of who attends to whom, of so many frames. All read one table, which the last one asked for is
    written into: so the compiler sees a single function, however many of them there are. The table says from where to
    where each query's keys lie, in SPANS_SEEN spans."""

    def __init__(self, frames: int, per_frame: int, device: torch.device) -> None:
        self.per_frame, self.device = per_frame, device
        self.table = table = torch.zeros(2 * SPANS_SEEN, frames * per_frame, dtype=torch.int32, device=device)
        self.known: dict[str, tuple[Tensor, BlockMask]] = {}

        def allowed(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            inside = (key >= table[0, query]) & (key < table[1, query])
            for start in range(2, 2 * SPANS_SEEN, 2):
                inside = inside | ((key >= table[start, query]) & (key < table[start + 1, query]))
            return inside

        self.allowed = allowed

    def of(self, attends: Attends) -> BlockMask:
        """The mask of these spans. It is true until another one is asked for."""
        if (key := str(attends)) not in self.known:
            self.table.copy_(table_of(attends, self.per_frame))
            tokens = self.table.shape[1]
            mask = create_block_mask(self.allowed, None, None, tokens, tokens, str(self.device))
            self.known[key] = self.table.clone(), mask
        self.table.data.copy_(self.known[key][0])  # autograd need not know: a step asks for one mask only
        return self.known[key][1]


masks = cache(Masks)


def table_of(attends: Attends, per_frame: int) -> Tensor:
    """int32 [2 SPANS_SEEN, tokens]: the begin and the end of each span of tokens that a token attends to."""
    table = torch.zeros(2 * SPANS_SEEN, attends[-1][0][1] * per_frame, dtype=torch.int32)
    for (first, end), seen in attends:
        for index, span in enumerate(seen):
            own = table[2 * index : 2 * index + 2, first * per_frame : end * per_frame]
            own[:] = per_frame * torch.tensor(span)[:, None]
    return table


@cache
def _fastest() -> Any:
    return torch.compile(flex_attention, dynamic=False)


class _InSpans(torch.autograd.Function):
    """Attention span after span. Backwards each span is computed again and adds to its own keys' gradients: torch alone
    would make, for every span, gradients as long as all keys."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, spans: Any) -> Tensor:
        ctx.spans = spans
        ctx.save_for_backward(q, k, v)
        made = [F.scaled_dot_product_attention(_cut(q, [own]), _cut(k, seen), _cut(v, seen)) for own, seen in spans]
        return torch.cat(made, 2)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        into = [torch.zeros_like(x) for x in ctx.saved_tensors]
        for own, seen in ctx.spans:
            given = [
                _cut(x, at).detach().requires_grad_()
                for x, at in zip(ctx.saved_tensors, ([own], seen, seen), strict=True)
            ]
            with torch.enable_grad():
                made = F.scaled_dot_product_attention(given[0], given[1], given[2])
            grads = torch.autograd.grad(made, given, _cut(slopes[0], [own]))
            into[0][:, :, own[0] : own[1]] = grads[0]
            lengths = [stop - start for start, stop in seen]
            for whole, grad in zip(into[1:], grads[1:], strict=True):
                for (start, stop), part in zip(seen, grad.split(lengths, 2), strict=True):
                    whole[:, :, start:stop] += part
        return into[0], into[1], into[2], None


def _cut(x: Tensor, spans: Sequence[Sequence[int]]) -> Tensor:
    """The tokens of x [B, heads, tokens, channels] that are in the spans."""
    parts = [x[:, :, start:stop] for start, stop in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
