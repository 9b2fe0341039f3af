"""The experts' forward as functions that can be trained: the same numbers as `model.dit`, which is for inference only.

Weights go by their official names. As in the engine, matrix products and attention run in `dtype`; the residual
stream, norms, modulation, time embedding and head are float32. A causal model's forward is here too, over a whole
video at once."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.config import ModelConfig
from ..model.dit import sinusoid
from ..model.rope import rope_table

Weights = Mapping[str, Tensor]
Block = Callable[..., Tensor]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x through the layer `name`, in x's dtype."""
    return F.linear(x, weights[f"{name}.weight"].to(x.dtype), weights[f"{name}.bias"].to(x.dtype))


def block(
    weights: Weights, x: Tensor, e0: Tensor, text: Tensor, text_bias: Tensor, camera: Tensor,
    rope: tuple[Tensor, Tensor], heads: int, eps: float,
) -> Tensor:
    """The residual stream x [B, tokens, dim] after a block whose `weights` go by their names within it.

    e0 [B, 6, dim]; text [B, n, dim], and text_bias [n], added to its attention logits; camera [B, tokens, dim]."""
    shift, scale, gate, shift_2, scale_2, gate_2 = (weights["modulation"] + e0)[:, :, None].unbind(1)
    y = (_norm(x, eps) * (1 + scale) + shift).to(text.dtype)
    x = x + linear(weights, "self_attn.o", _self_attention(weights, y, rope, heads, eps)).float() * gate
    hidden = camera + linear(weights, "cam_injector_layer2", F.silu(linear(weights, "cam_injector_layer1", camera)))
    x = x * (1 + linear(weights, "cam_scale_layer", hidden).float())
    x = x + linear(weights, "cam_shift_layer", hidden).float()
    y = (_norm(x, eps) * weights["norm3.weight"] + weights["norm3.bias"]).to(text.dtype)
    x = x + linear(weights, "cross_attn.o", _cross_attention(weights, y, text, text_bias, heads, eps)).float()
    y = (_norm(x, eps) * (1 + scale_2) + shift_2).to(text.dtype)
    return x + linear(weights, "ffn.2", F.gelu(linear(weights, "ffn.0", y), approximate="tanh")).float() * gate_2


def velocity(
    weights: Weights, config: ModelConfig, x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor,
    dtype: torch.dtype = torch.float32, run_block: Block = block,
) -> Tensor:
    """Velocity float32 [B, 16, f, h, w] of x [B, 36, f, h, w], as the engine's model gives it.

    timestep [B]; context [B, n, text_dim], padded with zeros, n < text_len; camera [B, tokens, 1536], the Pluecker map
    in patches (`camera_map`)."""
    frames, height, width = x.shape[2], x.shape[3] // 2, x.shape[4] // 2
    rope = rope_table((frames, height, width), config.head_dim, x.device)
    e = sinusoid(timestep, config.freq_dim).float()
    e = linear(weights, "time_embedding.2", F.silu(linear(weights, "time_embedding.0", e)))
    e0 = linear(weights, "time_projection.1", F.silu(e)).unflatten(1, (6, -1))
    text, text_bias = _text(weights, config, context.to(dtype))
    seen = linear(weights, "patch_embedding_wancamctrl", camera.to(dtype))
    hidden = F.silu(linear(weights, "c2ws_hidden_states_layer1", seen))
    seen = seen + linear(weights, "c2ws_hidden_states_layer2", hidden)
    tokens = _patches(weights, x.to(dtype)).float()
    for index in range(config.num_layers):
        own = of_block(weights, index)
        tokens = run_block(own, tokens, e0, text, text_bias, seen, rope, config.num_heads, config.eps)
    shift, scale = (weights["head.modulation"] + e[:, None])[:, :, None].unbind(1)
    cells = linear(weights, "head.head", _norm(tokens, config.eps) * (1 + scale) + shift)
    cells = cells.view(len(x), frames, height, width, 2, 2, -1)
    return cells.permute(0, 6, 1, 2, 4, 3, 5).reshape(len(x), -1, frames, 2 * height, 2 * width)


def of_block(weights: Weights, index: int) -> dict[str, Tensor]:
    """The weights of a block by their names within it."""
    start = f"blocks.{index}."
    return {name[len(start) :]: weight for name, weight in weights.items() if name.startswith(start)}


def _self_attention(weights: Weights, y: Tensor, rope: tuple[Tensor, Tensor], heads: int, eps: float) -> Tensor:
    q = _rotated(_rms(linear(weights, "self_attn.q", y), weights["self_attn.norm_q.weight"], eps), rope).to(y.dtype)
    k = _rotated(_rms(linear(weights, "self_attn.k", y), weights["self_attn.norm_k.weight"], eps), rope).to(y.dtype)
    v = linear(weights, "self_attn.v", y)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _cross_attention(weights: Weights, y: Tensor, text: Tensor, bias: Tensor, heads: int, eps: float) -> Tensor:
    q = _rms(linear(weights, "cross_attn.q", y), weights["cross_attn.norm_q.weight"], eps).to(y.dtype)
    k = _rms(linear(weights, "cross_attn.k", text), weights["cross_attn.norm_k.weight"], eps).to(y.dtype)
    v = linear(weights, "cross_attn.v", text)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    logits = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    return (torch.softmax(logits.float() + bias, -1).to(v.dtype) @ v).transpose(1, 2).flatten(2)


def _text(weights: Weights, config: ModelConfig, context: Tensor) -> tuple[Tensor, Tensor]:
    """Embedded prompts [B, n + 1, dim]. The last token stands for all that pad a prompt to text_len: they are alike, so
    one of them with the logarithm of their number added to its logit takes their share."""
    padded = F.pad(context, (0, 0, 0, 1))
    text = linear(weights, "text_embedding.2", F.gelu(linear(weights, "text_embedding.0", padded), approximate="tanh"))
    bias = torch.zeros(padded.shape[1], device=context.device)
    bias[-1] = math.log(config.text_len - context.shape[1])
    return text, bias


def _patches(weights: Weights, x: Tensor) -> Tensor:
    """Tokens [B, f*h/2*w/2, dim] of x [B, 36, f, h, w]."""
    batch, channels, frames, height, width = x.shape
    x = x.view(batch, channels, frames, height // 2, 2, width // 2, 2).permute(0, 2, 3, 5, 1, 4, 6)
    weight, bias = weights["patch_embedding.weight"].flatten(1), weights["patch_embedding.bias"]
    return F.linear(x.reshape(batch, -1, channels * 4), weight.to(x.dtype), bias.to(x.dtype))


def _norm(x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """float32, whatever x is."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rotated(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, tokens, dim] with every head's pairs turned by the angles of rope [tokens, head_dim / 2]."""
    cos, sin = (part[:, None] for part in rope)
    even, odd = x.unflatten(-1, (-1, cos.shape[-1], 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(2)
