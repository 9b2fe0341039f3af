"""One transformer block, which prepares each weight once but processes the batch elements one by one to save memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..attention.exact import Attention
from ..cache import CameraCache, Pair
from ..config import ModelConfig
from ..forward import Camera, ForwardOptions, Rope
from ..ops.implementation import slices
from ..ops.linear_8bit import EightBitLayer, activated, shared_sum
from ..ops.pointwise import modulated
from .attention import CrossAttention, SelfAttention
from .operations import Layer, Operations, gelu_layer, norm_parameters, prepared_layers
from .residual import Residual, deferred_first, residuals

FFN_TOKENS = 32768
"""The feed-forward processes at most this many tokens in one step."""

CAMERA_TOKENS = 32768
"""The camera layers process at most this many tokens in one step."""


class Block(nn.Module):
    """A transformer block: self-attention, camera layers if the model has them, cross-attention and feed-forward."""

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        operations: Operations,
        attentions: tuple[Attention, Attention],
        **factory: Any,
    ) -> None:
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

    @property
    def joint_layers(self) -> tuple[nn.Module, ...]:
        """The q, k and v layers of self-attention, which can run as one matrix product."""
        return self.self_attn.q, self.self_attn.k, self.self_attn.v

    @property
    def main_layers(self) -> tuple[nn.Module, ...]:
        """The linear layers that process the video's tokens, not the camera or the prompt."""
        own, cross = self.self_attn, self.cross_attn
        return own.q, own.k, own.v, own.o, cross.q, cross.o, self.ffn[0], self.ffn[2]

    def forward(
        self,
        x: Tensor,
        e0: Tensor,
        context: Tensor,
        camera: Camera | None,
        rope: Rope,
        options: ForwardOptions,
        inplace: bool = False,
    ) -> Tensor:
        """Return the residual stream x [B, tokens, dim] after this block. x is overwritten if `inplace` is True or the
        option `residuals` is set.

        e0: the time modulation [B, 6, dim] in the dtype of x.
        context: the embedded prompts [B, tokens, dim], whose dtype is also used for GEMMs and attention.
        """
        given = None if torch.compiler.is_compiling() else options.get("residuals")
        x = x if inplace or given else x.clone()
        rows = given or residuals(x)
        modulation = modulated(e0, self.modulation)  # shift, scale and gate, twice
        history, extend = options.get("kv_cache"), None
        if history is not None:
            extend = partial(history.extend, self.index)
            if history.ends_at(self.index) and "token_share" not in options:  # other processes wait for the rest
                self.self_attn.extend_cache(rows[0], modulation[:, :3], rope, context, extend)
                return x
        self.self_attn.update_(rows, modulation[:, :3], rope, context, options, extend)
        if camera is not None:
            self._inject(rows, camera, context)
        norm = cast(Pair, norm_parameters(self.norm3, x))  # norm3 has a bias
        prompts = self._prompt_keys_values(x, context, None if camera is None else camera.cache)
        self.cross_attn.update_(rows, norm, prompts, context, options)
        del prompts
        self._feed_forward(rows, modulation[:, 3:], context)
        if not given:
            for row in rows:
                row.settle()
        return x

    def _feed_forward(self, rows: Sequence[Residual], modulation: Tensor, reference: Tensor) -> None:
        with prepared_layers(reference, self.ffn[0], self.ffn[2]) as (up, down):
            up_and_gelu = gelu_layer(up, down)
            if up_and_gelu is None and isinstance(down, EightBitLayer):
                down = down.after_gelu()
            for row, (shift, scale, gate) in deferred_first(rows, modulation):
                for part in row.parts(FFN_TOKENS):
                    normed = partial(part.normed, scale, shift, self.eps, reference.dtype, up)
                    y = up_and_gelu(normed()) if up_and_gelu else activated(up(normed()), "gelu", down)
                    part.add(down(y), gate)
                    del y

    def _prompt_keys_values(self, x: Tensor, context: Tensor, cache: CameraCache | None) -> Pair:
        if torch.compiler.is_compiling() or cache is None or cache.prompt.embedded is not context:
            return self.cross_attn.project(context, x)
        cached = cache.prompt.get(self.index)
        if cached is None:
            cached = self.cross_attn.project(context, x)
            if cache.has_room(2 * cached[0].nbytes):
                cache.prompt.put(self.index, cached)
        return cached

    def _inject(self, rows: Sequence[Residual], camera: Camera, reference: Tensor) -> None:
        """Replace each residual stream x by x * (1 + scale) + shift, with scale and shift from the camera. `reference`
        has the device and dtype of GEMMs."""
        cached = self._cached_scale_and_shift(camera, reference)
        if cached is not None:
            for own, scale, shift in zip(_rows_by_camera(rows, cached[0]), *cached, strict=True):
                _scale_and_shift_rows(own, scale, shift)
            return
        with self._camera_layers(reference) as layers:
            for own, tokens in zip(_rows_by_camera(rows, camera.tokens), camera.tokens, strict=True):
                for part in slices(len(tokens), CAMERA_TOKENS):
                    scale_and_shift = _scale_and_shift(tokens[part], layers)
                    _scale_and_shift_rows([row.part(part) for row in own], *scale_and_shift)

    def _cached_scale_and_shift(self, camera: Camera, reference: Tensor) -> Pair | None:
        if torch.compiler.is_compiling() or camera.cache is None:
            return None
        cached = camera.cache.get(self.index)
        if cached is None and camera.cache.has_room(2 * camera.tokens.nbytes):
            cached = self._scales_and_shifts(camera.tokens, reference)
            camera.cache.put(self.index, cached)
        return cached

    def _scales_and_shifts(self, cameras: Tensor, reference: Tensor) -> Pair:
        with self._camera_layers(reference) as layers:
            if cameras.shape[1] <= CAMERA_TOKENS and len(cameras) == 1:  # one part of one camera: no copy is needed
                scale, shift = _scale_and_shift(cameras[0], layers)
                return scale[None], shift[None]
            scales, shifts = torch.empty_like(cameras), torch.empty_like(cameras)
            for tokens, scale, shift in zip(cameras, scales, shifts, strict=True):
                for part in slices(len(tokens), CAMERA_TOKENS):
                    scale[part], shift[part] = _scale_and_shift(tokens[part], layers)
        return scales, shifts

    def _camera_layers(self, reference: Tensor) -> AbstractContextManager[tuple[Layer, ...]]:
        layers = self.cam_injector_layer1, self.cam_injector_layer2, self.cam_scale_layer, self.cam_shift_layer
        return prepared_layers(reference, *layers)


def residual_mlp(x: Tensor, first: Layer, second: Layer) -> Tensor:
    """Return x + second(silu(first(x))) for x [tokens, dim] and two linear layers."""
    return _change(x, first, second).add_(x)


def _change(x: Tensor, first: Layer, second: Layer) -> Tensor:
    return second(activated(first(x), "silu", second))


def _scale_and_shift(tokens: Tensor, layers: tuple[Layer, ...]) -> Pair:
    first, second, to_scale, to_shift = layers
    hidden = shared_sum(_change(tokens, first, second), tokens, to_scale, to_shift)
    return to_scale(hidden), to_shift(hidden)


def _rows_by_camera(rows: Sequence[Residual], cameras: Tensor) -> list[Sequence[Residual]]:
    return [rows] if len(cameras) == 1 else [[row] for row in rows]


def _scale_and_shift_rows(rows: Iterable[Residual], scale: Tensor, shift: Tensor) -> None:
    for row in rows:
        row.scale_and_shift(scale, shift)
