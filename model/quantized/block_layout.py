"""GGML's block formats as a comfy_kitchen layout, imported on demand because comfy-kitchen is optional."""

from dataclasses import dataclass
from typing import Any

import torch
from comfy_kitchen.tensor import BaseLayoutParams, QuantizedTensor, register_layout_class
from torch import Tensor

from ..ops.matrix_8bit import EightBit
from ..ops.pointwise import encode_8bit
from .decoding import decode_blocks
from .layouts import PlainLayout

BLOCKS = "LingBotGGML"


@dataclass(frozen=True)
class BlockParams(BaseLayoutParams):
    """The format and shape of a weight in GGML's blocks. `scale` is always 1: the blocks contain their scales.

    kind: the format's name in `ggml.BLOCKS`.
    transposed: whether the tensor is the transpose of the stored weight.
    orig_shape: despite its name, the shape of this tensor; the stored weight's shape is the reverse if `transposed`.
    """

    kind: str = "Q4_0"
    transposed: bool = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.orig_shape[::-1] if self.transposed else self.orig_shape


class BlockLayout(PlainLayout):
    """The layout of weights in GGML's blocks, decoded by a Triton kernel on a GPU, else in plain torch."""

    Params = BlockParams

    @classmethod
    def decode(cls, packed: Tensor, params: Any, dtype: torch.dtype) -> Tensor:
        return decode_blocks(packed, params.kind, params.stored_shape, dtype)

    @classmethod
    def recode(cls, packed: Tensor, params: Any, dtype: torch.dtype) -> EightBit:
        return encode_8bit(cls.decode(packed, params, torch.float32), dtype=dtype)

    @classmethod
    def quantize(cls, tensor: Tensor, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            "weights are not quantized to GGML's formats; LoRAs are applied to the decoded weight"
        )

    @classmethod
    def requantize_kwargs(cls, _qtensor: QuantizedTensor) -> dict:
        return {}

    @classmethod
    def state_dict_tensors(cls, qdata: Tensor, _params: Any) -> dict[str, Tensor]:
        return {"": qdata}


register_layout_class(BLOCKS, BlockLayout)


def block_tensor(packed: Tensor, kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> QuantizedTensor:
    """Return a QuantizedTensor of `shape` that decodes to `dtype`, without a copy. `packed` are the bytes of GGML's
    blocks, and `kind` is their format, such as "Q4_K"."""
    scale = torch.ones((), device=packed.device)
    return QuantizedTensor(
        packed, BLOCKS, BlockParams(scale=scale, orig_dtype=dtype, orig_shape=tuple(shape), kind=kind)
    )
