"""Synchronization of CUDA streams for packages, such as SageAttention 2.x, that always use the default stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

AttentionFunction = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""A kernel's function: (q, k, v, heads) -> result. q and the result are [B, L, heads*head_dim], k and v [B, S,
heads*head_dim]. q may be overwritten."""

NOT_RECORDED = "%s runs on CUDA's default stream alone, so forwards with it are not recorded, and take longer."
DELAY = 20_000_000
"""The number of GPU clock cycles (about 10 ms) for which `follows_stream` delays a CUDA stream."""


def follows_stream(attend: AttentionFunction, q: Tensor, k: Tensor, v: Tensor, heads: int) -> bool:
    """Return whether `attend` runs on the current CUDA stream. False if `attend` runs on the default stream instead. q,
    k and v are test inputs."""
    want, stream = attend(q.clone(), k, v, heads), torch.cuda.Stream(q.device)
    late = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    stream.wait_stream(torch.cuda.current_stream(q.device))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(DELAY)
        for own, each in zip(late, (q, k, v), strict=True):
            own.copy_(each)
        got = attend(*late, heads)
    stream.synchronize()
    torch.cuda.default_stream(q.device).synchronize()
    return torch.equal(got, want)


@lru_cache
def on_default_stream(attend: AttentionFunction) -> AttentionFunction:
    """Return a function that runs `attend` on the default stream, and synchronizes it with the current stream. A CUDA
    graph must not record the function."""

    def run(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        current, default = torch.cuda.current_stream(q.device), torch.cuda.default_stream(q.device)
        if current == default or torch.cuda.is_current_stream_capturing():
            return attend(q, k, v, heads)
        default.wait_stream(current)
        with torch.cuda.stream(default):
            out = attend(q, k, v, heads)
        current.wait_stream(default)
        out.record_stream(current)
        return out

    return run
