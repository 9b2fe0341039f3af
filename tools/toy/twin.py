"""The denoiser's forward, differentiable, with the numbers and dtypes of `model.dit`. A base model is a single
chunk."""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...model.config import ModelConfig
from ...model.layers.head import sinusoid
from ...model.layers.rope import rope_table
from .parameters import Weights

EVEN = 8  # 16 bytes of bf16: rows aligned to this are read fastest by a GPU
Span = tuple[int, int]
Attends = tuple[tuple[Span, tuple[Span, ...]], ...]
"""Spans of frames in order, each with the spans that it attends to."""
Parts = tuple[Callable[..., tuple[Tensor, Tensor, Tensor]], Callable[..., Tensor]]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"].to(x.dtype), weights[f"{name}.bias"].to(x.dtype))


def time_embedding(weights: Weights, config: ModelConfig, timestep: Tensor) -> tuple[Tensor, Tensor]:
    """Return the embedding e [B, parts, dim] and modulation [B, parts, 6, dim] of timestep [B, parts]."""
    e = sinusoid(timestep.flatten(), config.freq_dim).float().unflatten(0, timestep.shape)
    e = linear(weights, "time_embedding.2", F.silu(linear(weights, "time_embedding.0", e)))
    return e, linear(weights, "time_projection.1", F.silu(e)).unflatten(2, (6, -1))


def camera_tokens(weights: Weights, camera: Tensor) -> Tensor:
    seen = linear(weights, "patch_embedding_wancamctrl", camera)
    hidden = F.silu(linear(weights, "c2ws_hidden_states_layer1", seen))
    return seen + linear(weights, "c2ws_hidden_states_layer2", hidden)


def velocity_of(weights: Weights, config: ModelConfig, tokens: Tensor, e: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the velocity [B, 16, f, h, w] of tokens [B, n, dim] with the time embedding e."""
    frames, height, width = grid
    shift, scale = (
        part.repeat_interleave(tokens.shape[1] // part.shape[1], 1)
        for part in (weights["head.modulation"] + e[:, :, None]).unbind(2)
    )
    cells = linear(weights, "head.head", norm(tokens, config.eps) * (1 + scale) + shift)
    cells = cells.view(len(tokens), frames, height, width, 2, 2, -1)
    return cells.permute(0, 6, 1, 2, 4, 3, 5).reshape(len(tokens), -1, frames, 2 * height, 2 * width)


def of_block(weights: Weights, index: int) -> dict[str, Tensor]:
    start = f"blocks.{index}."
    return {name[len(start) :]: weight for name, weight in weights.items() if name.startswith(start)}


def prompt_tokens(weights: Weights, config: ModelConfig, context: Tensor) -> tuple[Tensor, Tensor]:
    """Return prompts [..., n + a few, dim] and their logits' bias. The last tokens weigh as much as all padding."""
    more = EVEN - context.shape[-2] % EVEN
    padded = F.pad(context, (0, 0, 0, more))
    text = linear(weights, "text_embedding.2", F.gelu(linear(weights, "text_embedding.0", padded), approximate="tanh"))
    bias = torch.zeros(padded.shape[-2], device=context.device)
    bias[-more:] = math.log((config.text_len - context.shape[-2]) / more)
    return text, bias


def patches(weights: Weights, x: Tensor) -> Tensor:
    """Return tokens [B, f*h/2*w/2, dim] of x [B, 36, f, h, w]."""
    batch, channels, frames, height, width = x.shape
    x = x.view(batch, channels, frames, height // 2, 2, width // 2, 2).permute(0, 2, 3, 5, 1, 4, 6)
    weight, bias = weights["patch_embedding.weight"].flatten(1), weights["patch_embedding.bias"]
    return F.linear(x.reshape(batch, frames * height * width // 4, channels * 4), weight.to(x.dtype), bias.to(x.dtype))


def norm(x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def chunks(frames: int, chunk: int, window: int | None = None, sink: int = 0, half: int = 0) -> Attends:
    """Return the spans of clean frames followed by as many noisy ones; a chunk attends to itself and to clean ones
    before.

    `half`: the first frame after a gap, from which on only the sink is seen of the earlier ones."""
    found: list[tuple[Span, tuple[Span, ...]]] = []
    for noisy in (0, frames):
        for first in range(0, frames, chunk):
            end = min(first + chunk, frames)
            start = 0 if window is None else max(min(sink, first), end - (window - sink))
            start = max(start, half) if half and first >= half else start
            before = [(0, min(sink, start)), (start, first)] if start else [(0, first)]
            own = first + noisy, end + noisy
            found.append((own, (*(span for span in before if span[0] < span[1]), own)))
    return tuple(found)


def attended_to(q: Tensor, k: Tensor, v: Tensor, attends: Attends, per_frame: int) -> Tensor:
    """Return the attention of q to k and v [B, heads, tokens, channels]."""
    mask = None if len(attends) == 1 else mask_of(attends, per_frame, q.device)
    return F.scaled_dot_product_attention(q, k, v, mask)


@cache
def mask_of(attends: Attends, per_frame: int, device: torch.device) -> Tensor:
    """Return bool [tokens, tokens]: whether a token attends to another. Cached, because CUDA graphs read it."""
    frames = attends[-1][0][1]
    mask = torch.zeros(frames, frames, dtype=torch.bool)
    for (first, end), seen in attends:
        for start, stop in seen:
            mask[first:end, start:stop] = True
    return mask.repeat_interleave(per_frame, 0).repeat_interleave(per_frame, 1).to(device)


def projected(
    weights: Weights, x: Tensor, e0: Tensor, rope: tuple[Tensor, Tensor], heads: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [B, heads, tokens, channels] from the residual stream x [B, frames, n, dim]."""
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
    """Return the residual stream x [B, frames, n, dim] after a block. `attended`: its self-attention's result.

    `e0`: the modulation [B, frames, 6, dim]. `prompts`: the text [B, g, words, dim], each for a g-th of the frames, and
    its logits' bias. `camera`: [B, frames of a copy, n, dim]."""
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
    """Return the velocity of each chunk of `noisy` [B, 36, f, h, w] after the chunks of `clean`.

    `timestep`: [B, f]. `context`: [B, g, n, text_dim], each for a g-th of the frames. `later`: frames between the
    halves."""
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
