"""The attention layers of a block: self-attention among a video's tokens, and cross-attention to the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..attention.choose_8bit import accepts_fp8_qkv, attend_8bit, attend_fp8
from ..attention.exact import Attention, attend_to_frames, attend_to_padded
from ..attention.fp8 import Operand, queries_to_operand
from ..attention.fp8_operands import norm_rope_keys, norm_rope_queries, values_to_operand
from ..cache import Pair
from ..config import ModelConfig
from ..forward import ForwardOptions, Rope
from ..ops.linear_8bit import as_input, input_dtype
from ..ops.plain import NormRope
from ..ops.pointwise import Rows, rms_norm_
from ..ops.scatter import BeforeRope
from .operations import Layer, Operations, joined, norm_parameters, prepared_layers
from .residual import Residual, deferred_first

Extend = Callable[[Tensor | BeforeRope | None, Tensor | BeforeRope, Tensor], tuple[Any, Any, Any]]


class _Attention(nn.Module):
    def __init__(self, config: ModelConfig, operations: Operations, attention: Attention, **factory: Any) -> None:
        super().__init__()
        self.heads, self.head_dim, self.eps, self.attention = config.num_heads, config.head_dim, config.eps, attention
        self.q, self.k, self.v, self.o = (operations.Linear(config.dim, config.dim, **factory) for _ in range(4))
        self.norm_q = operations.RMSNorm(config.dim, eps=config.eps, **factory)
        self.norm_k = operations.RMSNorm(config.dim, eps=config.eps, **factory)


class SelfAttention(_Attention):
    """A self-attention layer with RoPE. The norms of q and k cover all heads together.

    in_8_bits: whether `attention` computes in 8 bits.
    """

    in_8_bits = False

    def update_(
        self,
        rows: Sequence[Residual],
        modulation: Tensor,
        rope: Rope,
        reference: Tensor,
        options: ForwardOptions,
        extend: Extend | None = None,
    ) -> None:
        """Add gate * attention(norm(x) * (1 + scale) + shift) to the residual stream x of each batch element.

        rows: the residual streams x [tokens, dim].
        modulation: shift, 1 + scale, and gate, [B, 3, dim].
        reference: any tensor with the device and dtype of GEMMs and attention.
        extend: a function that adds earlier frames' keys and values, or None.
        """
        norms = self._norms(rows[0].stream)
        with prepared_layers(reference, self.q, self.k, self.v, self.o) as (*layers, to_out):
            for row, (shift, scale, gate) in deferred_first(rows, modulation):
                y = row.normed(scale, shift, self.eps, reference.dtype, *layers)
                projected = self._project(y, layers, norms, rope, options)
                del y
                y = self._attend(projected, extend, options, input_dtype(to_out) or reference.dtype)
                row.add(to_out(y), gate)
                del y

    def extend_cache(self, row: Residual, modulation: Tensor, rope: Rope, reference: Tensor, extend: Extend) -> None:
        """Compute keys and values from the norm of one batch element's residual stream `row`, and pass them to the KV
        cache's function `extend`. `modulation` [1, 3, dim] is shift, 1 + scale, and gate (unused). `reference` is any
        tensor with the device and dtype of GEMMs."""
        shift, scale, _ = modulation[0]
        with prepared_layers(reference, self.k, self.v) as (to_keys, to_values):
            y = row.normed(scale, shift, self.eps, reference.dtype, to_keys, to_values)
            keys, values = projections(y, to_keys, to_values, at_once=True)
            extend(None, BeforeRope(keys, NormRope(self._norms(row.stream)[1], *rope, self.eps)), values)

    def _norms(self, x: Tensor) -> Pair:
        return norm_parameters(self.norm_q, x)[0], norm_parameters(self.norm_k, x)[0]

    def _project(
        self, y: Rows, layers: Sequence[Layer], norms: Pair, rope: Rope, options: ForwardOptions
    ) -> Iterator[Any]:
        """Yield q, k and v [tokens, dim], which `layers` compute from the normed residual stream y. If `makes_operands`
        is True, yield fp8 Operands. Else apply norm and RoPE to q and k, or leave that to the KV cache (BeforeRope)."""
        history = None if "token_share" in options or torch.compiler.is_compiling() else options.get("kv_cache")
        made = projections(y, *layers, at_once=history is not None)
        del y
        q, k = (partial(BeforeRope, norm_rope=NormRope(norm, *rope, self.eps)) for norm in norms)
        if self.makes_operands(norms[0].device, options):
            yield norm_rope_queries(q(next(made)))
            yield norm_rope_keys(k(next(made)), self.head_dim)
            (values,) = made  # the last projection, after which y is freed
            yield values_to_operand(values, self.head_dim)
            return
        rotates_here = history is None or history.in_fp8 and not self._takes_8_bits(options)
        yield q(next(made)).apply_rope_() if rotates_here else q(next(made))
        yield k(next(made)).apply_rope_() if history is None else k(next(made))
        yield next(made)

    def makes_operands(self, device: torch.device, options: ForwardOptions) -> bool:
        """Whether each of q, k and v is quantized to an fp8 Operand before the next is computed, which saves memory.
        Requires 8-bit attention on a supported GPU, without KV cache, other processes, torch.compile or patches."""
        alone = options.get("kv_cache") is None and "token_share" not in options and not torch.compiler.is_compiling()
        return alone and self._takes_8_bits(options) and accepts_fp8_qkv(device, self.head_dim)

    def _takes_8_bits(self, options: ForwardOptions) -> bool:
        """Whether attention computes in 8 bits, and no patch needs q, k and v in 16 bits."""
        return self.attention is attend_8bit or (self.in_8_bits and "residuals" in options)

    def _attend(
        self, projected: Iterator[Any], extend: Extend | None, options: ForwardOptions, dtype: torch.dtype
    ) -> Rows:
        """Return attention [tokens, dim] for q, k and v from `projected`. The KV cache's function `extend` adds earlier
        frames' keys and values. The result has the dtype of q, or `dtype` if q is an fp8 Operand."""
        share = options.get("token_share")
        given = projected if share is None else share.to_heads(projected)
        q, keys, values = cast(tuple[Any, Any, Any], given if extend is None else extend(*given))
        frame_mask = None if extend is None else options["kv_cache"].frame_mask
        if isinstance(q, Operand):
            return attend_fp8(q, keys, values, self.heads, dtype, frame_mask)
        heads = q.shape[1] // self.head_dim
        out: Any
        if frame_mask is None:
            out = self.attention(q[None], _as_row(keys), _as_row(values), heads, options)[0]
        elif isinstance(keys, Operand):
            out = attend_fp8(queries_to_operand(q), keys, values, heads, q.dtype, frame_mask)
        else:
            out = attend_to_frames(q, keys, values, heads, frame_mask)
        del given, q, keys, values  # frees memory before the exchange
        return out if share is None else share.to_tokens(out)


