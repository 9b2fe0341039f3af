"""Masks of frames that attend to frames."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

Span = tuple[int, int]
Attends = tuple[tuple[Span, tuple[Span, ...]], ...]  # spans of frames in order, each with the spans that it attends to


def chunks(frames: int, chunk: int, window: int | None = None, sink: int = 0, half: int = 0) -> Attends:
    """Return the spans of clean frames followed by as many noisy ones.

    A chunk attends to itself and to the clean chunks before it, with a `window` to the `sink` and the last of them.
    With `half`, later frames attend to no earlier ones but the sink."""
    found: list[tuple[Span, tuple[Span, ...]]] = []
    for noisy in (0, frames):
        for first in range(0, frames, chunk):
            end = min(first + chunk, frames)
            start = 0 if window is None else max(min(sink, first), end - (window - sink))
            start = max(start, half) if half and first >= half else start
            before = [(0, min(sink, start)), (start, first)] if start else [(0, first)]
            own = first + noisy, end + noisy
            found.append((own, (*(span for span in before if span[0] < span[1]), own)))
    return tuple(found)


def attended_to(q: Tensor, k: Tensor, v: Tensor, attends: Attends, per_frame: int) -> Tensor:
    """Return the attention of q to k and v [B, heads, tokens, channels]."""
    mask = None if len(attends) == 1 else mask_of(attends, per_frame, q.device)
    return F.scaled_dot_product_attention(q, k, v, mask)


@cache
def mask_of(attends: Attends, per_frame: int, device: torch.device) -> Tensor:
    """Return bool [tokens, tokens]: whether a token attends to another. Cached, because CUDA graphs read it."""
    frames = attends[-1][0][1]
    mask = torch.zeros(frames, frames, dtype=torch.bool)
    for (first, end), seen in attends:
        for start, stop in seen:
            mask[first:end, start:stop] = True
    return mask.repeat_interleave(per_frame, 0).repeat_interleave(per_frame, 1).to(device)
