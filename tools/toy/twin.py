"""The denoiser's forward as functions that can be trained: the same numbers as `model.dit`, which only infers.

Weights go by their official names. As in the engine, matrix products and attention run in `dtype`; the residual
stream, norms, modulation, time embedding and head are float32. A base model's forward, in which all attend to all, is a
causal model's of a single chunk. Cameras are of the frames; copies of these see the same ones."""

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
    """Queries, keys and values [B, heads, tokens, channels] of a block's self-attention. x [B, frames, n, dim]: the
    residual stream. The other arguments are those of `finished`."""
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
    """Return the residual stream x [B, frames, n, dim] after a block with `weights` by their names. `attended` [B,
    heads, tokens, channels]: the result of its self-attention. `e0` [B, frames, 6, dim]: the modulation. `prompts`:
    the text [B, g, words, dim], each for a g-th of the frames of either half, and the bias [words] on their logits.
    `camera`: [B, frames of a copy, n, dim]."""
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
    """A denoiser that is trained: its weights and sizes, the dtype of its products, and the functions of a block."""

    weights: Weights
    config: ModelConfig
    dtype: torch.dtype = torch.float32
    parts: Parts = (projected, finished)


def rotated(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Return x [B, tokens, dim] with RoPE applied. The pairs are swapped and added, because `torch.stack` compiles to
    slow kernels."""
    heads = x.unflatten(-1, (-1, rope[0].shape[-1]))
    other = heads.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return (heads * rope[0][:, None] + other * rope[1][:, None]).flatten(2)


def velocity(network: Network, x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor) -> Tensor:
    """Velocity float32 [B, 16, f, h, w] of x [B, 36, f, h, w], as the engine's model gives it.

    timestep [B]; context [B, n, text_dim], padded with zeros, n < text_len; camera [B, tokens, 1536], the Pluecker map
    in patches (`camera_map`)."""
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
    `clean`, of the same shape, as in a rollout of the engine. Both run through the model at once, `clean` at timestep
    0. `attends`: of `chunks`. `timestep` [B, f]; `context` [B, g, n, text_dim]: prompts, each for a g-th of the frames.
    `camera` is that of `velocity`. `later`: the latent frames by which the second half is later."""
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
    """layout: how many copies of the same frames there are, and how many frames later their second half is."""
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
    """Cosines and sines [tokens, head_dim] of all tokens of so many copies of the frames, a pair's one after another,
    the first of its sines negative; with `later`, their second half is so many later. Recordings read them, so they are
    kept."""
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
    """Return the attention of y [B, frames, n, dim] to the prompts of `finished`. With several prompts the frames are
    two copies of the same ones, and each prompt is for its part of either."""
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
