"""What a forward needs on the device beside the stored weights, worked out from shapes alone."""

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
    """Tokens of a latent of that many frames, rows and columns."""
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
    """Peak bytes of a forward over the stored weights, for a latent of `frames`, `height` and `width` latent cells,
    whose tokens attend to `keys` tokens (None: to each other).

    Counted: what exists during all blocks (the residual stream of every row, the camera's tokens, rope tables, prompts,
    modulation), and the largest stage with the weights that it decodes. Weights stored in `dtype` need no decoding: for
    them the result is too high by 0.3 GB at most. Not counted: inputs and output, the camera cache, GEMM workspaces.
    All rows are taken to have the same camera. Processes share the tokens equally, and this is one's peak. With an
    arithmetic of 8 bits a weight is decoded to a byte a value. Attention in 8 bits is counted as that of a kernel that
    takes q, k and v as they are. Where it takes them in 8 bits it holds less, and the sums of all rows wait (see
    residual.py), which is counted too."""
    dtype, arithmetic, processes = precision.dtype, precision.arithmetic, precision.processes
    whole, size = token_count(frames, height, width), dtype.itemsize
    tokens = -(-whole // processes)
    camera = camera and config.control is not None
    row = tokens * config.dim * size
    modulation = 14 * residual_dtype(dtype).itemsize  # 7 vectors of the step, 7 of the running block
    prompts = batch * config.dim * (config.text_len * size + modulation)
    rope = whole * config.head_dim * residual_dtype(dtype).itemsize
    eight_bit = precision.attention == "8bit"
    shared = prompts + rope + camera * row + 8 * whole * eight_bit  # the places of values that lie across
    residual = batch * tokens * config.dim * residual_dtype(dtype).itemsize
    time = 6 * config.dim**2 * (size + residual_dtype(dtype).itemsize)  # its projection's weight, decoded and in fp32
    waiting = 1 + (batch > 1 and eight_bit)  # rows whose sums wait, of which a layer takes one
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
    """Bytes of a full CameraCache: every block's scale and shift for one camera, its keys and values for `batch`
    prompts, and a copy of the fp32 camera. The camera's tokens are counted in `activation_bytes`."""
    if config.control is None:
        return 0
    tokens = token_count(frames, height, width)
    pairs = config.num_layers * 2 * (tokens + batch * config.text_len) * config.dim * dtype.itemsize
    return pairs + tokens * 4 * config.control_channels * 4


def decoded_bytes(config: ModelConfig, dtype: torch.dtype, arithmetic: Arithmetic = "auto") -> int:
    """Bytes of the weights of a block's `main_layers`, decoded."""
    dim, ffn_dim, size = config.dim, config.ffn_dim, dtype.itemsize
    own = 6 * _weight(dim, dim, size, arithmetic)
    return own + _weight(ffn_dim, dim, size, arithmetic) + _weight(dim, ffn_dim, size, arithmetic)


def _self_attention(config: ModelConfig, tokens: int, keys: int, precision: Precision) -> int:
    """Four weights, and what is larger: q, k and v while they are made; or with them the result, one for each part if
    the keys are attended to in parts (see attention.py), and the softmax's fp32 sums. In 8 bits q, k, v and the results
    exist beside q, k and v, and the result is then written over q."""
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
    """Two weights; input and output of the first layer, or the second layer's, whose input is in 8 bits beside it."""
    dim, ffn_dim, tokens = config.dim, config.ffn_dim, min(tokens, FFN_TOKENS)
    weights = _weight(dim, ffn_dim, size, arithmetic) + _weight(ffn_dim, dim, size, arithmetic)
    if arithmetic not in DTYPES:
        return tokens * (dim + ffn_dim) * size + weights
    return tokens * ffn_dim * size + max(tokens * (ffn_dim + 4), _product(dim, tokens, ffn_dim, arithmetic)) + weights


def _camera_stage(config: ModelConfig, tokens: int, size: int, arithmetic: Arithmetic) -> int:
    """Hidden, scale and shift of a part; four weights."""
    tokens = min(tokens, CAMERA_TOKENS)
    row = tokens * config.dim * size
    made = 2 * row + max(row, _product(config.dim, tokens, config.dim, arithmetic))
    return made + 4 * _weight(config.dim, config.dim, size, arithmetic)


def _product(dim: int, tokens: int, out_dim: int, arithmetic: Arithmetic) -> int:
    """What a product in 8 bits holds beside its result: its input, which has a scale for each token, and int32 sums of
    a part of the tokens."""
    if arithmetic not in DTYPES:
        return 0
    return tokens * (dim + 4) + (arithmetic == "int8") * min(tokens, PRODUCT_TOKENS) * out_dim * 4


def _weight(rows: int, width: int, size: int, arithmetic: Arithmetic) -> int:
    """Bytes of a decoded weight; in 8 bits each row has a scale."""
    return rows * (width + 4) if arithmetic in DTYPES else rows * width * size


def _camera_embedding(config: ModelConfig, tokens: int, size: int) -> int:
    """The camera in the compute dtype and folded to tokens; then its embedding, three parts of it, and the weights."""
    channels = config.control_channels
    folded = tokens * 4 * channels * size
    weights = (4 * channels + 2 * config.dim) * config.dim * size
    parts = 3 * min(tokens, EMBEDDING_TOKENS)
    return folded + max(folded, (tokens + parts) * config.dim * size + weights)
