"""Estimates of the GPU memory that a forward needs besides the stored weights, computed from shapes alone."""

import torch

from ..options import Arithmetic, Precision
from .attention.fp8_cudnn import padding
from .attention.splitting import MIN_KEYS_TO_SPLIT_TAIL, TILE, key_parts
from .config import ModelConfig
from .layers.block import CAMERA_TOKENS, FFN_TOKENS
from .layers.head import EMBEDDING_TOKENS
from .ops.linear_8bit import DTYPES
from .ops.pointwise import residual_dtype
from .ops.products_8bit import PRODUCT_TOKENS

BF16 = Precision(torch.bfloat16)


def token_count(frames: int, height: int, width: int) -> int:
    """Return the number of tokens of a latent with this size in frames, rows and columns. A token is 2x2 latent
    pixels."""
    return frames * (height // 2) * (width // 2)


def activation_bytes(
    config: ModelConfig,
    frames: int,
    height: int,
    width: int,
    precision: Precision = BF16,
    *,
    batch: int = 2,
    camera: bool = True,
    keys: int | None = None,
) -> int:
    """Return the peak GPU memory of a forward in bytes, besides stored weights, inputs, output, camera cache and GEMM
    workspaces.

    batch: the number of prompts, which share the camera.
    keys: the number of tokens to which each token attends; None means all tokens of the latent.
    """
    dtype, arithmetic, processes = precision.dtype, precision.arithmetic, precision.processes
    whole, size = token_count(frames, height, width), dtype.itemsize
    tokens = -(-whole // processes)
    camera = camera and config.control is not None
    row = tokens * config.dim * size
    modulation = 14 * residual_dtype(dtype).itemsize  # 7 vectors of the step, 7 of the running block
    prompts = batch * config.dim * (config.text_len * size + modulation)
    rope = whole * config.head_dim * residual_dtype(dtype).itemsize
    eight_bit = precision.attention == "8bit"
    shared = prompts + rope + camera * row + 8 * whole * eight_bit  # eight_bit: the places of transposed values
    residual = batch * tokens * config.dim * residual_dtype(dtype).itemsize
    time = 6 * config.dim**2 * (size + residual_dtype(dtype).itemsize)  # the projection's weight, decoded and in fp32
    waiting = 1 + (batch > 1 and eight_bit)  # batch elements with deferred additions; a layer holds one of them
    embedding = max(time, camera * _camera_embedding(config, tokens, size)) + prompts
    blocks = max(
        _self_attention(config, tokens, keys or whole, precision)
        + (4 * row if processes > 1 else 0),  # q, k and v as they are sent; y
        row + config.in_dim * tokens * 4 * size,
        (1 + waiting + 2 * camera) * row + 2 * config.dim**2 * size + 2 * prompts,  # scale and shift wait too
        _feed_forward(config, tokens, size, arithmetic) + (waiting - 1) * row,
        (arithmetic == "int8") * (row + 4 * config.dim * config.ffn_dim),  # one weight decoded, to rotate it
        camera * (_camera_stage(config, tokens, size, arithmetic) + waiting * row),
    )
    return max(embedding, residual + shared + blocks)


def camera_cache_bytes(
    config: ModelConfig, frames: int, height: int, width: int, *, batch: int = 2, dtype: torch.dtype = torch.bfloat16
) -> int:
    """Return the size in bytes of a CameraCache with all blocks' tensors, for one camera and `batch` prompts; 0 without
    camera layers."""
    if config.control is None:
        return 0
    tokens = token_count(frames, height, width)
    pairs = config.num_layers * 2 * (tokens + batch * config.text_len) * config.dim * dtype.itemsize
    return pairs + tokens * 4 * config.control_channels * 4


def decoded_bytes(config: ModelConfig, dtype: torch.dtype, arithmetic: Arithmetic = "auto") -> int:
    """Return the bytes of one block's `main_layers` weights, decoded to `dtype`. With 8-bit `arithmetic`, they are in 8
    bits with a scale for each row."""
    dim, ffn_dim, size = config.dim, config.ffn_dim, dtype.itemsize
    own = 6 * _weight(dim, dim, size, arithmetic)
    return own + _weight(ffn_dim, dim, size, arithmetic) + _weight(dim, ffn_dim, size, arithmetic)


def _self_attention(config: ModelConfig, tokens: int, keys: int, precision: Precision) -> int:
    """Return the peak bytes of self-attention: the weights, plus either the projection of q, k and v or the attention
    after it, whichever takes more."""
    arithmetic, size, dim = precision.arithmetic, precision.dtype.itemsize, config.dim
    eight_bit, row = precision.attention == "8bit", tokens * dim * size
    heads = config.num_heads // precision.processes
    results = key_parts(tokens * precision.processes, keys, heads)
    results += results > 1 or (not eight_bit and keys >= MIN_KEYS_TO_SPLIT_TAIL and keys % TILE > 0)
    sums = results * tokens * config.num_heads * 4
    made = 3 * row + _product(dim, tokens, dim, arithmetic)
    attended = (3 + results) * row + sums
    if eight_bit:
        sums *= results > 1
        attended = 3 * row + ((3 + results) * tokens + 2 * padding(tokens) + 16) * dim + sums  # 16: the means
    return max(attended, made) + 4 * _weight(dim, dim, size, arithmetic)


def _feed_forward(config: ModelConfig, tokens: int, size: int, arithmetic: Arithmetic) -> int:
    dim, ffn_dim, tokens = config.dim, config.ffn_dim, min(tokens, FFN_TOKENS)
    weights = _weight(dim, ffn_dim, size, arithmetic) + _weight(ffn_dim, dim, size, arithmetic)
    if arithmetic not in DTYPES:
        return tokens * (dim + ffn_dim) * size + weights
    return tokens * ffn_dim * size + max(tokens * (ffn_dim + 4), _product(dim, tokens, ffn_dim, arithmetic)) + weights


def _camera_stage(config: ModelConfig, tokens: int, size: int, arithmetic: Arithmetic) -> int:
    tokens = min(tokens, CAMERA_TOKENS)
    row = tokens * config.dim * size
    made = 2 * row + max(row, _product(config.dim, tokens, config.dim, arithmetic))
    return made + 4 * _weight(config.dim, config.dim, size, arithmetic)


def _product(dim: int, tokens: int, out_dim: int, arithmetic: Arithmetic) -> int:
    """Return the scratch bytes of an 8-bit matrix product: the quantized input with scales, and for int8 the int32
    sums. Return 0 if `arithmetic` is not an 8-bit format."""
    if arithmetic not in DTYPES:
        return 0
    return tokens * (dim + 4) + (arithmetic == "int8") * min(tokens, PRODUCT_TOKENS) * out_dim * 4


def _weight(rows: int, width: int, size: int, arithmetic: Arithmetic) -> int:
    return rows * (width + 4) if arithmetic in DTYPES else rows * width * size


def _camera_embedding(config: ModelConfig, tokens: int, size: int) -> int:
    channels = config.control_channels
    folded = tokens * 4 * channels * size
    weights = (4 * channels + 2 * config.dim) * config.dim * size
    parts = 3 * min(tokens, EMBEDDING_TOKENS)
    return folded + max(folded, (tokens + parts) * config.dim * size + weights)
