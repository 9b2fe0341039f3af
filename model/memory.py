"""Device memory that a forward needs besides the stored weights, computed from shapes alone."""

import torch

from ..options import Arithmetic, Precision
from .attention.exact import MIN_KEYS_TO_SPLIT, TILE, key_parts
from .attention.fp8_cudnn import padding
from .config import ModelConfig
from .dit import EMBEDDING_TOKENS
from .layers.block import CAMERA_TOKENS, FFN_TOKENS
from .ops.linear_8bit import DTYPES
from .ops.pointwise import residual_dtype
from .ops.products_8bit import PRODUCT_TOKENS

BF16 = Precision(torch.bfloat16)


def token_count(frames: int, height: int, width: int) -> int:
    """Return the number of tokens of a latent with these numbers of frames, rows and columns of cells."""
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
    """Return the peak bytes of a forward, without the stored weights.

    The latent has `frames`, `height` and `width` latent cells, and its tokens attend to `keys` tokens (None: to each
    other). Included are the tensors that exist during all blocks: the residual stream of every batch element, the
    camera's tokens, RoPE tables, prompts and modulation. Added is the largest stage with the weights that it decodes.
    Weights stored in `dtype` need no decoding, so for them the result is at most 0.3 GB too high. Excluded are inputs
    and output, the camera cache and GEMM workspaces. All batch elements are assumed to have the same camera.

    Processes share the tokens equally, and the result is for one process. With an 8-bit arithmetic a weight is decoded
    to one byte a value. 8-bit attention is counted for a kernel that takes q, k and v in the compute dtype. A kernel
    that takes them in 8 bits needs less, but then the additions of all batch elements are deferred (see residual.py);
    this is included."""
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
        camera * (_camera_stage(config, tokens, size, arithmetic) + waiting * row),
    )
    return max(embedding, residual + shared + blocks)


def camera_cache_bytes(
    config: ModelConfig, frames: int, height: int, width: int, *, batch: int = 2, dtype: torch.dtype = torch.bfloat16
) -> int:
    """Return the bytes of a full CameraCache.

    Included are every block's scale and shift for one camera, its keys and values for `batch` prompts, and a copy of
    the fp32 camera. The camera's tokens are counted in `activation_bytes`."""
    if config.control is None:
        return 0
    tokens = token_count(frames, height, width)
    pairs = config.num_layers * 2 * (tokens + batch * config.text_len) * config.dim * dtype.itemsize
    return pairs + tokens * 4 * config.control_channels * 4


def decoded_bytes(config: ModelConfig, dtype: torch.dtype, arithmetic: Arithmetic = "auto") -> int:
    """Return the bytes of the decoded weights of a block's `main_layers`."""
    dim, ffn_dim, size = config.dim, config.ffn_dim, dtype.itemsize
    own = 6 * _weight(dim, dim, size, arithmetic)
    return own + _weight(ffn_dim, dim, size, arithmetic) + _weight(dim, ffn_dim, size, arithmetic)


def _self_attention(config: ModelConfig, tokens: int, keys: int, precision: Precision) -> int:
    """Return the bytes of a self-attention: four weights and the larger of two stages.

    The first stage computes q, k and v. The second holds them with the result (one for each part if the keys are split,
    see attention/exact.py) and the softmax's fp32 sums. In 8 bits, quantized q, k, v and the results exist next to q, k
    and v; the result is then written over q."""
    arithmetic, size, dim = precision.arithmetic, precision.dtype.itemsize, config.dim
    eight_bit, row = precision.attention == "8bit", tokens * dim * size
    heads = config.num_heads // precision.processes
    results = key_parts(tokens * precision.processes, keys, heads)
    results += results > 1 or (not eight_bit and keys >= MIN_KEYS_TO_SPLIT and keys % TILE > 0)
    sums = results * tokens * config.num_heads * 4
    made = 3 * row + _product(dim, tokens, dim, arithmetic)
    attended = (3 + results) * row + sums
    if eight_bit:
        sums *= results > 1
        attended = 3 * row + ((3 + results) * tokens + 2 * padding(tokens) + 16) * dim + sums  # 16: the means
    return max(attended, made) + 4 * _weight(dim, dim, size, arithmetic)


def _feed_forward(config: ModelConfig, tokens: int, size: int, arithmetic: Arithmetic) -> int:
    """Return the peak bytes of a feed-forward: its two weights, and the input and output of one of its layers.

    In 8 bits the input of the second layer exists in both dtypes."""
    dim, ffn_dim, tokens = config.dim, config.ffn_dim, min(tokens, FFN_TOKENS)
    weights = _weight(dim, ffn_dim, size, arithmetic) + _weight(ffn_dim, dim, size, arithmetic)
    if arithmetic not in DTYPES:
        return tokens * (dim + ffn_dim) * size + weights
    return tokens * ffn_dim * size + max(tokens * (ffn_dim + 4), _product(dim, tokens, ffn_dim, arithmetic)) + weights


def _camera_stage(config: ModelConfig, tokens: int, size: int, arithmetic: Arithmetic) -> int:
    """Return the peak bytes of the camera layers: four weights, and hidden state, scale and shift for the tokens that
    are processed at once."""
    tokens = min(tokens, CAMERA_TOKENS)
    row = tokens * config.dim * size
    made = 2 * row + max(row, _product(config.dim, tokens, config.dim, arithmetic))
    return made + 4 * _weight(config.dim, config.dim, size, arithmetic)


def _product(dim: int, tokens: int, out_dim: int, arithmetic: Arithmetic) -> int:
    """Return the bytes of an 8-bit product besides its result.

    They are its quantized input with a scale for each token, and in int8 the int32 sums of a part of the tokens."""
    if arithmetic not in DTYPES:
        return 0
    return tokens * (dim + 4) + (arithmetic == "int8") * min(tokens, PRODUCT_TOKENS) * out_dim * 4


def _weight(rows: int, width: int, size: int, arithmetic: Arithmetic) -> int:
    """Return the bytes of a decoded weight; in 8 bits each row has a scale."""
    return rows * (width + 4) if arithmetic in DTYPES else rows * width * size


def _camera_embedding(config: ModelConfig, tokens: int, size: int) -> int:
    """Return the peak bytes of embedding the camera: the larger of two stages.

    The first stage holds the camera in the compute dtype and its copy folded to tokens. The second holds the folded
    copy, the embedded tokens, three temporary parts of them, and the weights."""
    channels = config.control_channels
    folded = tokens * 4 * channels * size
    weights = (4 * channels + 2 * config.dim) * config.dim * size
    parts = 3 * min(tokens, EMBEDDING_TOKENS)
    return folded + max(folded, (tokens + parts) * config.dim * size + weights)
