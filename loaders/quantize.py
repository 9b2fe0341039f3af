"""Weights to bitsandbytes' 4-bit format, in plain torch: the same bytes on every machine."""

import json
from functools import cache

import torch
from torch import Tensor

from .nf4 import CODES, Scales

NESTED_BLOCKSIZE = 256
_TINY = 1e-38


def encode(weight: Tensor, blocksize: int = 64, nested: bool = True, quant_type: str = "nf4") -> tuple[Tensor, Scales]:
    """Quantize a weight of any shape: uint8 [ceil(N / 2), 1] and its scales, on the weight's device.

    The nearest table value of each value over its block's largest magnitude; with `nested` the scales, less their
    mean, are quantized to bytes in the same way.
    """
    code = torch.tensor(CODES[quant_type], device=weight.device)
    nibbles, absmax = _nearest(weight.detach().float().reshape(-1), code, blocksize)
    if nibbles.numel() % 2:
        nibbles = torch.nn.functional.pad(nibbles, (0, 1))
    packed = ((nibbles[::2] << 4) | nibbles[1::2]).unsqueeze(1)
    if not nested:
        return packed, Scales(absmax, code, None, None, None, blocksize, NESTED_BLOCKSIZE)
    offset, nested_code = absmax.mean(), dynamic_map().to(weight.device)
    rest, nested_absmax = _nearest(absmax - offset, nested_code, NESTED_BLOCKSIZE)
    return packed, Scales(rest, code, nested_absmax, nested_code, offset, blocksize, NESTED_BLOCKSIZE)


def _nearest(flat: Tensor, code: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """uint8 index of the table value nearest to each value over its block's largest magnitude; those magnitudes."""
    count = flat.numel()
    blocks = torch.nn.functional.pad(flat, (0, -count % blocksize)).view(-1, blocksize)
    absmax = blocks.abs().amax(1)
    scaled = (blocks * (1.0 / absmax.clamp(min=_TINY))[:, None]).clamp_(-1, 1).view(-1)[:count]
    ordered, order = code.sort(stable=True)
    nearest = torch.bucketize(scaled, (ordered[:-1] + ordered[1:]) / 2, out_int32=True)
    return order.to(torch.uint8).index_select(0, nearest), absmax


@cache
def dynamic_map() -> Tensor:
    """float32 [256]: bitsandbytes' signed dynamic 8-bit table (arXiv:1511.04561), the nested quant map."""
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
    if scales.nested_absmax is not None:
        tensors |= {".nested_absmax": scales.nested_absmax, ".nested_quant_map": scales.nested_code}
        state |= {"nested_blocksize": scales.nested_blocksize, "nested_dtype": "float32",
                  "nested_offset": scales.offset.item()}  # fmt: skip
    packed_state = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    return tensors | {f".quant_state.bitsandbytes__{quant_type}": packed_state}
