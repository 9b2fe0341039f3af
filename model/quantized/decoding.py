"""Decoding of quantized weights and conversion to 8 bits, by Triton on a GPU, else in plain torch."""

import torch
from torch import Tensor

from ..ops.implementation import our_kernel_or
from ..ops.matrix_8bit import EightBit
from ..ops.pointwise import encode_8bit
from . import codec, ggml
from .codec import Scales, decode


def decode_blocks(packed: Tensor, kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a weight of `shape` in `dtype`, decoded from GGML's blocks `packed` (uint8) of the format `kind`."""
    compiling = torch.compiler.is_compiling()
    run = ggml.decode if compiling else our_kernel_or("decode_blocks", ggml.decode, packed.device.type)
    return run(packed, kind, shape, dtype)


def recode(packed: Tensor, scales: Scales, shape: tuple[int, ...], dtype: torch.dtype) -> EightBit:
    """Return a 4-bit weight of `shape` [out, in] in the 8-bit `dtype`, with a scale for each row."""
    if shape[1] % scales.blocksize:
        return encode_8bit(decode(packed, scales, shape, torch.float32), dtype=dtype)
    compiling = torch.compiler.is_compiling()
    run = codec.recode if compiling else our_kernel_or("recode_4bit", codec.recode, packed.device.type)
    return run(packed, scales, shape, dtype)
