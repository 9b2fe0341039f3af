"""Four-bit weights of bitsandbytes (NF4, FP4) in plain torch: decode, encode, and `nf4_tensor`.

A weight is its row-major flat values, two to a byte, the high nibble first; each nibble indexes a table of 16 values
(`code`). Every `blocksize` values share a scale (`absmax`). With double quantization the scales are bytes:
`absmax = nested_code[byte] * nested_absmax[i // nested_blocksize] + offset`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .dependencies import bitsandbytes_functional, require

NF4_CODE = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
FP4_CODE = (
    0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25,
    0.0, -0.0052083334885537624, -0.6666666865348816, -1.0, -0.3333333432674408, -0.5, -0.1666666716337204, -0.25,
)  # fmt: skip
CODES = {"nf4": NF4_CODE, "fp4": FP4_CODE}

# Values decoded at a time: the indices and float32 products of one piece stay small next to the weight.
_PIECE = 1 << 22


class Scales(NamedTuple):
    """What turns packed nibbles into values. All float32 except `absmax`, which is uint8 when nested."""

    absmax: Tensor
    code: Tensor
    nested_absmax: Tensor | None
    nested_code: Tensor | None
    offset: Tensor | None
    blocksize: int
    nested_blocksize: int

    def block_scales(self) -> Tensor:
        """float32 [blocks]: the scale of each block of values."""
        if self.nested_absmax is None:
            return self.absmax.float()
        scales = self.nested_code.index_select(0, self.absmax.int())
        outer = self.nested_absmax.repeat_interleave(self.nested_blocksize)[: scales.numel()]
        return scales * outer + self.offset


def decode(packed: Tensor, scales: Scales, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The weight `shape` in `dtype`: the float32 product rounded once, bit-equal to bitsandbytes."""
    count = math.prod(shape)
    pairs = torch.stack((scales.code.repeat_interleave(16), scales.code.repeat(16)), 1)
    per_block = scales.block_scales()
    packed = packed.reshape(-1)
    if count <= _PIECE or torch.compiler.is_compiling():
        return _decode_piece(packed, pairs, per_block, scales.blocksize)[:count].to(dtype).view(shape)
    out = torch.empty(count, dtype=dtype, device=packed.device)
    step = math.lcm(_PIECE, 2 * scales.blocksize)
    for start in range(0, count, step):
        blocks = per_block[start // scales.blocksize : (start + step) // scales.blocksize]
        piece = _decode_piece(packed[start // 2 : (start + step) // 2], pairs, blocks, scales.blocksize)
        out[start : start + step] = piece[: count - start]
    return out.view(shape)


def _decode_piece(packed: Tensor, pairs: Tensor, per_block: Tensor, blocksize: int) -> Tensor:
    values = pairs.index_select(0, packed.int()).view(-1)
    ragged = per_block.numel() * blocksize - values.numel()
    if ragged:
        values = torch.nn.functional.pad(values, (0, ragged))
    return (values.view(-1, blocksize) * per_block[:, None]).view(-1)


def nf4_tensor(
    packed: Tensor,
    absmax: Tensor,
    code: Tensor,
    nested_absmax: Tensor | None,
    nested_code: Tensor | None,
    offset: Tensor | float | None,
    shape: tuple[int, ...],
    blocksize: int,
    nested_blocksize: int,
    state_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    quant_type: str = "nf4",
    standard_code: bool | None = None,
):
    """A 4-bit weight as a comfy_kitchen QuantizedTensor of `shape` that calls itself `compute_dtype`.

    No byte is copied: the tensors given are kept as they are (views of a mapped file, slices of a GPU buffer).
    `state_dtype` is the dtype that the weight had when it was quantized; it is only written back by `state_dict`.
    `standard_code` says whether `code` is the format's own table, for callers that know it without asking a GPU.
    Raises DependencyError where comfy-kitchen cannot be imported.
    """
    layouts = load_layouts()
    if offset is not None and not isinstance(offset, Tensor):
        offset = torch.tensor(offset, dtype=torch.float32, device=packed.device)
    standard = is_standard_code(code, quant_type) if standard_code is None else standard_code
    # bitsandbytes ignores the file's table, and its CPU kernels (0.50.2) are wrong for rows that are not whole blocks.
    native = standard and shape[-1] % blocksize == 0 and bitsandbytes_functional() is not None
    params = layouts.FourBitParams(
        scale=absmax, orig_dtype=compute_dtype, orig_shape=tuple(shape), code=code, nested_absmax=nested_absmax,
        nested_code=nested_code, offset=offset, blocksize=blocksize, nested_blocksize=nested_blocksize,
        quant_type=quant_type, state_dtype=state_dtype,
    )  # fmt: skip
    return layouts.QuantizedTensor(packed, layouts.NATIVE if native else layouts.PLAIN, params)


def load_layouts():
    """The module of the layouts. comfy_kitchen.tensor takes a second to import, hence not before use."""
    require("comfy_kitchen.tensor", "comfy-kitchen packaging")
    from . import layouts

    return layouts


def is_standard_code(code: Tensor, quant_type: str) -> bool:
    """Whether a table [16] is the one that bitsandbytes has built in for "nf4" or "fp4"."""
    return code.is_meta or torch.equal(code.cpu(), torch.tensor(CODES[quant_type]))


def frozen_parameter(tensor: Tensor) -> torch.nn.Parameter:
    """`tensor` as a Parameter without gradient, still the same bytes.

    A quantized tensor is marked as a parameter in place: `Parameter(tensor)` would detach it, and comfy_kitchen's
    detach copies the scales, out of the mapped file into memory.
    """
    if not hasattr(tensor, "_qdata"):
        return torch.nn.Parameter(tensor, requires_grad=False)
    tensor._is_param = True
    return tensor
