"""The denoiser's forward, differentiable, with the numbers of `model.dit`. A base model is a causal one of a single
chunk.

Matrix products and attention run in `dtype`; the residual stream, norms, modulation, time embedding and head are
float32."""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...model.config import ModelConfig
from ...model.layers.rope import rope_table
from .layers import (
    Weights,
    camera_tokens,
    linear,
    norm,
    of_block,
    patches,
    prompt_tokens,
    rms,
    time_embedding,
    velocity_of,
)
from .spans import Attends, attended_to

Parts = tuple[Callable[..., tuple[Tensor, Tensor, Tensor]], Callable[..., Tensor]]


def projected(
    weights: Weights, x: Tensor, e0: Tensor, rope: tuple[Tensor, Tensor], heads: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [B, heads, tokens, channels] of a block from the residual stream x [B, frames, n,
    dim]."""
    shift, scale = (weights["modulation"][:, None] + e0)[:, :, :2, None].unbind(2)
    y = (norm(x, eps) * (1 + scale) + shift).to(dtype).flatten(1, 2)
    q, k = (
        rotated(rms(linear(weights, f"self_attn.{name}", y), weights[f"self_attn.norm_{name}.weight"], eps), rope)
        for name in "qk"
    )
    parts = q.to(dtype), k.to(dtype), linear(weights, "self_attn.v", y)
    query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2).contiguous() for part in parts)
    return query, key, value


def finished(
    weights: Weights,
    x: Tensor,
    attended: Tensor,
    e0: Tensor,
    prompts: tuple[Tensor, Tensor],
    camera: Tensor,
    heads: int,
    eps: float,
) -> Tensor:
    """Return the residual stream x [B, frames, n, dim] after a block.

    attended: [B, heads, tokens, channels], its self-attention's result
    e0: [B, frames, 6, dim], the modulation
    prompts: the text [B, g, words, dim], each for a g-th of the frames, and the bias [words] on its logits
    camera: [B, frames of a copy, n, dim]"""
    gate, shift, scale, gate_2 = (weights["modulation"][:, None] + e0)[:, :, 2:, None].unbind(2)
    dtype = attended.dtype
    y = linear(weights, "self_attn.o", attended.transpose(1, 2).flatten(2)).unflatten(1, x.shape[1:3])
    x = x + y.float() * gate
    hidden = camera + linear(weights, "cam_injector_layer2", F.silu(linear(weights, "cam_injector_layer1", camera)))
    copies = x.unflatten(1, (-1, camera.shape[1]))
    copies = copies * (1 + linear(weights, "cam_scale_layer", hidden).float()[:, None])
    x = (copies + linear(weights, "cam_shift_layer", hidden).float()[:, None]).flatten(1, 2)
    y = (norm(x, eps) * weights["norm3.weight"] + weights["norm3.bias"]).to(dtype)
    x = x + linear(weights, "cross_attn.o", _cross_attention(weights, y, prompts, heads, eps)).float()
    y = (norm(x, eps) * (1 + scale) + shift).to(dtype)
    return x + linear(weights, "ffn.2", F.gelu(linear(weights, "ffn.0", y), approximate="tanh")).float() * gate_2


class Network(NamedTuple):
    """A denoiser in training: its weights and sizes, the dtype of its products, and a block's functions."""

    weights: Weights
    config: ModelConfig
    dtype: torch.dtype = torch.float32
    parts: Parts = (projected, finished)


def rotated(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Apply RoPE to x [B, tokens, dim]. Pairs are swapped and added, because `torch.stack` compiles to slow kernels."""
    heads = x.unflatten(-1, (-1, rope[0].shape[-1]))
    other = heads.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return (heads * rope[0][:, None] + other * rope[1][:, None]).flatten(2)


def velocity(network: Network, x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor) -> Tensor:
    """Return the velocity float32 [B, 16, f, h, w] of x [B, 36, f, h, w]; timestep [B], camera [B, tokens, 1536]."""
    frames = x.shape[2]
    attends = (((0, frames), ((0, frames),)),)
    return _forward(network, x, timestep[:, None].expand(-1, frames), context[:, None], camera, attends, (1, 0))


def causal_velocity(
    network: Network,
    clean: Tensor,
    noisy: Tensor,
    timestep: Tensor,
    context: Tensor,
    camera: Tensor,
    attends: Attends,
    later: int = 0,
) -> Tensor:
    """Return the velocity float32 [B, 16, f, h, w] of each chunk of `noisy` [B, 36, f, h, w] after the chunks of
    `clean`.

    timestep: [B, f]
    context: [B, g, n, text_dim], prompts, each for a g-th of the frames
    later: the latent frames between the halves"""
    times = torch.cat([torch.zeros_like(timestep), timestep], 1)
    x = torch.cat([clean, noisy], 2)
    return _forward(network, x, times, context, camera, attends, (2, later))[:, :, clean.shape[2] :]


def _forward(
    network: Network,
    x: Tensor,
    timestep: Tensor,
    context: Tensor,
    camera: Tensor,
    attends: Attends,
    layout: tuple[int, int],
) -> Tensor:
    """`layout`: copies of the same frames, and the latent frames between their halves."""
    weights, config, dtype, (project, finish) = network
    frames, height, width = x.shape[2], x.shape[3] // 2, x.shape[4] // 2
    rope = _rope(config, (frames // layout[0], height, width), *layout, x.device)
    e, e0 = time_embedding(weights, config, timestep)
    prompts = prompt_tokens(weights, config, context.to(dtype))
    seen = camera_tokens(weights, camera.to(dtype)).unflatten(1, (frames // layout[0], -1))
    tokens = patches(weights, x.to(dtype)).float().unflatten(1, (frames, -1))
    for index in range(config.num_layers):
        own = of_block(weights, index)
        query, key, value = project(own, tokens, e0, rope, config.num_heads, config.eps, dtype)
        made = attended_to(query, key, value, attends, height * width)
        tokens = finish(own, tokens, made, e0, prompts, seen, config.num_heads, config.eps)
    return velocity_of(weights, config, tokens.flatten(1, 2), e, (frames, height, width))


@cache
def _rope(
    config: ModelConfig, grid: tuple[int, int, int], copies: int, later: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [tokens, head_dim] for `copies` of the frames. Cached, because CUDA graphs read them."""
    frames, *size = grid
    tables = rope_table(grid, config.head_dim, device)
    if later:
        half = frames // 2
        rest = rope_table((frames - half, size[0], size[1]), config.head_dim, device, half + later)
        kept = half * size[0] * size[1]
        tables = torch.cat([tables[0][:kept], rest[0]]), torch.cat([tables[1][:kept], rest[1]])
    cos, sin = (part.repeat(copies, 1).repeat_interleave(2, 1) for part in tables)
    sin[:, ::2] *= -1
    return cos, sin


def _cross_attention(weights: Weights, y: Tensor, prompts: tuple[Tensor, Tensor], heads: int, eps: float) -> Tensor:
    """Return the attention of y [B, frames, n, dim] to the prompts, each for its part of either copy of the frames."""
    text, bias = prompts
    count = text.shape[1]
    copies = 2 if count > 1 else 1
    shape = copies, count, -1
    rows = y.flatten(1, 2).unflatten(1, shape).transpose(1, 2).flatten(2, 3).flatten(0, 1)
    words = text.flatten(0, 1)
    q = rms(linear(weights, "cross_attn.q", rows), weights["cross_attn.norm_q.weight"], eps).to(y.dtype)
    k = rms(linear(weights, "cross_attn.k", words), weights["cross_attn.norm_k.weight"], eps).to(y.dtype)
    v = linear(weights, "cross_attn.v", words)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    logits = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    made = (torch.softmax(logits.float() + bias, -1).to(v.dtype) @ v).transpose(1, 2).flatten(2)
    return made.unflatten(0, (-1, count)).unflatten(2, (copies, -1)).transpose(1, 2).flatten(1, 3).view(y.shape)
