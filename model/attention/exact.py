"""Exact attention by the fastest kernel for the device: one of torch's, or our own on Hopper GPUs."""

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import product
from threading import Thread

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..choice.card import card_of
from ..choice.table import OURS, candidates, serves
from ..choice.trials import KERNEL_TESTS, KernelTest, Size, register_kernel
from ..kernels.hopper import attention as attention_hopper
from ..kernels.hopper import launch as hopper
from ..kernels.hopper import nvrtc
from ..ops.implementation import slices
from ..ops.pointwise import merge_
from .splitting import MIN_KEYS_TO_SPLIT_TAIL, TILE, key_parts, multiprocessors, part_length

Attention = Callable[[Tensor, Tensor, Tensor, int, Mapping], Tensor]
"""An attention function: (q, k, v, heads, options) -> result. q and the result are [B, L, heads*head_dim], k and v [B,
S, heads*head_dim]. `options` are ForwardOptions."""

FRAMES_BYTES = 2**28
"""A causal model calls `attend_to_frames` only if the intermediate results (see `frames_bytes`) take at most this many
bytes."""

CPU_SCORES_BYTES = 2**20
"""The CPU path with bf16 instructions computes attention scores in blocks of about this many bytes, which fit into a
core's cache."""

OUR_HEAD_DIM = 128
"""The head size that our own kernel supports."""

_refused: dict[tuple, set[SDPBackend]] = {}


def sdpa(q: Tensor, k: Tensor, v: Tensor, heads: int, options: Mapping) -> Tensor:
    """Return exact attention [B, L, heads*head_dim] of q over k and v [B, S, heads*head_dim].
    `options["padding_start"]`, int32 [1], may speed up attention: from this index on, all keys and all values must be
    repetitions of one padding token."""
    if uses_our_kernel(q, heads):
        made = [
            _attend_by_ours(*row, heads, padding_start=options.get("padding_start"))
            for row in zip(q, k, v, strict=True)
        ]
        return made[0][None] if len(made) == 1 else torch.stack(made)
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    attend = _attend_on_cpu if q.device.type == "cpu" else _attend
    return attend(q, k, v).transpose(1, 2).flatten(2)


def uses_our_kernel(q: Tensor, heads: int) -> bool:
    """Return whether our own kernel serves queries q [..., heads*head_dim]: bf16, a head size of 128, and a Hopper
    GPU."""
    suits = q.device.type == "cuda" and q.dtype == torch.bfloat16 and q.shape[-1] == OUR_HEAD_DIM * heads
    return suits and not torch.compiler.is_compiling() and our_kernel_works(q.device)


def _attend_by_ours(
    q: Tensor, k: Tensor, v: Tensor, heads: int, frame_mask: Tensor | None = None, padding_start: Tensor | None = None
) -> Tensor:
    """Return attention [L, heads*128], computed by this project's kernel for Hopper GPUs.

    frame_mask: fp32 [frames], 0 for visible latent frames, -inf for hidden ones; None: all are visible.
    padding_start: int32 [1], the index of the first padding token. All padding tokens are equal. None: no padding.
    """
    q, k, v = (
        x if x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 else x.contiguous() for x in (q, k, v)
    )
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return attention_hopper.attend(out, q, k, v, heads, frame_mask=frame_mask, padding_start=padding_start)


def _serves_ours(device: torch.device) -> bool:
    return device.type == "cuda" and serves("attention", OURS, card_of(device))


def compile_ahead(device: torch.device) -> None:
    """Compile our own attention kernel in a background thread, if the device supports it. Errors are ignored."""
    if _serves_ours(device):
        Thread(target=_compile, daemon=True).start()


def _compile() -> None:
    with suppress(Exception):
        nvrtc.compiled(attention_hopper.source(torch.bfloat16), hopper.ARCHITECTURE)


@lru_cache
def our_kernel_works(device: torch.device) -> bool:
    """Return whether our exact attention kernel supports this GPU, compiles, and gives correct results in a test. A
    failed test is logged."""
    if not _serves_ours(device):
        return False
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = torch.randn(3, 200, OUR_HEAD_DIM, device=device, generator=generator).bfloat16()
    want = torch.softmax(q.float() @ k.float().T * OUR_HEAD_DIM**-0.5, -1) @ v.float()
    return hopper.is_accurate("attention is computed", lambda: _attend_by_ours(q, k, v, 1), want)


def attend_to_padded(q: Tensor, k: Tensor, v: Tensor, heads: int, missing: int) -> Tensor:
    """Return attention [L, heads*head_dim] of q over k and v [S, heads*head_dim], as if the last key and value were
    repeated `missing` more times."""
    bias = q.new_zeros(1, len(k))
    bias[:, -1] = math.log(1 + missing)
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(0, 1)[None] for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)[0].transpose(0, 1).flatten(1)


