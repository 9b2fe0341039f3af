"""One block of the transformer: self-attention, camera, cross-attention, feed-forward.

The batch is walked row by row (its rows are the prompts of classifier-free guidance): a weight is made ready once for
all rows, while activations exist for one row at a time. The residual stream is fp32 and written in place."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import Attention
from .cache import CameraCache, Pair
from .config import ModelConfig
from .operations import borrow, values
from .pointwise import affine_, gated_add_, gelu_, layer_norm, rms_norm_, rms_rope_, spans

FFN_TOKENS = 32768
"""Tokens in the feed-forward at once. At 480x832x81 that is all: two halves take 1 % longer for the whole step, and the
self-attention needs more memory anyway."""

CAMERA_TOKENS = 32768
"""Tokens in the camera layers at once; for longer videos scale and shift do not exist for the whole sequence."""

Apply = Callable[[Tensor], Tensor]
Extend = Callable[[Tensor, Tensor], Pair]
Rope = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Camera:
    """The camera as the blocks see it: `tokens` [1 or rows, tokens, dim]; `cache` may hold what they lead to."""

    tokens: Tensor
    cache: CameraCache | None = None


class _Attention(nn.Module):
    def __init__(self, config: ModelConfig, operations, attention: Attention, **factory):
        super().__init__()
        self.heads, self.eps, self.attention = config.num_heads, config.eps, attention
        for name in "qkvo":
            setattr(self, name, operations.Linear(config.dim, config.dim, **factory))
        self.norm_q = operations.RMSNorm(config.dim, eps=config.eps, **factory)
        self.norm_k = operations.RMSNorm(config.dim, eps=config.eps, **factory)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, options: Mapping) -> Tensor:
        return self.attention(q[None], k[None], v[None], self.heads, options)[0]


class SelfAttention(_Attention):
    """Attention among a row's tokens; q and k are normed over the full width and turned by position."""

    def update_(
        self, x: Tensor, modulation: Tensor, rope: Rope, like: Tensor, options: Mapping, extend: Extend | None = None
    ) -> None:
        """x [rows, tokens, dim] += gate * attention(norm(x) * (1 + scale) + shift); modulation [rows, 3, dim].

        A causal model has one row; `extend` puts the keys and values of its earlier frames before its own."""
        norm_q, norm_k = values(self.norm_q, x)[0], values(self.norm_k, x)[0]
        with borrowed(like, self.q, self.k, self.v, self.o) as (to_q, to_k, to_v, to_out):
            for row, (shift, scale, gate) in zip(x, modulation, strict=True):
                y = layer_norm(row, 1 + scale, shift, self.eps, like.dtype)
                q = rms_rope_(to_q(y), norm_q, *rope, self.eps)
                k = rms_rope_(to_k(y), norm_k, *rope, self.eps)
                v = to_v(y)
                del y
                if extend is not None:
                    k, v = extend(k, v)
                y = self._attend(q, k, v, options)
                del q, k, v
                gated_add_(row, to_out(y), gate)
                del y


class CrossAttention(_Attention):
    """Attention to the prompt's tokens; all of them, padding included, as in training."""

    def project(self, context: Tensor, stream: Tensor) -> Pair:
        """Keys, normed, and values of the prompts [rows, text_len, dim], each of the same shape; the norm is in the
        residual stream's dtype."""
        norm_k = values(self.norm_k, stream)[0]
        with borrowed(context, self.k, self.v) as (to_k, to_v):
            texts = [(rms_norm_(to_k(text), norm_k, self.eps), to_v(text)) for text in context]
        return tuple(map(torch.stack, zip(*texts, strict=True)))

    def update_(self, x: Tensor, norm: Pair, texts: Pair, context: Tensor, options: Mapping) -> None:
        """x [rows, tokens, dim] += attention(norm(x), prompts); norm = weight and bias, texts = keys and values of
        the prompts `context`, whose dtype is that of GEMMs."""
        norm_q = values(self.norm_q, x)[0]
        plainly = x.new_ones(x.shape[-1])  # gated_add_ reads bf16 into fp32 in one pass, add_ takes two thirds longer
        with borrowed(context, self.q, self.o) as (to_q, to_out):
            for row, k, v in zip(x, *texts, strict=True):
                y = layer_norm(row, *norm, self.eps, context.dtype)
                q = rms_norm_(to_q(y), norm_q, self.eps)
                del y
                y = self._attend(q, k, v, options)
                del q
                gated_add_(row, to_out(y), plainly)
                del y


