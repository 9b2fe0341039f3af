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
        return cast(Tensor, _fastest()(q, k, v, block_mask=masks(attends[-1][0][1], per_frame, q.device).of(attends)))
    tokens = [([first * per_frame, end * per_frame], [(per_frame * start, per_frame * stop) for start, stop in seen])
              for (first, end), seen in attends]  # fmt: skip
    return cast(Tensor, _InSpans.apply(q, k, v, tokens))


class Masks:
    """Block masks of who attends to whom, of so many frames. All read one table of frames, which the last one asked for
    is written into: so the compiler sees a single function, however many of them there are."""

    def __init__(self, frames: int, per_frame: int, device: torch.device) -> None:
        self.tokens, self.device = frames * per_frame, device
        self.table = table = torch.zeros(frames, frames, dtype=torch.bool, device=device)
        self.known: dict[str, tuple[Tensor, BlockMask]] = {}
        self.now = ""

        def allowed(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return table[query // per_frame, key // per_frame]

        self.allowed = allowed

    def of(self, attends: Attends) -> BlockMask:
        """The mask of these spans. It is true until another one is asked for."""
        if (key := str(attends)) == self.now:
            return self.known[key][1]
        table = self.known[key][0] if key in self.known else table_of(attends).to(self.device)
        self.table.copy_(table)
        if key not in self.known:
            mask = create_block_mask(self.allowed, None, None, self.tokens, self.tokens, str(self.device))
            self.known[key] = table, mask
        self.now = key
        return self.known[key][1]


masks = cache(Masks)


def table_of(attends: Attends) -> Tensor:
    """bool [frames, frames]: whether a frame attends to another."""
    table = torch.zeros(attends[-1][0][1], attends[-1][0][1], dtype=torch.bool)
    for (first, end), seen in attends:
        for start, stop in seen:
            table[first:end, start:stop] = True
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
            given = [_cut(x, at).detach().requires_grad_()
                     for x, at in zip(ctx.saved_tensors, ([own], seen, seen), strict=True)]  # fmt: skip
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