@lru_cache
def multiplies_bf16() -> bool:
    """Return whether the CPU has instructions for bf16 products; False if torch does not know."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def _attend_on_cpu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.dtype != torch.bfloat16 or torch.compiler.is_compiling() or not multiplies_bf16():
        return F.scaled_dot_product_attention(q, k, v)
    out, rows, scale = torch.empty_like(q), max(1, CPU_SCORES_BYTES // (2 * k.shape[2])), q.shape[-1] ** -0.5
    for head in product(range(q.shape[0]), range(q.shape[1])):
        keys, values = k[head].T, v[head]
        for part in slices(q.shape[2], rows):
            out[head][part] = torch.softmax((q[head][part] * scale) @ keys, -1) @ values
    return out


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
    """Return cuDNN's attention [B, heads, L, head_dim]. Raise RuntimeError if cuDNN does not support the inputs."""
    keys = k.shape[2]
    parts = key_parts(q.shape[2], keys, q.shape[1], multiprocessors(q.device))
    each = part_length(keys, parts)
    if len(q) > 1 or parts == 1 and (each == keys or keys < MIN_KEYS_TO_SPLIT_TAIL):
        return F.scaled_dot_product_attention(q, k, v)
    divided = (x[0, :, : parts * each].unflatten(1, (parts, each)).transpose(0, 1) for x in (k, v))
    out, log_sums = _cudnn_attention(q.expand(parts, -1, -1, -1), *divided)
    rest: tuple[Tensor, ...] = ()
    if parts * each < keys:
        rest = _cudnn_attention(q, k[:, :, parts * each :], v[:, :, parts * each :])
    return merge_(out[0], out, log_sums, *rest)[None].transpose(1, 2)


def attend_to_frames(q: Tensor, k: Tensor, v: Tensor, heads: int, frame_mask: Tensor) -> Tensor:
    """Return attention [L, heads*head_dim] of q over the keys k and values v [S, heads*head_dim] of several latent
    frames of equal length. `frame_mask`, fp32 [frames], is 0 for visible frames and -inf for hidden frames. Visible
    frames must precede hidden ones."""
    if uses_our_kernel(q, heads):
        return _attend_by_ours(q, k, v, heads, frame_mask)
    q, k, v = (
        x.unflatten(0, (count, -1)).unflatten(-1, (heads, -1)).transpose(1, 2)
        for x, count in ((q, 1), (k, len(frame_mask)), (v, len(frame_mask)))
    )
    out, log_sums = _cudnn_attention(q.expand(len(frame_mask), -1, -1, -1), k, v)
    return merge_(out[0], out, log_sums + frame_mask[:, None, None]).flatten(1)


def frames_bytes(dim: int, frames: int, tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes of the intermediate results of `attend_to_frames`. `tokens` is the number of queries, `dim`
    their width over all heads."""
    return frames * tokens * dim * dtype.itemsize


@lru_cache
def attends_to_frames(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether `attend_to_frames` supports a device, dtype and head size, by a trial call."""
    if device.type != "cuda" or SDPBackend.CUDNN_ATTENTION not in _preference(device, dtype):
        return False
    x = torch.zeros(2 * TILE, head_dim, device=device, dtype=dtype)
    try:
        attend_to_frames(x, x, x, 1, torch.zeros(2, device=device))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as reason:
        logging.debug("cuDNN does not attend to frames of %s: %s", dtype, reason)
        return False
    return True


def _cudnn_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return cuDNN's attention, a view [B, L, heads, head_dim], and the log-sum-exp, fp32 [B, heads, L]."""
    out, log_sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, False, False)
    return out.transpose(1, 2), log_sums.squeeze(-1)


_KERNELS = {SDPBackend.CUDNN_ATTENTION: _cudnn}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""torch's attention kernels by their names in choice/table.py."""


@lru_cache
def _preference(device: torch.device, dtype: torch.dtype) -> tuple[SDPBackend, ...]:
    if dtype not in (torch.bfloat16, torch.float16):
        return (SDPBackend.EFFICIENT_ATTENTION,)
    names = (each.name for each in candidates("attention", card_of(device)))
    return tuple(BACKENDS[name] for name in names if name in BACKENDS)


def random_attention(device: torch.device, size: Size) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return random bf16 q, k and v, and the number of heads, for tests. Some channels of k are large, as in real
    keys."""
    generator = torch.Generator(device).manual_seed(0)
    shapes = (1, size.rows, size.dim), (1, size.keys, size.dim), (1, size.keys, size.dim)
    q, k, v = (torch.randn(shape, device=device, generator=generator).bfloat16() for shape in shapes)
    k[..., :: size.head_dim] *= 4
    return q, k, v, size.dim // size.head_dim


def exact_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return attention [B, L, heads*head_dim] of q over k and v [B, S, heads*head_dim] in fp32, as a reference."""
    q, k, v = (x.float().unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    return (torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v).transpose(1, 2).flatten(2)


def _attend_by(backend: SDPBackend) -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(backend):
            return _KERNELS.get(backend, F.scaled_dot_product_attention)(q, k, v).transpose(1, 2).flatten(2)

    return attend


@register_kernel("attention", OURS)
def _our_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    return _attend_by_ours(q[0], k[0], v[0], heads)[None]


KERNEL_TESTS["attention"] = KernelTest(random_attention, exact_attention, 0.01)
for _name, _backend in {**BACKENDS, "torch": SDPBackend.MATH}.items():
    register_kernel("attention", _name)(_attend_by(_backend))
