"""A test of attention functions in CUDA graphs."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..model.attention.exact import random_attention
from ..model.choice.trials import Size

TOKENS, WORST = Size(256, 512, 256), 1e-3


def replays_correctly(attend: Callable[[Tensor, Tensor, Tensor, int], Tensor], device: torch.device) -> bool:
    """Whether a CUDA graph of `attend(q, k, v, heads)` gives correct results when it is replayed with new inputs."""
    q, k, v, heads = random_attention(device, TOKENS)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        attend(q.clone(), k, v, heads)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q.clone(), k, v, heads)
    for x in (q, k, v):
        x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize(device)
    got, want = out.clone().float(), attend(q.clone(), k, v, heads).float()
    return bool((got - want).norm() < WORST * want.norm())
