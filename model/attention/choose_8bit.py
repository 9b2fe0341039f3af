"""The choice of a kernel for 8-bit self-attention. Plain torch serves CPUs, and replaces a chosen kernel that fails."""

import logging
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from ...errors import InputError
from ...options import Arithmetic, AttentionMode, T
from ..choice.card import card_of
from ..choice.table import CUDNN_FRONTEND, KITCHEN, OURS, SAGE, candidates, serves
from ..choice.trials import KERNEL_TESTS, KernelTest, Size, chosen, register_kernel, trials
from ..config import ModelConfig
from ..ops.implementation import on_its_gpu, or_else
from ..ops.linear_8bit import arithmetic_note, choose_arithmetic
from ..ops.pointwise import Rows
from .exact import exact_attention, random_attention
from .fp8 import Operand, Scaling, plain_attention, plain_attention_fp8_kv, plain_attention_fp8_qkv, sample
from .fp8_cudnn import cudnn_attention, cudnn_attention_fp8_kv, cudnn_attention_fp8_qkv
from .fp8_hopper import hopper_attention, hopper_attention_fp8_kv, hopper_attention_fp8_qkv, transposes_exactly
from .streams import NOT_RECORDED, AttentionFunction, follows_stream, on_default_stream

UNTRIED = "Apple's GPUs run the plain path, which was never tried there: please send what you see."
MAX_ERROR = 0.2
"""An 8-bit kernel passes the accuracy test if its relative RMS error against exact attention is below this limit."""
TEST_HEADS, TEST_SIZE = 8, Size(rows=2048, keys=16384)
"""The number of attention heads, and the Size of queries and keys, with which `find_kernel` times 8-bit attention
kernels."""

STREAM_TOKENS = 256
"""The number of random tokens in a test that checks whether an attention kernel runs on the current CUDA stream."""


class AttentionKernel(NamedTuple):
    """An 8-bit attention kernel.

    package: its PyPI package, or OURS.
    attend: takes q, k and v in 16 bits.
    attend_fp8_kv: takes q in 16 bits, k and v in fp8; None if unsupported.
    attend_fp8_qkv: takes q, k and v in fp8; None if unsupported.
    recordable: whether a CUDA graph can record the kernel.
    """

    package: str
    attend: AttentionFunction
    attend_fp8_kv: Callable[..., Tensor] | None = None
    attend_fp8_qkv: Callable[..., Rows] | None = None
    recordable: bool = True


def attend_8bit(
    q: Tensor,
    k: Tensor | Operand,
    v: Tensor | Operand,
    heads: int,
    options: Mapping,  # noqa: ARG001
) -> Tensor:
    """Return 8-bit attention of q [B, L, heads*head_dim] over k and v [B, S, heads*head_dim]. q may be overwritten. B
    must be 1 if k and v are Operands. Raise InputError if no kernel supports the GPU."""
    if not torch.compiler.is_compiling():
        return _attend(q, k, v, heads)
    if isinstance(k, Operand) and isinstance(v, Operand):
        keys, values = [k.values, *k.scaling[:3]], [v.values, *v.scaling[:3]]
        return _in_compiled_code_to(q, keys, values, heads, v.transposed_tokens or 0)
    return _in_compiled_code(q, k, v, heads)