class CrossAttention(_Attention):
    """A cross-attention layer to the prompt. Training padded prompts to text_len tokens. A shorter prompt must end with
    a padding token. The layer multiplies this token's softmax weight by the number of tokens that it represents."""

    def __init__(self, config: ModelConfig, operations: Operations, attention: Attention, **factory: Any) -> None:
        super().__init__(config, operations, attention, **factory)
        self._text_len = config.text_len

    def project(self, context: Tensor, reference: Tensor) -> Pair:
        """Project the embedded prompts `context` [B, tokens, dim] to normed keys and to values. Both have the shape of
        `context`. `reference` has the device to which the norm's weight is copied."""
        norm_k = norm_parameters(self.norm_k, reference)[0]
        with prepared_layers(context, self.k, self.v) as (to_k, to_v):
            keys = [rms_norm_(to_k(prompt), norm_k, self.eps) for prompt in context]
            return torch.stack(keys), torch.stack([to_v(prompt) for prompt in context])

    def update_(
        self, rows: Sequence[Residual], norm: Pair, keys_values: Pair, reference: Tensor, options: ForwardOptions
    ) -> None:
        """Add attention(norm(x), prompts) to the residual stream x [tokens, dim] of each batch element in `rows`.

        norm: the weight and bias of the norm before attention.
        keys_values: the result of `project`.
        reference: any tensor with the device and dtype of GEMMs and attention.
        """
        norm_q, lengths = norm_parameters(self.norm_q, rows[0].stream)[0], options.get("prompt_lengths")
        with prepared_layers(reference, self.q, self.o) as (to_q, to_out):
            for row, number, k, v in deferred_first(rows, range(len(rows)), *keys_values):
                y = row.normed(*norm, self.eps, reference.dtype, to_q)
                q = rms_norm_(to_q(y), norm_q, self.eps)
                del y
                if (missing := self._text_len - len(k)) > 0:
                    y = attend_to_padded(q, k, v, self.heads, missing)
                else:
                    padding_start = {} if lengths is None else {"padding_start": lengths[number : number + 1]}
                    y = self.attention(q[None], k[None], v[None], self.heads, {**options, **padding_start})[0]
                del q
                y = as_input(y, to_out)
                row.add(to_out(y))
                del y


def projections(y: Rows, *layers: Layer, at_once: bool) -> Iterator[Tensor]:
    """Yield each layer's result [tokens, out] for y [tokens, in]. With `at_once`, layers that can be `joined` run as
    one matrix product."""
    whole = joined(*layers) if at_once else None
    if whole is None:
        yield from (layer(y) for layer in layers)
    else:
        yield from whole(y).chunk(len(layers), dim=1)


def _as_row(x: Tensor | Operand) -> Any:
    return x[None] if isinstance(x, Tensor) else x
