"""Decoding and recoding of weights by one kernel if the GPU has one, else in plain torch."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from ...options import T
from ..ops.matrix_8bit import EightBit
from ..ops.pointwise import encode_8bit, or_else
from . import codec, ggml
from .codec import Scales, decode


def decode_blocks(packed: Tensor, kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the result of `ggml.decode`, computed by one kernel if possible."""
    compiling = torch.compiler.is_compiling()
    run = ggml.decode if compiling else fastest("decode_blocks", ggml.decode, packed.device.type)
    return run(packed, kind, shape, dtype)


def recode(packed: Tensor, scales: Scales, shape: tuple[int, ...], dtype: torch.dtype) -> EightBit:
    """Return `codec.recode`; if the weight's blocks span several rows, quantize its decoded values instead."""
    if shape[1] % scales.blocksize:
        return encode_8bit(decode(packed, scales, shape, torch.float32), dtype=dtype)
    compiling = torch.compiler.is_compiling()
    run = codec.recode if compiling else fastest("recode_4bit", codec.recode, packed.device.type)
    return run(packed, scales, shape, dtype)


@cache
def fastest(name: str, plain: Callable[..., T], device_type: str) -> Callable[..., T]:
    """Return our Triton kernel `name` on a GPU with Triton, else `plain`."""
    if device_type != "cuda" or find_spec("triton") is None:
        return plain
    from ..kernels import weights_4bit, weights_blocks

    own = getattr(weights_4bit, name, None) or getattr(weights_blocks, name)
    return or_else(own, plain, name)
