"""The experts' forward as functions that can be trained: the same numbers as `model.dit`, which is for inference only.

Weights go by their official names. As in the engine, matrix products and attention run in `dtype`; the residual
stream, norms, modulation, time embedding and head are float32. A causal model's forward is here too, over a whole
video at once."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from ...model.config import ModelConfig
from ...model.dit import sinusoid
from ...model.layers.rope import rope_table
from ...options import CHUNK

EVEN = 8
"""Elements of bf16 that are 16 bytes: rows of so many begin where a GPU reads fastest."""

Weights = Mapping[str, Tensor]
Block = Callable[..., Tensor]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x through the layer `name`, in x's dtype."""
    return F.linear(x, weights[f"{name}.weight"].to(x.dtype), weights[f"{name}.bias"].to(x.dtype))


def block(
    weights: Weights,
    x: Tensor,
    e0: Tensor,
    text: Tensor,
    text_bias: Tensor,
    camera: Tensor,
    rope: tuple[Tensor, Tensor],
    heads: int,
    eps: float,
    mask: Tensor | None = None,
) -> Tensor:
    """The residual stream x [B, tokens, dim] after a block whose `weights` go by their names within it.

    e0 [B, parts, 6, dim]: the modulation of so many equal parts of the tokens. text [B, n, dim], and text_bias [n],
    added to its attention logits; camera [B, tokens, dim]; mask [tokens, tokens]: who attends to whom (None: all)."""
    shift, scale, gate, shift_2, scale_2, gate_2 = (
        part.repeat_interleave(x.shape[1] // part.shape[1], 1) for part in (weights["modulation"] + e0).unbind(2)
    )
    y = (norm(x, eps) * (1 + scale) + shift).to(text.dtype)
    x = x + linear(weights, "self_attn.o", _self_attention(weights, y, rope, heads, eps, mask)).float() * gate
    hidden = camera + linear(weights, "cam_injector_layer2", F.silu(linear(weights, "cam_injector_layer1", camera)))
    x = x * (1 + linear(weights, "cam_scale_layer", hidden).float())
    x = x + linear(weights, "cam_shift_layer", hidden).float()
    y = (norm(x, eps) * weights["norm3.weight"] + weights["norm3.bias"]).to(text.dtype)
    x = x + linear(weights, "cross_attn.o", _cross_attention(weights, y, text, text_bias, heads, eps)).float()
    y = (norm(x, eps) * (1 + scale_2) + shift_2).to(text.dtype)
    return x + linear(weights, "ffn.2", F.gelu(linear(weights, "ffn.0", y), approximate="tanh")).float() * gate_2


def velocity(
    weights: Weights,
    config: ModelConfig,
    x: Tensor,
    timestep: Tensor,
    context: Tensor,
    camera: Tensor,
    dtype: torch.dtype = torch.float32,
    run_block: Block = block,
) -> Tensor:
    """Velocity float32 [B, 16, f, h, w] of x [B, 36, f, h, w], as the engine's model gives it.

    timestep [B]; context [B, n, text_dim], padded with zeros, n < text_len; camera [B, tokens, 1536], the Pluecker map
    in patches (`camera_map`)."""
    grid = x.shape[2], x.shape[3] // 2, x.shape[4] // 2
    rope = rope_table(grid, config.head_dim, x.device)
    e, e0 = time_embedding(weights, config, timestep[:, None])
    text, text_bias = prompt_tokens(weights, config, context.to(dtype))
    seen, tokens = camera_tokens(weights, camera.to(dtype)), patches(weights, x.to(dtype)).float()
    for index in range(config.num_layers):
        own = of_block(weights, index)
        tokens = run_block(own, tokens, e0, text, text_bias, seen, rope, config.num_heads, config.eps)
    return velocity_of(weights, config, tokens, e, grid)


def causal_velocity(
    weights: Weights,
    config: ModelConfig,
    clean: Tensor,
    noisy: Tensor,
    timestep: Tensor,
    context: Tensor,
    camera: Tensor,
    dtype: torch.dtype = torch.float32,
    run_block: Block = block,
) -> Tensor:
    """Velocity float32 [B, 16, n, h, w] of each chunk of three latent frames of `noisy` [B, 36, n, h, w], after the
    chunks of `clean` [B, 36, m, h, w] before it, as a rollout of the engine gives it.

    `clean` begins with the video, `noisy` ends with the latent frames of `camera` [B, tokens, 1536]. Both go through
    the model at once, `clean` at timestep 0: a clean chunk attends to itself and the clean ones before it, a noisy
    chunk to itself and those. timestep [B, n]. The other arguments are those of `velocity`."""
    past, now, *size = clean.shape[2], noisy.shape[2], noisy.shape[3] // 2, noisy.shape[4] // 2
    per_frame = size[0] * size[1]
    frames = camera.shape[1] // per_frame
    every = torch.arange(frames, device=noisy.device)
    places = torch.cat([every[:past], every[frames - now :]])
    rows = (places[:, None] * per_frame + torch.arange(per_frame, device=noisy.device)).flatten()
    cos, sin = rope_table((frames, *size), config.head_dim, noisy.device)
    e, e0 = time_embedding(weights, config, torch.cat([timestep.new_zeros(len(timestep), past), timestep], 1))
    text, text_bias = prompt_tokens(weights, config, context.to(dtype))
    seen = camera_tokens(weights, camera.to(dtype))[:, rows]
    tokens = torch.cat([patches(weights, part.to(dtype)).float() for part in (clean, noisy)], 1)
    mask = chunk_mask(places // CHUNK, past).repeat_interleave(per_frame, 0).repeat_interleave(per_frame, 1)
    rope = cos[rows], sin[rows]
    for index in range(config.num_layers):
        own = of_block(weights, index)
        tokens = run_block(own, tokens, e0, text, text_bias, seen, rope, config.num_heads, config.eps, mask)
    return velocity_of(weights, config, tokens[:, past * per_frame :], e[:, past:], (now, *size))


def chunk_mask(chunks: Tensor, past: int) -> Tensor:
    """bool [f, f]: whether a latent frame attends to another. chunks [f]: the chunk of each clean frame, of which there
    are `past`, then of each noisy one."""
    clean = torch.arange(len(chunks), device=chunks.device) < past
    before, same = chunks[:, None] > chunks, chunks[:, None] == chunks
    return torch.where(clean, before | (same & clean[:, None]), same & ~clean[:, None])


def time_embedding(weights: Weights, config: ModelConfig, timestep: Tensor) -> tuple[Tensor, Tensor]:
    """Time embedding e [B, parts, dim] and modulation [B, parts, 6, dim] of timestep [B, parts]."""
    e = sinusoid(timestep.flatten(), config.freq_dim).float().unflatten(0, timestep.shape)
    e = linear(weights, "time_embedding.2", F.silu(linear(weights, "time_embedding.0", e)))
    return e, linear(weights, "time_projection.1", F.silu(e)).unflatten(2, (6, -1))


def camera_tokens(weights: Weights, camera: Tensor) -> Tensor:
    seen = linear(weights, "patch_embedding_wancamctrl", camera)
    hidden = F.silu(linear(weights, "c2ws_hidden_states_layer1", seen))
    return seen + linear(weights, "c2ws_hidden_states_layer2", hidden)


def velocity_of(weights: Weights, config: ModelConfig, tokens: Tensor, e: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Velocity [B, 16, f, h, w] of tokens [B, n, dim] with the time embedding e [B, parts, dim]."""
    frames, height, width = grid
    shift, scale = (
        part.repeat_interleave(tokens.shape[1] // part.shape[1], 1)
        for part in (weights["head.modulation"] + e[:, :, None]).unbind(2)
    )
    cells = linear(weights, "head.head", norm(tokens, config.eps) * (1 + scale) + shift)
    cells = cells.view(len(tokens), frames, height, width, 2, 2, -1)
    return cells.permute(0, 6, 1, 2, 4, 3, 5).reshape(len(tokens), -1, frames, 2 * height, 2 * width)


def of_block(weights: Weights, index: int) -> dict[str, Tensor]:
    """The weights of a block by their names within it."""
    start = f"blocks.{index}."
    return {name[len(start) :]: weight for name, weight in weights.items() if name.startswith(start)}


def _self_attention(
    weights: Weights, y: Tensor, rope: tuple[Tensor, Tensor], heads: int, eps: float, mask: Tensor | None
) -> Tensor:
    q = rotated(rms(linear(weights, "self_attn.q", y), weights["self_attn.norm_q.weight"], eps), rope).to(y.dtype)
    k = rotated(rms(linear(weights, "self_attn.k", y), weights["self_attn.norm_k.weight"], eps), rope).to(y.dtype)
    v = linear(weights, "self_attn.v", y)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


def _cross_attention(weights: Weights, y: Tensor, text: Tensor, bias: Tensor, heads: int, eps: float) -> Tensor:
    q = rms(linear(weights, "cross_attn.q", y), weights["cross_attn.norm_q.weight"], eps).to(y.dtype)
    k = rms(linear(weights, "cross_attn.k", text), weights["cross_attn.norm_k.weight"], eps).to(y.dtype)
    v = linear(weights, "cross_attn.v", text)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    logits = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    return (torch.softmax(logits.float() + bias, -1).to(v.dtype) @ v).transpose(1, 2).flatten(2)


def prompt_tokens(weights: Weights, config: ModelConfig, context: Tensor) -> tuple[Tensor, Tensor]:
    """Prompts [B, n + a few, dim] of context [B, n, text_dim], or several of each, [B, g, ...].

    The last tokens stand for all that pad a prompt to text_len: those are alike, so a few of them with the logarithm of
    their number added to their logits take their share. There are so many in all that a GPU's matrix products take
    them as they are."""
    more = EVEN - context.shape[-2] % EVEN
    padded = F.pad(context, (0, 0, 0, more))
    text = linear(weights, "text_embedding.2", F.gelu(linear(weights, "text_embedding.0", padded), approximate="tanh"))
    bias = torch.zeros(padded.shape[-2], device=context.device)
    bias[-more:] = math.log((config.text_len - context.shape[-2]) / more)
    return text, bias


def patches(weights: Weights, x: Tensor) -> Tensor:
    """Tokens [B, f*h/2*w/2, dim] of x [B, 36, f, h, w]."""
    batch, channels, frames, height, width = x.shape
    x = x.view(batch, channels, frames, height // 2, 2, width // 2, 2).permute(0, 2, 3, 5, 1, 4, 6)
    weight, bias = weights["patch_embedding.weight"].flatten(1), weights["patch_embedding.bias"]
    return F.linear(x.reshape(batch, frames * height * width // 4, channels * 4), weight.to(x.dtype), bias.to(x.dtype))


def norm(x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """float32, whatever x is."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, tokens, dim] with every head's pairs turned by the angles of rope [tokens, head_dim / 2]."""
    cos, sin = (part[:, None] for part in rope)
    even, odd = x.unflatten(-1, (-1, cos.shape[-1], 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(2)
