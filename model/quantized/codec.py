"""bitsandbytes' 4-bit formats, NF4 and FP4, in plain torch, bit-identical to bitsandbytes."""

import json
import math
from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..ops.matrix_8bit import LARGEST, EightBit

NF4_CODE = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4_CODE = (
    *(0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5),
    *(0.1666666716337204, 0.25, 0.0, -0.0052083334885537624, -0.6666666865348816, -1.0),
    *(-0.3333333432674408, -0.5, -0.1666666716337204, -0.25),
)
CODES = {"nf4": NF4_CODE, "fp4": FP4_CODE}
NESTED_BLOCKSIZE = 256

# The number of values decoded at a time: their indices and float32 products stay small compared with the weight.
_DECODED_AT_A_TIME = 1 << 22
# A CPU is fastest on values that fit its cache; a GPU needs more values than it processes during a few launches.
_ENCODED_AT_A_TIME = {"cpu": 1 << 20, "cuda": 1 << 23}
_TINY = 1e-38
# The scales that `search` tries, as shares of a block's largest magnitude; each is then fitted to the resulting values.
# Above 1 the two outermost values of the table are unused, because their distance to the others is large.
_RATIOS = (0.82, 0.88, 0.94, 1.0, 1.25, 1.38)
# The weight of the square of a block's summed errors relative to the sum of their squares. Inputs that are similar in
# neighbouring channels, such as a camera's, multiply the summed error.
_SUM_WEIGHT = 1 / 16


class Scales(NamedTuple):
    """The scales of a 4-bit weight. A nibble is an index into `code`; each block of `blocksize` values has a scale.

    code: the table of 16 values, float32.
    absmax: the scales, float32, or uint8 with double quantization.
    nested_code, nested_absmax, offset: decode a uint8 `absmax`; None without double quantization.
    nested_blocksize: the number of scales that share a value of `nested_absmax`.
    """

    absmax: Tensor
    code: Tensor
    nested_absmax: Tensor | None
    nested_code: Tensor | None
    offset: Tensor | None
    blocksize: int
    nested_blocksize: int

    def block_scales(self) -> Tensor:
        """Return the decoded scale of each block, float32 [blocks]."""
        if self.nested_absmax is None or self.nested_code is None or self.offset is None:
            return self.absmax.float()
        scales = self.nested_code.index_select(0, self.absmax.int())
        outer = self.nested_absmax.repeat_interleave(self.nested_blocksize)[: scales.numel()]
        return scales * outer + self.offset