class Block(nn.Module):
    """Self-attention, camera layers if the model has them, cross-attention and feed-forward, each around a residual."""

    def __init__(self, index: int, config: ModelConfig, operations, attentions: tuple[Attention, Attention], **factory):
        super().__init__()
        self.index, self.eps = index, config.eps
        dim, linear = config.dim, operations.Linear
        self.self_attn = SelfAttention(config, operations, attentions[0], **factory)
        self.cross_attn = CrossAttention(config, operations, attentions[1], **factory)
        self.norm3 = operations.LayerNorm(dim, eps=config.eps, elementwise_affine=True, **factory)
        self.ffn = nn.Sequential(
            linear(dim, config.ffn_dim, **factory), nn.GELU("tanh"), linear(config.ffn_dim, dim, **factory)
        )
        self.modulation = nn.Parameter(torch.empty(1, 6, dim, **factory))
        if config.control is not None:
            self.cam_injector_layer1 = linear(dim, dim, **factory)
            self.cam_injector_layer2 = linear(dim, dim, **factory)
            self.cam_scale_layer = linear(dim, dim, **factory)
            self.cam_shift_layer = linear(dim, dim, **factory)

    def forward(
        self,
        x: Tensor,
        e0: Tensor,
        context: Tensor,
        camera: Camera | None,
        rope: Rope,
        options: Mapping,
        inplace: bool = False,
    ) -> Tensor:
        """The residual stream x [rows, tokens, dim] after this block; `inplace` writes it over x.

        e0: time modulation [rows, 6, dim] in x's dtype. context: embedded prompts [rows, text_len, dim]; their dtype is
        that of GEMMs and attention. `options` go to the attention function; `kv_cache` may hold a KeyValueCache."""
        x = x if inplace else x.clone()
        modulation = self.modulation.to(device=x.device, dtype=x.dtype) + e0
        history = options.get("kv_cache")
        extend = None if history is None else partial(history.extend, self.index)
        self.self_attn.update_(x, modulation[:, :3], rope, context, options, extend)
        if camera is not None:
            self._inject(x, camera, context)
        texts = self._texts(x, context, None if camera is None else camera.cache)
        self.cross_attn.update_(x, values(self.norm3, x), texts, context, options)
        self._feed_forward(x, modulation[:, 3:], context)
        return x

    def _feed_forward(self, x: Tensor, modulation: Tensor, like: Tensor) -> None:
        with borrowed(like, self.ffn[0], self.ffn[2]) as (widen, narrow):
            for row, (shift, scale, gate) in zip(x, modulation, strict=True):
                for span in spans(len(row), FFN_TOKENS):
                    y = layer_norm(row[span], 1 + scale, shift, self.eps, like.dtype)
                    y = gelu_(widen(y))
                    gated_add_(row[span], narrow(y), gate)
                    del y

    def _texts(self, x: Tensor, context: Tensor, cache: CameraCache | None) -> Pair:
        """Keys and values of the prompts, from the cache if that holds them, else into it if there is room."""
        if torch.compiler.is_compiling() or cache is None or cache.prompt.embedded is not context:
            return self.cross_attn.project(context, x)
        kept = cache.prompt.get(self.index)
        if kept is None:
            kept = self.cross_attn.project(context, x)
            if cache.has_room(2 * kept[0].nbytes):
                cache.prompt.put(self.index, kept)
        return kept

    def _inject(self, x: Tensor, camera: Camera, like: Tensor) -> None:
        """x = x * (1 + scale) + shift of the camera's tokens, in stretches where they are not kept."""
        kept = self._kept(camera, like)
        if kept is not None:
            for rows, scale, shift in zip(_sharing(x, kept[0]), *kept, strict=True):
                _apply(rows, scale, shift)
            return
        with self._camera_layers(like) as layers:
            for rows, tokens in zip(_sharing(x, camera.tokens), camera.tokens, strict=True):
                for span in spans(len(tokens), CAMERA_TOKENS):
                    _apply([row[span] for row in rows], *_scale_and_shift(tokens[span], layers))

    def _kept(self, camera: Camera, like: Tensor) -> Pair | None:
        if torch.compiler.is_compiling() or camera.cache is None:
            return None
        kept = camera.cache.get(self.index)
        if kept is None and camera.cache.has_room(2 * camera.tokens.nbytes):
            kept = self._whole_affine(camera.tokens, like)
            camera.cache.put(self.index, kept)
        return kept

    def _whole_affine(self, tokens: Tensor, like: Tensor) -> Pair:
        scales, shifts = torch.empty_like(tokens), torch.empty_like(tokens)
        with self._camera_layers(like) as layers:
            for part, scale, shift in zip(tokens, scales, shifts, strict=True):
                for span in spans(len(part), CAMERA_TOKENS):
                    scale[span], shift[span] = _scale_and_shift(part[span], layers)
        return scales, shifts

    def _camera_layers(self, like: Tensor):
        layers = self.cam_injector_layer1, self.cam_injector_layer2, self.cam_scale_layer, self.cam_shift_layer
        return borrowed(like, *layers)


@contextmanager
def borrowed(like: Tensor, *layers: nn.Module) -> Iterator[tuple[Apply, ...]]:
    """Several layers by `operations.borrow`, freed together."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(borrow(layer, like)) for layer in layers)


def residual_mlp(x: Tensor, first: Apply, second: Apply) -> Tensor:
    """x + second(silu(first(x)))."""
    return second(F.silu(first(x), inplace=True)).add_(x)


def _scale_and_shift(tokens: Tensor, layers: tuple[Apply, ...]) -> Pair:
    first, second, to_scale, to_shift = layers
    hidden = residual_mlp(tokens, first, second)
    return to_scale(hidden), to_shift(hidden)


def _sharing(x: Tensor, cameras: Tensor) -> Iterable[Iterable[Tensor]]:
    """For each camera, the rows of x that it serves: all of them when it is the only one."""
    return [x] if len(cameras) == 1 else x.split(1)


def _apply(rows: Iterable[Tensor], scale: Tensor, shift: Tensor) -> None:
    for row in rows:
        affine_(row, scale, shift)