def attend_fp8(
    q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype, frame_mask: Tensor | None = None
) -> Rows:
    """Attend to fp8 keys k and values v with fp8 queries q. Return the result [L, heads*head_dim] in `dtype`; for an
    8-bit `dtype` the result is an EightBit.

    frame_mask: fp32 [frames], 0 for visible latent frames, -inf for hidden ones; None: all are visible.
    """
    if q.values.device.type != "cuda":
        return plain_attention_fp8_qkv(q, k, v, heads, dtype)
    kernel = find_kernel(q.values.device, q.values.shape[1] // heads)
    attend = cast(Callable[..., Rows], kernel.attend_fp8_qkv)
    if frame_mask is not None:
        return attend(q, k, v, heads, dtype, frame_mask)
    return _unless_broken(attend, plain_attention_fp8_qkv, kernel.package)(q, k, v, heads, dtype)


def _attend(q: Tensor, k: Tensor | Operand, v: Tensor | Operand, heads: int) -> Tensor:
    plain: Callable[..., Tensor] = plain_attention_fp8_kv if isinstance(k, Operand) else plain_attention
    if q.device.type != "cuda":
        return plain(q, k, v, heads)
    kernel = find_kernel(q.device, q.shape[-1] // heads)
    attend = cast(Callable[..., Tensor], kernel.attend_fp8_kv if isinstance(k, Operand) else kernel.attend)
    return _unless_broken(attend, plain, kernel.package)(q, k, v, heads)


@torch.library.custom_op("lingbot_world::attention_8bit", mutates_args=())
def _in_compiled_code(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    return _attend(q.clone(), k, v, heads)


@torch.library.custom_op("lingbot_world::attention_8bit_to", mutates_args=())
def _in_compiled_code_to(q: Tensor, k: list[Tensor], v: list[Tensor], heads: int, transposed_tokens: int) -> Tensor:
    keys, values = (Operand(x[0], Scaling(*x[1:])) for x in (k, v))
    values = values._replace(transposed_tokens=transposed_tokens or None)
    return _attend(q.clone(), keys, values, heads)


@_in_compiled_code.register_fake
@_in_compiled_code_to.register_fake
def _(q: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(q)


@lru_cache
def _unless_broken(attend: Callable[..., T], plain: Callable[..., T], package: str) -> Callable[..., T]:
    return or_else(attend, plain, f"attention of {package}")


def _sage(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return SageAttention's result. k's mean is subtracted here; SageAttention would subtract it in place, and k may
    be a view of the KV cache."""
    k = k - sample(k.flatten(0, 1)).mean(0)
    split = (t.unflatten(-1, (heads, -1)) for t in (q, k, v))
    attend = import_module("sageattention").sageattn
    return attend(*split, tensor_layout="NHD", smooth_k=False).flatten(2).to(q.dtype)


@on_its_gpu
def _kitchen(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    split = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    return import_module("comfy_kitchen").int8_attention(*split).transpose(1, 2).flatten(2)


KERNELS = {
    kernel.package: kernel
    for kernel in (
        AttentionKernel(OURS, hopper_attention, hopper_attention_fp8_kv, hopper_attention_fp8_qkv),
        AttentionKernel(CUDNN_FRONTEND, cudnn_attention, cudnn_attention_fp8_kv, cudnn_attention_fp8_qkv),
        AttentionKernel(SAGE, _sage),
        AttentionKernel(KITCHEN, _kitchen),
    )
}
for _kernel in KERNELS.values():
    register_kernel("attention-8bit", _kernel.package)(_kernel.attend)


KERNEL_TESTS["attention-8bit"] = KernelTest(random_attention, exact_attention, MAX_ERROR)


def choose_attention(wanted: AttentionMode, device: torch.device, config: ModelConfig) -> Literal["exact", "8bit"]:
    """Return "8bit" if `wanted` is "8bit", else "exact". Raise InputError if `wanted` is "8bit" and the device is a GPU
    without an accurate 8-bit attention kernel."""
    if wanted in ("auto", "exact"):
        return "exact"
    if device.type != "cpu":
        find_kernel(device, config.head_dim)
    return "8bit"


def supports_fp8_cache(mode: AttentionMode, device: torch.device, config: ModelConfig) -> bool:
    """Return whether a KV cache may hold fp8 keys and values. Raise InputError if mode "8bit" lacks a kernel for the
    GPU."""
    if mode != "8bit" or not accepts_fp8_qkv(device, config.head_dim):
        return False
    return device.type != "cuda" or serves("cache-8bit", find_kernel(device, config.head_dim).package, card_of(device))


def accepts_fp8_qkv(device: torch.device, head_dim: int) -> bool:
    """Return whether the device's 8-bit attention kernel accepts q, k and v in fp8. Raise InputError if no kernel works
    on the GPU."""
    return device.type != "cuda" or find_kernel(device, head_dim).attend_fp8_qkv is not None


def reads_transposed_values(device: torch.device, head_dim: int) -> bool:
    """Return whether the device's 8-bit attention kernel reads fp8 values as [dim, tokens]. Raise InputError if no
    kernel works on the GPU."""
    ours = device.type == "cuda" and find_kernel(device, head_dim).package == OURS
    return ours and transposes_exactly(device)


@lru_cache
def find_kernel(device: torch.device, head_dim: int) -> AttentionKernel:
    """Return the 8-bit attention kernel chosen for a GPU and a head size. Raise InputError if no kernel is accurate."""
    card, size = card_of(device), TEST_SIZE._replace(dim=TEST_HEADS * head_dim, head_dim=head_dim)
    if not candidates("attention-8bit", card):
        raise InputError(
            f"`attention` 8bit: no package has a kernel that gains anything on {card.known_as}; leave it out"
        )
    name = chosen("attention-8bit", device, size)
    if name is not None:
        return _on_its_stream(KERNELS[name], device, head_dim)
    tried = trials("attention-8bit", device, size)
    reasons = "; ".join(f"{each.name}: {each.reason}" for each in tried)
    wanting = next((each.name for each in candidates("attention-8bit", card) if each.name != OURS), None)
    install = "" if wanting is None else f'install one, such as "{sys.executable}" -m pip install {wanting}, or '
    raise InputError(
        f"`attention` 8bit needs a package that has a kernel for {card.known_as} ({reasons}); "
        f"{install}leave `attention` out"
    )


def _on_its_stream(kernel: AttentionKernel, device: torch.device, head_dim: int) -> AttentionKernel:
    """Return `kernel` if its `attend` runs on the current CUDA stream. Else return a copy whose `attend` runs on the
    default stream, synchronized with the current stream."""
    if kernel.attend_fp8_qkv is not None:  # our kernel and cuDNN's run on the current stream
        return kernel
    generator = torch.Generator(device).manual_seed(1)
    q, k, v = torch.randn(3, 1, STREAM_TOKENS, 2 * head_dim, device=device, generator=generator).bfloat16()
    if follows_stream(kernel.attend, q, k, v, 2):
        return kernel
    logging.warning(NOT_RECORDED, kernel.package)
    return kernel._replace(attend=on_default_stream(kernel.attend), recordable=False)


def may_be_recorded(mode: AttentionMode, device: torch.device, config: ModelConfig) -> bool:
    """Return whether a CUDA graph may record self-attention. Raise InputError if mode "8bit" lacks a kernel."""
    return mode != "8bit" or device.type != "cuda" or find_kernel(device, config.head_dim).recordable


def attention_note(mode: AttentionMode, device: torch.device, config: ModelConfig) -> str | None:
    """Return a note for the user: which package computes 8-bit self-attention, or that it takes longer on the CPU.
    Return None if `mode` is not "8bit". Raise InputError if the GPU has no accurate kernel."""
    if mode != "8bit":
        return None
    if device.type == "cpu":
        return "Attention in 8 bits on the CPU gives about a GPU's quality, and takes longer than without it."
    return f"Attention in 8 bits by {find_kernel(device, config.head_dim).package}."


def check_8_bits(
    arithmetic: Arithmetic, attention: AttentionMode, device: torch.device, config: ModelConfig
) -> tuple[str, ...]:
    """Raise InputError if the device or model does not support a requested format. Return notes for the user about
    8-bit products and attention."""
    choose_arithmetic(arithmetic, device, config)
    choose_attention(attention, device, config)
    untried = UNTRIED if device.type == "mps" else None
    notes = untried, arithmetic_note(arithmetic, device, config), attention_note(attention, device, config)
    return tuple(note for note in notes if note is not None)
