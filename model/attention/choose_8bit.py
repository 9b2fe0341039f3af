"""Self-attention in 8 bits, by this project's kernel or one that another package has for the card at hand; nothing
else needs the package.

On the CPU, and where a kernel fails, the operands that cuDNN's kernel would get are attended to exactly."""

import logging
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...errors import InputError
from ...options import Arithmetic, AttentionMode, T
from ..choice.card import card_of
from ..choice.table import CUDNN_FRONTEND, KITCHEN, OURS, SAGE, candidates
from ..choice.trials import KINDS, Kind, Size, attempt, chosen, trials
from ..config import ModelConfig
from ..ops.linear_8bit import arithmetic_note, choose_arithmetic
from ..ops.pointwise import Rows, or_else
from .exact import exact_attention, random_attention
from .fp8 import Operand, Scaling, plain_attention, plain_attention_of, plain_attention_to, sample
from .fp8_cudnn import cudnn_attention, cudnn_attention_of, cudnn_attention_to
from .fp8_hopper import hopper_attention, hopper_attention_of, hopper_attention_to, puts_across
from .streams import follows_stream, on_default_stream

UNTRIED = "Apple's GPUs run the plain path, which was never tried there: please send what you see."
WORST_PROBE = 0.2
"""A kernel is not taken if its relative RMS error is larger."""
TRIED_HEADS, TRIED = 8, Size(rows=2048, keys=16384)
"""The size at which kernels are timed: part of a chunk's queries, keys of half a window."""

STREAM_TOKENS = 256
"""Tokens of the trial on a stream that is not the default one."""

Function = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""(q, k, v: [B, L, heads*head_dim], heads) -> [B, L, heads*head_dim]; q may be overwritten."""


class Kernel(NamedTuple):
    """The attention of a `package`, as pip calls it."""

    package: str
    attend: Function


def attend_8bit(
    q: Tensor,
    k: Tensor | Operand,
    v: Tensor | Operand,
    heads: int,
    options: Mapping,  # noqa: ARG001
) -> Tensor:
    """Attention of q [B, L, heads*head_dim] over k and v [B, S, heads*head_dim] in 8 bits. q may be overwritten. For a
    single row k and v may be Operands, where the device `takes_operands`.

    Raises InputError where no kernel serves the device; `choose_attention` finds that out before."""
    if isinstance(k, Operand) and isinstance(v, Operand):
        if torch.compiler.is_compiling():
            return _in_compiled_code_to(q, [k.values, *k.scaling[:3]], [v.values, *v.scaling[:3]], heads, v.across or 0)
        return _attend_to(q, k, v, heads)
    assert isinstance(k, Tensor)
    assert isinstance(v, Tensor)
    return _in_compiled_code(q, k, v, heads) if torch.compiler.is_compiling() else _attend(q, k, v, heads)


def attend_operands(
    q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype, shares: Tensor | None = None
) -> Rows:
    """Attention of a single row whose queries are in 8 bits too. The result is as `dtype`, or in 8 bits with one scale
    a token; with `shares` as in `attention.attend_to_frames`, which raises what cuDNN raises."""
    if q.values.device.type != "cuda":
        return plain_attention_of(q, k, v, heads, dtype)
    kernel = find_kernel(q.values.device, q.values.shape[1] // heads)
    attend = _TO_OPERANDS[kernel.attend][1]
    if shares is not None:
        return attend(q, k, v, heads, dtype, shares)
    return _unless_broken(attend, plain_attention_of, kernel.package)(q, k, v, heads, dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    if q.device.type != "cuda":
        return plain_attention(q, k, v, heads)
    kernel = find_kernel(q.device, q.shape[-1] // heads)
    return _unless_broken(kernel.attend, plain_attention, kernel.package)(q, k, v, heads)


def _attend_to(q: Tensor, k: Operand, v: Operand, heads: int) -> Tensor:
    if q.device.type != "cuda":
        return plain_attention_to(q, k, v, heads)
    kernel = find_kernel(q.device, q.shape[-1] // heads)
    return _unless_broken(_TO_OPERANDS[kernel.attend][0], plain_attention_to, kernel.package)(q, k, v, heads)


@torch.library.custom_op("lingbot_world::attention_8bit", mutates_args=())
def _in_compiled_code(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    return _attend(q.clone(), k, v, heads)


@torch.library.custom_op("lingbot_world::attention_8bit_to", mutates_args=())
def _in_compiled_code_to(q: Tensor, k: list[Tensor], v: list[Tensor], heads: int, across: int) -> Tensor:
    keys, values = (Operand(x[0], Scaling(*x[1:])) for x in (k, v))
    values = values._replace(across=across or None)
    return _attend_to(q.clone(), keys, values, heads)


@_in_compiled_code.register_fake
@_in_compiled_code_to.register_fake
def _(q: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(q)


@lru_cache
def _unless_broken(attend: Callable[..., T], plain: Callable[..., T], package: str) -> Callable[..., T]:
    return or_else(attend, plain, f"attention of {package}")


def _sage(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Less the keys' mean, which sageattention would take off in place: they may be those of a cache."""
    k = k - sample(k.flatten(0, 1)).mean(0)
    split = (t.unflatten(-1, (heads, -1)) for t in (q, k, v))
    attend = import_module("sageattention").sageattn
    return attend(*split, tensor_layout="NHD", smooth_k=False).flatten(2).to(q.dtype)


