"""Layers of the denoiser around its blocks, as functions of weights by their official names."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ...model.config import ModelConfig
from ...model.layers.head import sinusoid
from .parameters import Weights

EVEN = 8  # 16 bytes of bf16: rows aligned to this are read fastest by a GPU


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
    """Return prompts [..., n + a few, dim] of context [..., n, text_dim], and the bias on their logits.

    The last tokens stand for all padding up to text_len: log(number) on their logits gives them its weight."""
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