def decode(packed: Tensor, scales: Scales, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a 4-bit weight of `shape`, decoded to `dtype`. `packed` is uint8 of any shape, two values in a byte."""
    count, packed = math.prod(shape), packed.reshape(-1)
    if count <= _DECODED_AT_A_TIME or torch.compiler.is_compiling():
        values = _decode_blocks(packed, _pairs(scales.code), scales.block_scales(), scales.blocksize)
        return values[:count].to(dtype).view(shape)
    out = torch.empty(count, dtype=dtype, device=packed.device)
    for start, values in _decoded_parts(packed, scales, count, _DECODED_AT_A_TIME):
        out[start : start + values.numel()] = values
    return out.view(shape)


def recode(packed: Tensor, scales: Scales, shape: tuple[int, ...], dtype: torch.dtype) -> EightBit:
    """Return a 4-bit weight of `shape` [out, in] in the 8-bit `dtype`, with row scales. Blocks must not span rows."""
    per_row = scales.block_scales().view(shape[0], -1)
    row_scales = (per_row.abs().amax(1, keepdim=True) * scales.code.abs().max()).clamp_min(1e-30) / LARGEST[dtype]
    scaled = scales._replace(absmax=(per_row * row_scales.reciprocal()).view(-1), nested_absmax=None)
    values = decode(packed, scaled, shape, torch.float32)
    return EightBit((values.round_() if dtype == torch.int8 else values).to(dtype), row_scales)


def decode_rows(packed: Tensor, scales: Scales, shape: tuple[int, ...], rows: Tensor) -> Tensor:
    """Return the rows `rows` (int64 [n]) of a 4-bit weight of `shape` [out, in], as float32 [n, in]."""
    height, width = shape
    if width % scales.blocksize:
        return decode(packed, scales, shape, torch.float32)[rows]
    per_row = width // scales.blocksize
    blocks = (rows[:, None] * per_row + torch.arange(per_row)).view(-1)
    outer = None if scales.nested_absmax is None else scales.nested_absmax[blocks // scales.nested_blocksize]
    picked = scales._replace(absmax=scales.absmax[blocks], nested_absmax=outer, nested_blocksize=1)
    values = _decode_blocks(
        packed.view(height, -1)[rows].view(-1), _pairs(scales.code), picked.block_scales(), scales.blocksize
    )
    return values.view(len(rows), width)


def squared_error(weight: Tensor, packed: Tensor, scales: Scales) -> float:
    """Return the sum of the squared differences between a weight and its 4-bit encoding."""
    flat, error = weight.detach().reshape(-1), 0.0
    for start, values in _decoded_parts(packed.view(-1), scales, flat.numel(), _encoded_at_a_time(weight)):
        error += values.sub_(flat[start : start + values.numel()]).square_().sum().item()
    return error


def squared_sum(weight: Tensor) -> float:
    """Return the sum of the squares of a weight's values."""
    flat = weight.detach().reshape(-1)
    return sum(part.float().square().sum().item() for part in flat.split(_encoded_at_a_time(weight)))


def _encoded_at_a_time(weight: Tensor) -> int:
    return _ENCODED_AT_A_TIME.get(weight.device.type, _DECODED_AT_A_TIME)


def _part_size(blocksize: int, at_a_time: int) -> int:
    """Return how many 4-bit values to process at a time: a multiple of two blocks, so that each part is whole bytes."""
    return math.lcm(at_a_time, 2 * blocksize)


def _pairs(code: Tensor) -> Tensor:
    """Return a look-up table, int64 [256], by byte. Each entry packs the two float32 values of the byte's nibbles."""
    return torch.stack((code.repeat_interleave(16), code.repeat(16)), 1).view(torch.int64).view(-1)


def _decoded_parts(packed: Tensor, scales: Scales, count: int, at_a_time: int) -> Iterator[tuple[int, Tensor]]:
    """Decode `count` values, and yield each part's first index and float32 values."""
    pairs, per_block, blocksize = _pairs(scales.code), scales.block_scales(), scales.blocksize
    step = _part_size(blocksize, at_a_time)
    for start in range(0, count, step):
        blocks = per_block[start // blocksize : (start + step) // blocksize]
        values = _decode_blocks(packed[start // 2 : (start + step) // 2], pairs, blocks, blocksize)
        yield start, values[: count - start]


def _decode_blocks(packed: Tensor, pairs: Tensor, per_block: Tensor, blocksize: int) -> Tensor:
    values = pairs.index_select(0, packed.int()).view(torch.float32)
    lacking = per_block.numel() * blocksize - values.numel()
    if lacking:
        values = pad(values, (0, lacking))
    return (values.view(-1, blocksize) * per_block[:, None]).view(-1)


def encode(
    weight: Tensor,
    blocksize: int = 64,
    nested: bool = True,
    quant_type: str = "nf4",
    search: bool = False,
    sum_weight: float = _SUM_WEIGHT,
) -> tuple[Tensor, Scales]:
    """Return a weight of N values in 4 bits, uint8 [ceil(N / 2), 1], and its scales. If `search` is False, the result
    is bit-identical to bitsandbytes'.

    nested: whether the scales are quantized to 8 bits.
    quant_type: "nf4" or "fp4".
    search: whether to try several scales for each block, including negative ones.
    sum_weight: the search minimizes sum(e^2) + `sum_weight` * sum(e)^2, for a block's errors e.
    """
    code = torch.tensor(CODES[quant_type], device=weight.device)
    flat = weight.detach().reshape(-1)
    step = _part_size(blocksize, _encoded_at_a_time(weight))
    parts = flat.split(step)
    find = partial(_best_scales, _nearest_table(code), sum_weight) if search else _largest
    absmax = torch.cat([find(_blocks(part, blocksize)) for part in parts])
    scales = _scales(absmax, code, blocksize, nested)
    divisors = scales.block_scales() if search else absmax
    packed = []
    for part, by in zip(parts, divisors.split(step // blocksize), strict=True):
        nibbles = _nearest(part, by, code, blocksize)
        if len(nibbles) % 2:
            nibbles = pad(nibbles, (0, 1))
        packed.append((nibbles[::2] << 4) | nibbles[1::2])
    return torch.cat(packed).unsqueeze(1), scales


def _scales(absmax: Tensor, code: Tensor, blocksize: int, nested: bool) -> Scales:
    if not nested:
        return Scales(absmax, code, None, None, None, blocksize, NESTED_BLOCKSIZE)
    offset, nested_code = absmax.mean(), _dynamic_map().to(absmax.device)
    rest = absmax - offset
    nested_absmax = _largest(_blocks(rest, NESTED_BLOCKSIZE))
    # bitsandbytes uses a table of 65536 bytes on the CPU, and searches for the nearest value on a GPU.
    on_cpu = absmax.device.type == "cpu"
    rest = _nearest(rest, nested_absmax, nested_code, NESTED_BLOCKSIZE, on_grid=on_cpu)
    return Scales(rest, code, nested_absmax, nested_code, offset, blocksize, NESTED_BLOCKSIZE)


def _blocks(flat: Tensor, blocksize: int) -> Tensor:
    return pad(flat.float(), (0, -flat.numel() % blocksize)).view(-1, blocksize)


def _largest(blocks: Tensor) -> Tensor:
    return blocks.abs().amax(1)


def _nearest(flat: Tensor, scales: Tensor, code: Tensor, blocksize: int, on_grid: bool = False) -> Tensor:
    """Divide `flat` by the scales of its blocks of `blocksize` values. Return the uint8 index of the nearest value in
    `code` for each quotient. `on_grid` first rounds quotients as bitsandbytes does on a CPU."""
    scaled = (_blocks(flat, blocksize) * _inverse(scales)).clamp_(-1, 1).view(-1)[: flat.numel()]
    if on_grid:  # as in bitsandbytes on a CPU
        scaled = ((scaled + 1) * 0.5 * 65535 + 0.5).floor_() * (2 / 65535) - 1
    ordered, order = code.sort(stable=True)
    nearest = torch.bucketize(scaled, (ordered[:-1] + ordered[1:]) / 2, out_int32=True)
    return order.to(torch.uint8).index_select(0, nearest)


def _inverse(scales: Tensor) -> Tensor:
    return (1.0 / torch.where(scales.abs() < _TINY, _TINY, scales))[:, None]


def _best_scales(table: Tensor, sum_weight: float, blocks: Tensor) -> Tensor:
    """Return the best of several scales for each row of `blocks` [n, blocksize], float32 [n]. It minimizes sum(e^2) +
    `sum_weight` * sum(e)^2 over the row's errors e. `table` is a result of `_nearest_table`."""
    largest, wanted = _largest(blocks), blocks + sum_weight * blocks.sum(1, keepdim=True)
    best, found = torch.zeros_like(largest), largest
    for ratio in (*_RATIOS, *(-ratio for ratio in _RATIOS), None):
        values = _nearest_values(table, blocks, found if ratio is None else largest * ratio)
        product = (wanted * values).sum(1)
        square = (values.square().sum(1) + sum_weight * values.sum(1).square()).clamp_(min=_TINY)
        gain = product.square() / square  # the error reduction by these values' best scale, product / square
        better = gain > best
        best, found = torch.where(better, gain, best), torch.where(better, product / square, found)
    return found


def _nearest_values(table: Tensor, blocks: Tensor, scales: Tensor) -> Tensor:
    half = table.numel() // 2
    index = (blocks * _inverse(scales)).clamp_(-1, 1).mul_(half).round_().add_(half).to(torch.int32)
    return table.index_select(0, index.view(-1)).view(blocks.shape)


def _nearest_table(code: Tensor) -> Tensor:
    """Return a look-up table, float32 [8193]: entry i is the value in `code` nearest to -1 + i / 4096."""
    ordered = code.sort().values
    return ordered[torch.bucketize(torch.linspace(-1, 1, 8193, device=code.device), (ordered[:-1] + ordered[1:]) / 2)]


@cache
def _dynamic_map() -> Tensor:
    """Return bitsandbytes' signed dynamic 8-bit table (arXiv:1511.04561), float32 [256]."""
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1)
        means = 10 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2.0)
        values += [*means.tolist(), *(-means).tolist()]
    return torch.tensor(sorted(values))


def components(scales: Scales, shape: tuple[int, ...], quant_type: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors that bitsandbytes saves next to a packed weight, by name suffix. `dtype` is the unquantized
    weight's."""
    state = {
        "quant_type": quant_type,
        "blocksize": scales.blocksize,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
    }
    tensors = {".absmax": scales.absmax, ".quant_map": scales.code}
    if scales.nested_absmax is not None and scales.nested_code is not None and scales.offset is not None:
        tensors |= {".nested_absmax": scales.nested_absmax, ".nested_quant_map": scales.nested_code}
        state |= {
            "nested_blocksize": scales.nested_blocksize,
            "nested_dtype": "float32",
            "nested_offset": scales.offset.item(),
        }
    packed_state = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    return tensors | {f".quant_state.bitsandbytes__{quant_type}": packed_state}
