"""Exact attention by the fastest of torch's kernels that the device at hand can run."""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .pointwise import blend_

Attention = Callable[[Tensor, Tensor, Tensor, int, Mapping], Tensor]
"""(q, k, v: [B, L, heads*head_dim], heads, options) -> [B, L, heads*head_dim]"""

TILE = 128
"""cuDNN's kernel takes this many keys at once. If their number is no multiple of it, the kernel is 8 % slower (38.6
instead of 35.5 ms on an H200)."""

MIN_KEYS_TO_SPLIT = 64 * TILE
"""With at least this many keys it is faster to attend to the remainder (keys % TILE) in a second call."""

_refused: dict[tuple, set[SDPBackend]] = {}


def sdpa(q: Tensor, k: Tensor, v: Tensor, heads: int, options: Mapping) -> Tensor:  # noqa: ARG001
    """Scaled dot-product attention of q [B, L, heads*head_dim] over k and v [B, S, heads*head_dim].

    On GPUs of Hopper and later cuDNN's kernel is tried first (36.8 instead of 59.9 ms at 32,760 tokens on an H200),
    then flash, then the memory-efficient kernel. A kernel that refused a device, dtype and head size is not tried
    again. `options` are for hosts, whose attention takes the same arguments."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    attend = F.scaled_dot_product_attention if q.device.type == "cpu" else _attend
    return attend(q, k, v).transpose(1, 2).flatten(2)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    preference = _preference(q.device, q.dtype)
    if torch.compiler.is_compiling():
        with sdpa_kernel([*preference, SDPBackend.MATH], set_priority=True):
            return F.scaled_dot_product_attention(q, k, v)
    refused = _refused.setdefault((q.device, q.dtype, q.shape[-1]), set())
    for backend in preference:
        if backend in refused:
            continue
        try:
            with sdpa_kernel(backend):
                return _KERNELS.get(backend, F.scaled_dot_product_attention)(q, k, v)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as reason:
            refused.add(backend)
            logging.debug("%s does not serve %s of %s: %s", backend, tuple(q.shape), q.dtype, reason)
    return F.scaled_dot_product_attention(q, k, v)


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keys = k.shape[2]
    tiled = keys - keys % TILE
    if tiled == keys or keys < MIN_KEYS_TO_SPLIT:
        return F.scaled_dot_product_attention(q, k, v)
    out, log_sum = _cudnn_attention(q, k[:, :, :tiled], v[:, :, :tiled])
    rest, rest_log_sum = _cudnn_attention(q, k[:, :, tiled:], v[:, :, tiled:])
    share = torch.sigmoid(rest_log_sum - log_sum).transpose(1, 2).reshape(-1, 1)
    blend_(_rows(out), _rows(rest), share)
    return out


def _rows(heads: Tensor) -> Tensor:
    """[B, heads, L, head_dim] as one row for each token and head. A view: cuDNN lays it out as [B, L, heads, head_dim].
    """
    return heads.transpose(1, 2).view(-1, heads.shape[-1])


def _cudnn_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention [B, heads, L, head_dim] and the logarithm of the softmax's denominator [B, heads, L, 1], fp32."""
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, False, False)[:2]


_KERNELS = {SDPBackend.CUDNN_ATTENTION: _cudnn}


@lru_cache
def _preference(device: torch.device, dtype: torch.dtype) -> tuple[SDPBackend, ...]:
    if dtype not in (torch.bfloat16, torch.float16):
        return (SDPBackend.EFFICIENT_ATTENTION,)
    ordered = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    hopper = device.type == "cuda" and torch.version.cuda and torch.cuda.get_device_capability(device) >= (9, 0)
    return (SDPBackend.CUDNN_ATTENTION, *ordered) if hopper else ordered
