"""The 4-bit formats of bitsandbytes (NF4, FP4) in plain torch: decode and encode, the same bytes on every machine.

A weight is its row-major flat values, two to a byte, the high nibble first; each nibble indexes a table of 16 values
(`code`). Every `blocksize` values share a scale (`absmax`). With double quantization the scales are bytes:
`absmax = nested_code[byte] * nested_absmax[i // nested_blocksize] + offset`.
"""

import json
import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

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
NESTED_BLOCKSIZE = 256

# Values decoded at a time, so that their indices and float32 products stay small next to the weight.
_DECODED_AT_A_TIME = 1 << 22
_TINY = 1e-38


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
        if self.nested_absmax is None or self.nested_code is None or self.offset is None:
            return self.absmax.float()
        scales = self.nested_code.index_select(0, self.absmax.int())
        outer = self.nested_absmax.repeat_interleave(self.nested_blocksize)[: scales.numel()]
        return scales * outer + self.offset


def is_standard_code(code: Tensor, quant_type: str) -> bool:
    """Whether a table [16] on the CPU is the one that bitsandbytes has built in for "nf4" or "fp4"."""
    return torch.equal(code, torch.tensor(CODES[quant_type]))


def decode(packed: Tensor, scales: Scales, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The weight `shape` in `dtype`: the float32 product rounded once, bit-equal to bitsandbytes."""
    count = math.prod(shape)
    pairs = torch.stack((scales.code.repeat_interleave(16), scales.code.repeat(16)), 1)
    per_block = scales.block_scales()
    packed = packed.reshape(-1)
    if count <= _DECODED_AT_A_TIME or torch.compiler.is_compiling():
        return _decode_blocks(packed, pairs, per_block, scales.blocksize)[:count].to(dtype).view(shape)
    out = torch.empty(count, dtype=dtype, device=packed.device)
    step = math.lcm(_DECODED_AT_A_TIME, 2 * scales.blocksize)
    for start in range(0, count, step):
        blocks = per_block[start // scales.blocksize : (start + step) // scales.blocksize]
        values = _decode_blocks(packed[start // 2 : (start + step) // 2], pairs, blocks, scales.blocksize)
        out[start : start + step] = values[: count - start]
    return out.view(shape)


def _decode_blocks(packed: Tensor, pairs: Tensor, per_block: Tensor, blocksize: int) -> Tensor:
    values = pairs.index_select(0, packed.int()).view(-1)
    lacking = per_block.numel() * blocksize - values.numel()
    if lacking:
        values = pad(values, (0, lacking))
    return (values.view(-1, blocksize) * per_block[:, None]).view(-1)


def encode(weight: Tensor, blocksize: int = 64, nested: bool = True, quant_type: str = "nf4") -> tuple[Tensor, Scales]:
    """Quantize a weight of any shape: uint8 [ceil(N / 2), 1] and its scales, on the weight's device.

    Each value over its block's largest magnitude becomes the nearest table value; with `nested` the scales, less their
    mean, are quantized to bytes in the same way.
    """
    code = torch.tensor(CODES[quant_type], device=weight.device)
    nibbles, absmax = _nearest(weight.detach().float().reshape(-1), code, blocksize)
    if nibbles.numel() % 2:
        nibbles = pad(nibbles, (0, 1))
    packed = ((nibbles[::2] << 4) | nibbles[1::2]).unsqueeze(1)
    if not nested:
        return packed, Scales(absmax, code, None, None, None, blocksize, NESTED_BLOCKSIZE)
    offset, nested_code = absmax.mean(), _dynamic_map().to(weight.device)
    rest, nested_absmax = _nearest(absmax - offset, nested_code, NESTED_BLOCKSIZE)
    return packed, Scales(rest, code, nested_absmax, nested_code, offset, blocksize, NESTED_BLOCKSIZE)


def _nearest(flat: Tensor, code: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """uint8 index of the table value nearest to each value over its block's largest magnitude; those magnitudes."""
    count = flat.numel()
    blocks = pad(flat, (0, -count % blocksize)).view(-1, blocksize)
    absmax = blocks.abs().amax(1)
    scaled = (blocks * (1.0 / absmax.clamp(min=_TINY))[:, None]).clamp_(-1, 1).view(-1)[:count]
    ordered, order = code.sort(stable=True)
    nearest = torch.bucketize(scaled, (ordered[:-1] + ordered[1:]) / 2, out_int32=True)
    return order.to(torch.uint8).index_select(0, nearest), absmax


@cache
def _dynamic_map() -> Tensor:
    """float32 [256]: bitsandbytes' signed dynamic 8-bit table (arXiv:1511.04561), the table of nested scales."""
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1)
        means = 10 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2.0)
        values += [*means.tolist(), *(-means).tolist()]
    return torch.tensor(sorted(values))


def components(scales: Scales, shape: tuple[int, ...], quant_type: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors that bitsandbytes saves beside a packed weight, by key suffix."""
    state = {"quant_type": quant_type, "blocksize": scales.blocksize, "dtype": str(dtype).removeprefix("torch."),
             "shape": list(shape)}  # fmt: skip
    tensors = {".absmax": scales.absmax, ".quant_map": scales.code}
    if scales.nested_absmax is not None and scales.nested_code is not None and scales.offset is not None:
        tensors |= {".nested_absmax": scales.nested_absmax, ".nested_quant_map": scales.nested_code}
        state |= {"nested_blocksize": scales.nested_blocksize, "nested_dtype": "float32",
                  "nested_offset": scales.offset.item()}  # fmt: skip
    packed_state = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    return tensors | {f".quant_state.bitsandbytes__{quant_type}": packed_state}
