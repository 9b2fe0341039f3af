"""The attention layers of a block: self-attention among a video's tokens, and cross-attention to the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..attention.choose_8bit import attend_8bit, attend_operands, attends_to_operands
from ..attention.exact import Attention, attend_to_frames, attend_to_padded
from ..attention.fp8 import Operand, queries_in_8_bits
from ..attention.fp8_operands import own_keys, own_queries, own_values
from ..cache import Pair
from ..config import ModelConfig
from ..forward import ForwardOptions, Rope
from ..ops.linear_8bit import as_input, input_dtype
from ..ops.plain import NormRope
from ..ops.pointwise import Rows, rms_norm_
from ..ops.scatter import Unrotated
from .operations import Layer, Operations, joined, norm_parameters, prepared_layers
from .residual import Residual, in_turn

Extend = Callable[[Tensor | Unrotated | None, Tensor | Unrotated, Tensor], tuple[Any, Any, Any]]


class _Attention(nn.Module):
    def __init__(self, config: ModelConfig, operations: Operations, attention: Attention, **factory: Any) -> None:
        super().__init__()
        self.heads, self.head_dim, self.eps, self.attention = config.num_heads, config.head_dim, config.eps, attention
        self.q, self.k, self.v, self.o = (operations.Linear(config.dim, config.dim, **factory) for _ in range(4))
        self.norm_q = operations.RMSNorm(config.dim, eps=config.eps, **factory)
        self.norm_k = operations.RMSNorm(config.dim, eps=config.eps, **factory)


class SelfAttention(_Attention):
    """A self-attention layer with RoPE. The norms of q and k cover all heads together.

    attention: the attention function.
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
        """Add gate * attention(norm(x) * (1 + scale) + shift) to the residual stream x of each batch element in `rows`.

        modulation: shift, 1 + scale, and gate, [B, 3, dim].
        rope: cosines and sines of the tokens' RoPE angles.
        reference: a tensor with the dtype for GEMMs and attention.
        extend: a function (queries, keys, values) -> (queries, keys, values) that adds the keys and values of earlier
        frames, for a causal model with a single batch element; else None.

        If several processes compute a forward, x holds this process's tokens. Attention and `extend` process all
        tokens, but only this process's heads.
        """
        norms = self._norms(rows[0].stream)
        with prepared_layers(reference, self.q, self.k, self.v, self.o) as (*layers, to_out):
            for row, (shift, scale, gate) in in_turn(rows, modulation):
                y = row.normed(scale, shift, self.eps, reference.dtype, *layers)
                projected = self._project(y, layers, norms, rope, options)
                del y
                y = self._attend(projected, extend, options, input_dtype(to_out) or reference.dtype)
                row.add(to_out(y), gate)
                del y

    def give(self, row: Residual, modulation: Tensor, rope: Rope, reference: Tensor, extend: Extend) -> None:
        """Pass the keys and values of a single batch element to `extend`, without computing attention, and leave x
        unchanged except for deferred operations. The last block needs only this in the last forward of a chunk. The
        arguments are those of `update_`."""
        shift, scale, _ = modulation[0]
        with prepared_layers(reference, self.k, self.v) as (to_keys, to_values):
            y = row.normed(scale, shift, self.eps, reference.dtype, to_keys, to_values)
            keys, values = projections(y, to_keys, to_values, at_once=True)
            extend(None, Unrotated(keys, NormRope(self._norms(row.stream)[1], *rope, self.eps)), values)

    def _norms(self, x: Tensor) -> Pair:
        return norm_parameters(self.norm_q, x)[0], norm_parameters(self.norm_k, x)[0]

    def _project(
        self, y: Rows, layers: Sequence[Layer], norms: Pair, rope: Rope, options: ForwardOptions
    ) -> Iterator[Any]:
        """Yield q, k and v, computed one by one by `layers` from the normed input y [tokens, dim]. `norms` are the
        weights of the norms of q and k.

        What is yielded depends on the forward:
        - If `in_operands` returns True: Operands (fp8 values with their scale). Each 16-bit tensor is freed before the
        next one is computed.
        - With a KV cache in a single process: keys as Unrotated (before norm and RoPE), because the cache applies both,
        and values as a tensor. Queries are also Unrotated, unless the cache is in fp8 and attention needs 16-bit
        queries.
        - Otherwise, and during torch.compile: tensors, with norm and RoPE applied to q and k.
        """
        history = None if "token_share" in options or torch.compiler.is_compiling() else options.get("kv_cache")
        made = projections(y, *layers, at_once=history is not None)
        del y
        q, k = (partial(Unrotated, norm_rope=NormRope(norm, *rope, self.eps)) for norm in norms)
        if self.in_operands(norms[0].device, options):
            yield own_queries(q(next(made)))
            yield own_keys(k(next(made)), self.head_dim)
            (values,) = made  # the last projection, after which y is freed
            yield own_values(values, self.head_dim)
            return
        rotates_here = history is None or history.in_fp8 and not self._alone_in_8_bits(options)
        yield q(next(made)).rotated() if rotates_here else q(next(made))
        yield k(next(made)).rotated() if history is None else k(next(made))
        yield next(made)

    def in_operands(self, device: torch.device, options: ForwardOptions) -> bool:
        """Return whether q, k and v are quantized one by one to Operands (fp8 values with their scale). True if all of
        these hold:
        - attention computes in 8 bits by a kernel that accepts Operands;
        - no other code, such as a ComfyUI patch, needs q, k and v in 16 bits;
        - a single process computes the forward, without a KV cache and without torch.compile."""
        alone = options.get("kv_cache") is None and "token_share" not in options and not torch.compiler.is_compiling()
        return alone and self._alone_in_8_bits(options) and attends_to_operands(device, self.head_dim)

    def _alone_in_8_bits(self, options: ForwardOptions) -> bool:
        """Return whether attention computes in 8 bits, and no other code, such as a ComfyUI patch, needs q, k and v in
        16 bits."""
        return self.attention is attend_8bit or (self.in_8_bits and "residuals" in options)

    def _attend(
        self, projected: Iterator[Any], extend: Extend | None, options: ForwardOptions, dtype: torch.dtype
    ) -> Rows:
        """Return the attention result [tokens, dim] of this process's tokens. `projected` yields q, k and v. `extend`
        adds the keys and values of earlier frames; it is None without a KV cache.

        If `dtype`, the input dtype of the next layer, is an 8-bit dtype, kernels that can write 8 bits return the
        result in `dtype`.
        """
        share = options.get("token_share")
        given = projected if share is None else share.to_heads(projected)
        q, keys, values = cast(tuple[Any, Any, Any], given if extend is None else extend(*given))
        shares = None if extend is None else options["kv_cache"].frame_shares
        if isinstance(q, Operand):
            return attend_operands(q, keys, values, self.heads, dtype, shares)
        heads = q.shape[1] // self.head_dim
        out: Any
        if shares is None:
            out = self.attention(q[None], _as_row(keys), _as_row(values), heads, options)[0]
        elif isinstance(keys, Operand):
            out = attend_operands(queries_in_8_bits(q), keys, values, heads, q.dtype, shares)
        else:
            out = attend_to_frames(q, keys, values, heads, shares)
        del given, q, keys, values  # frees memory before the exchange
        return out if share is None else share.to_tokens(out)