def _kitchen(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    split = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    return import_module("comfy_kitchen").int8_attention(*split).transpose(1, 2).flatten(2)


KERNELS = {
    kernel.package: kernel
    for kernel in (
        Kernel(OURS, hopper_attention),
        Kernel(CUDNN_FRONTEND, cudnn_attention),
        Kernel(SAGE, _sage),
        Kernel(KITCHEN, _kitchen),
    )
}
for _kernel in KERNELS.values():
    attempt("attention-8bit", _kernel.package)(_kernel.attend)


KINDS["attention-8bit"] = Kind(random_attention, exact_attention, WORST_PROBE)

_TO_OPERANDS: dict[Function, tuple[Callable[..., Tensor], Callable[..., Rows]]] = {
    hopper_attention: (hopper_attention_to, hopper_attention_of),
    cudnn_attention: (cudnn_attention_to, cudnn_attention_of),
}
"""Of kernels that take a cache's keys and values as they are: the function for queries as they come, and that for
queries in 8 bits."""


def choose_attention(wanted: AttentionMode, device: torch.device, config: ModelConfig) -> Literal["exact", "8bit"]:
    """The self-attention of a model on a device. 8 bits are taken only if they are asked for. Raises InputError where
    no kernel for them serves the device."""
    if wanted in ("auto", "exact"):
        return "exact"
    if device.type != "cpu":
        find_kernel(device, config.head_dim)
    return "8bit"


def takes_operands(mode: AttentionMode, device: torch.device, config: ModelConfig) -> bool:
    """Whether a causal model's cache may hold keys and values as attention in this mode takes them: ours and cuDNN's
    do, and the CPU's, which is like them. `choose_attention` has allowed the mode."""
    return mode == "8bit" and attends_to_operands(device, config.head_dim)


def attends_to_operands(device: torch.device, head_dim: int) -> bool:
    """Whether attention in 8 bits takes queries, keys and values that are in 8 bits already."""
    return device.type != "cuda" or find_kernel(device, head_dim).attend in _TO_OPERANDS


def takes_values_across(device: torch.device, head_dim: int) -> bool:
    """Whether a cache should hold values as `Operand.across` says, for a mode in which it `takes_operands`."""
    return device.type == "cuda" and find_kernel(device, head_dim).attend is hopper_attention and puts_across(device)


@lru_cache
def find_kernel(device: torch.device, head_dim: int) -> Kernel:
    """Return the kernel that a GPU takes for heads of that size. Raises InputError with what is against each."""
    card, size = card_of(device), TRIED._replace(dim=TRIED_HEADS * head_dim, head_dim=head_dim)
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


def _on_its_stream(kernel: Kernel, device: torch.device, head_dim: int) -> Kernel:
    """Return the kernel, with a guard if it runs on CUDA's default stream alone."""
    if kernel.attend in _TO_OPERANDS:  # ours and cuDNN's take the current stream
        return kernel
    generator = torch.Generator(device).manual_seed(1)
    q, k, v = torch.randn(3, 1, STREAM_TOKENS, 2 * head_dim, device=device, generator=generator).bfloat16()
    if follows_stream(kernel.attend, q, k, v, 2):
        return kernel
    logging.info("%s runs on CUDA's default stream alone: forwards with it are not recorded", kernel.package)
    return kernel._replace(attend=on_default_stream(kernel.attend))


def attention_note(mode: AttentionMode, device: torch.device, config: ModelConfig) -> str | None:
    """What should be known of self-attention in 8 bits on this device; else None. `choose_attention` has allowed it."""
    if mode != "8bit":
        return None
    if device.type == "cpu":
        return "Attention in 8 bits on the CPU gives about a GPU's quality, and takes longer than without it."
    return f"Attention in 8 bits by {find_kernel(device, config.head_dim).package}."


def check_8_bits(
    arithmetic: Arithmetic, attention: AttentionMode, device: torch.device, config: ModelConfig
) -> tuple[str, ...]:
    """What should be known of an arithmetic and an attention that were asked for. Raises InputError where the device
    or the model's sizes do not allow them."""
    choose_arithmetic(arithmetic, device, config)
    choose_attention(attention, device, config)
    untried = UNTRIED if device.type == "mps" else None
    notes = untried, arithmetic_note(arithmetic, device, config), attention_note(attention, device, config)
    return tuple(note for note in notes if note is not None)
