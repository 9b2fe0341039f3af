"""What a forward needs on the device beside the stored weights, worked out from shapes alone."""

import torch

from .attention import LONG, TILE
from .block import CAMERA_TOKENS, FFN_TOKENS
from .config import ModelConfig
from .dit import EMBEDDING_TOKENS
from .pointwise import wide


def token_count(frames: int, height: int, width: int) -> int:
    """Tokens of a latent of that many frames, rows and columns."""
    return frames * (height // 2) * (width // 2)


def activation_bytes(
    config: ModelConfig,
    frames: int,
    height: int,
    width: int,
    *,
    batch: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    camera: bool = True,
) -> int:
    """Peak bytes of a forward over the stored weights, for a latent of `frames`, `height` and `width` latent cells.

    Counted: the residual stream of every row, the camera's tokens, rope tables, prompts and modulation, which last
    through all blocks; over them the hungriest stage, with the weights that it decodes (weights stored in `dtype` need
    no decoding: then this is too high by 0.3 GB at most). Not counted: inputs and output, the camera cache, GEMM
    workspaces. One camera is taken to serve all rows."""
    tokens, size = token_count(frames, height, width), dtype.itemsize
    camera = camera and config.control is not None
    row = tokens * config.dim * size
    modulation = 14 * wide(dtype).itemsize  # of the step (7 vectors) and of the block at hand
    prompts = batch * config.dim * (config.text_len * size + modulation)
    rope = tokens * config.head_dim * wide(dtype).itemsize
    lasting = prompts + rope + camera * row
    residual = batch * tokens * config.dim * wide(dtype).itemsize
    embedding = max(_time_stage(config, dtype), camera * _camera_embedding(config, tokens, size)) + prompts
    blocks = max(
        _self_attention(config, tokens, size),
        row + config.in_dim * tokens * 4 * size,
        2 * row + 2 * config.dim**2 * size + 2 * prompts,
        _feed_forward(config, tokens, size),
        camera * _camera_stage(config, tokens, size),
    )
    return max(embedding, residual + lasting + blocks)


def camera_cache_bytes(
    config: ModelConfig, frames: int, height: int, width: int, *, batch: int = 2, dtype: torch.dtype = torch.bfloat16
) -> int:
    """Bytes of a full CameraCache: scale and shift of every block for one camera, and the fp32 camera itself; keys and
    values of `batch` prompts.

    The camera's tokens, held as well, are part of `activation_bytes`."""
    if config.control is None:
        return 0
    tokens = token_count(frames, height, width)
    pairs = config.num_layers * 2 * (tokens + batch * config.text_len) * config.dim * dtype.itemsize
    return pairs + tokens * 4 * config.control_channels * 4


def _self_attention(config: ModelConfig, tokens: int, size: int) -> int:
    """Normed tokens, q, k, v; later q, k, v and the result, and that of the last keys where those are attended to
    apart (see attention.py); the softmax's fp32 sums; four weights."""
    parts = 2 if tokens >= LONG and tokens % TILE else 1
    sums = parts * tokens * config.num_heads * 4
    return (3 + parts) * tokens * config.dim * size + sums + 4 * config.dim**2 * size


def _feed_forward(config: ModelConfig, tokens: int, size: int) -> int:
    width = config.dim + config.ffn_dim
    return min(tokens, FFN_TOKENS) * width * size + 2 * config.dim * config.ffn_dim * size


def _camera_stage(config: ModelConfig, tokens: int, size: int) -> int:
    """Hidden, scale and shift of a stretch; four weights."""
    return (3 * min(tokens, CAMERA_TOKENS) + 4 * config.dim) * config.dim * size


def _camera_embedding(config: ModelConfig, tokens: int, size: int) -> int:
    """The camera in the compute dtype and folded to tokens; then its embedding, three stretches and the weights."""
    channels = config.control_channels or 0
    folded = tokens * 4 * channels * size
    weights = (4 * channels + 2 * config.dim) * config.dim * size
    stretches = 3 * min(tokens, EMBEDDING_TOKENS)
    return folded + max(folded, (tokens + stretches) * config.dim * size + weights)


def _time_stage(config: ModelConfig, dtype: torch.dtype) -> int:
    """The time projection, decoded, then in fp32."""
    return 6 * config.dim**2 * (dtype.itemsize + wide(dtype).itemsize)