class CrossAttention(_Attention):
    """A cross-attention layer from the video's tokens to the prompt. As in training, tokens also attend to the prompt's
    padding up to text_len. Keys may be fewer than text_len. The last key is then padding, and stands for itself and for
    all missing padding."""

    def __init__(self, config: ModelConfig, operations: Operations, attention: Attention, **factory: Any) -> None:
        super().__init__(config, operations, attention, **factory)
        self._text_len = config.text_len

    def project(self, context: Tensor, stream: Tensor) -> Pair:
        """Return the keys, after their norm, and the values of the embedded prompts `context`, each [B, tokens, dim].
        The norm's weight is moved to the device of the residual stream `stream`."""
        norm_k = norm_parameters(self.norm_k, stream)[0]
        with prepared_layers(context, self.k, self.v) as (to_k, to_v):
            keys = [rms_norm_(to_k(prompt), norm_k, self.eps) for prompt in context]
            return torch.stack(keys), torch.stack([to_v(prompt) for prompt in context])

    def update_(
        self, rows: Sequence[Residual], norm: Pair, keys_values: Pair, context: Tensor, options: ForwardOptions
    ) -> None:
        """Add attention(norm(x), prompts) to the residual stream x of each batch element in `rows`. `norm` is the
        weight and bias of x's norm, `keys_values` the result of `project`. GEMMs use the dtype of `context`."""
        norm_q, lengths = norm_parameters(self.norm_q, rows[0].stream)[0], options.get("prompt_lengths")
        with prepared_layers(context, self.q, self.o) as (to_q, to_out):
            for row, number, k, v in in_turn(rows, range(len(rows)), *keys_values):
                y = row.normed(*norm, self.eps, context.dtype, to_q)
                q = rms_norm_(to_q(y), norm_q, self.eps)
                del y
                if (missing := self._text_len - len(k)) > 0:
                    y = attend_to_padded(q, k, v, self.heads, missing)
                else:
                    unlike = {} if lengths is None else {"unlike": lengths[number : number + 1]}
                    y = self.attention(q[None], k[None], v[None], self.heads, {**options, **unlike})[0]
                del q
                y = as_input(y, to_out)
                row.add(to_out(y))
                del y


def projections(y: Rows, *layers: Layer, at_once: bool) -> Iterator[Tensor]:
    """Yield the result [tokens, out] of each layer for y [tokens, in]. If `at_once` is True and the layers can be
    joined (see `joined`), one matrix product computes all results, which are strided views of it. Otherwise each layer
    runs when its result is requested."""
    whole = joined(*layers) if at_once else None
    if whole is None:
        yield from (layer(y) for layer in layers)
    else:
        yield from whole(y).chunk(len(layers), dim=1)


def _as_row(x: Tensor | Operand) -> Any:
    return x[None] if isinstance(x, Tensor) else x
