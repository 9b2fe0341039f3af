"""Compiles each Triton kernel of the engine for cards that are not here, at the sizes of the 14B and the VAE.

    python tests/kernel_scripts/cards.py cuda:89 hip:gfx1100 ...

Prints for each card what does not compile, and each kernel's shared memory and spilled bytes, as JSON."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import triton
from block_cases import blocks
from lingbot_world.model.choice.card import Card
from lingbot_world.model.choice.table import TRITON, candidates
from lingbot_world.model.kernels import (
    add_norm,
    convolution,
    matrix_8bit,
    merge,
    pointwise,
    scatter_qkv,
    weights_4bit,
    weights_blocks,
)
from lingbot_world.model.ops.implementation import our_kernel
from lingbot_world.model.ops.plain import NormRope
from lingbot_world.model.quantized import codec, ggml
from pointwise_cases import CASES
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

DIM, FEED_FORWARD = 5120, 13824
"""The widths of the 14B: the largest blocks."""
TOKENS, HALF, FP8 = 3, torch.bfloat16, torch.float8_e4m3fn
CONVOLUTIONS = ((96, 96, 3, 3), (384, 384, 3, 3), (192, 96, 2, 1))
"""The convolutions of the VAE: channels, output channels, side of the kernel, frames."""
KINDS = sorted(ggml.BLOCKS)
Case = Callable[[], object]


ALIKE = ("cuda:80", "cuda:86", "cuda:100", "cuda:120", "hip:gfx942", "hip:gfx1151", "hip:gfx1201")
"""Cards for which one variant of each kernel is compiled. All variants are compiled for 7.5, 8.9, 9.0 and gfx1100, of
which each of these has a relative with no more shared memory."""


class Cards:
    """The driver that Triton asks for the card to compile for: `now`."""

    now = ""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def get_current_target(self) -> GPUTarget:
        backend, name = self.now.split(":")
        if backend == "hip":
            return GPUTarget("hip", name, 64 if name.startswith("gfx9") else 32)
        return GPUTarget("cuda", int(name), 32)

    def get_current_device(self) -> int:
        return self.names.index(self.now)

    def get_current_stream(self, _device: int) -> int:
        return 0


def card_of(name: str) -> Card:
    backend, number = name.split(":")
    if backend == "hip":
        return Card("amd", number, arch=number)
    return Card("nvidia", number, divmod(int(number), 10))


def eight_bits(dim: int, dtype: torch.dtype) -> Iterator[Case]:
    """Activations and weights into 8 bits, and products of int8 out of them."""
    for width, activation, added in ((FEED_FORWARD, "gelu", None), (dim, "silu", rows(dim))):
        values = torch.empty(TOKENS, width).to(dtype), torch.empty(TOKENS, 1)
        yield lambda v=values, w=width, a=activation, b=added: matrix_8bit.encode_8bit_(*v, rows(w), a, b)
    values, scales, one = torch.empty(TOKENS, dim).to(dtype), torch.empty(TOKENS, 1), torch.ones(dim)
    yield lambda: matrix_8bit.layer_norm_8bit_(values, scales, rows(dim).float(), one, one, 1e-6)
    affine, norm = (rows(dim), rows(dim)), (one, one, 1e-6)
    yield lambda: add_norm.add_norm_(rows(dim).float(), values, scales, (rows(dim), one), affine, norm)
    if dtype == torch.int8:
        yield lambda: matrix_8bit.rescale_(rows(dim), rows(dim).int(), scales, torch.ones(dim), rows(dim)[0])
    if recodes(dtype):
        weight = codec.encode(torch.randn(TOKENS, dim))
        yield lambda: weights_4bit.recode_4bit(*weight, (TOKENS, dim), dtype)


def recodes(dtype: torch.dtype) -> bool:
    """float8 weights are made by an instruction that AMD has not."""
    return dtype == torch.int8 or not Cards.now.startswith("hip")


def cached(dim: int) -> Iterator[Case]:
    """Keys and values that a cache holds in 8 bits, a scale for each head."""
    values, scales = torch.empty(TOKENS, dim, dtype=torch.int8), torch.empty(TOKENS, dim // 128)
    yield lambda: matrix_8bit.encode_8bit_(values, scales, rows(dim))
    yield lambda: matrix_8bit.decode_8bit_(rows(dim), values, scales)


def attended_in_fp8(dim: int) -> Iterator[Case]:
    """The operands and results of attention in float8."""
    x, mean, one, order = rows(dim), torch.ones(dim), torch.ones(1), torch.arange(TOKENS)
    values, norm_rope = x.to(FP8), turning_of(dim)
    scaling = (mean, one), (mean, one)
    heads = values.view(1, TOKENS, -1, 128)
    parts, sums = torch.cat([heads, heads]), torch.ones(2, dim // 128, TOKENS)
    yield lambda: matrix_8bit.fp8_scale(x, mean, 4.0)
    yield lambda: matrix_8bit.scatter_fp8_(values, order, x, mean, one)
    yield lambda: pointwise.scatter_rope_(values, order, x, norm_rope, mean, one)
    yield lambda: scatter_qkv.scatter_qkv_(
        values, values, order, (x, x, x), (norm_rope, norm_rope), (values, one, one), scaling
    )
    yield lambda: scatter_qkv.rope_fp8_(values, one, one, x, norm_rope)
    yield lambda: merge.merge_fp8_(x, None, parts, sums, None, None, mean, one)
    yield lambda: merge.merge_fp8_(values, mean[:TOKENS, None], heads, None, None, None, mean, one)


def exact(dim: int) -> Iterator[Case]:
    """Norms, gates and rotations in 16 bits."""
    for name, arguments in CASES.items():
        yield lambda n=name, a=arguments: our_kernel(n)(*a(TOKENS, dim, HALF, "cpu"))
    x, order, norm_rope, one = rows(dim), torch.arange(TOKENS), turning_of(dim), torch.ones(dim)
    yield lambda: add_norm.add_norm_(x.float(), x, None, (x, one), (x, x), (one, one, 1e-6))
    yield lambda: scatter_qkv.scatter_qkv_(x, x, order, (x, x, x), (norm_rope, norm_rope), None, None)
    yield lambda: weights_4bit.decode_4bit(*codec.encode(torch.randn(TOKENS, dim)), (TOKENS, dim), HALF)


def decoder() -> Iterator[Case]:
    """The VAE's decoder."""
    one, slots = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    for channels, out, side, frames in CONVOLUTIONS:
        x, weight = torch.zeros(2, frames * 42, channels).half(), torch.zeros(4 * out, side * side * frames * channels)
        weight, bias = weight[: 4 * out if side == 2 else out].half(), torch.zeros(out).half()
        where = None if frames == 1 else slots
        yield lambda a=(x[0], where, weight, bias, (5, 6), side): convolution.convolve(*a)
        yield lambda x=x: convolution.store(x[0], x[1, 0], 1e-6, x[1], one, (5, 6))


def rows(dim: int) -> torch.Tensor:
    return torch.ones(TOKENS, dim, dtype=HALF)


def turning_of(dim: int) -> NormRope:
    return NormRope(torch.ones(dim), *torch.ones(2, TOKENS, 64), 1e-6)


def cases(name: str, number: int) -> Iterator[Case]:
    """What the engine may launch on a card. Of the formats of GGUF a card gets two, so that all cards get all."""
    card = card_of(name)
    yield from exact(DIM)
    yield from cached(DIM)
    yield from eight_bits(DIM, torch.int8)
    if candidates("fp8", card):
        yield from eight_bits(DIM, FP8)
        yield from attended_in_fp8(DIM)
    if any(each.name == TRITON for each in candidates("convolution", card)):
        yield from decoder()
    for kind in {KINDS[number % len(KINDS)], KINDS[(number + len(KINDS) // 2) % len(KINDS)]}:
        packed = torch.from_numpy(blocks(kind, 1024))
        yield lambda p=packed, k=kind: weights_blocks.decode_blocks(p, k, (2, 512), HALF)


class Compiler:
    """Compiles what would be launched, and keeps what the compiler says of it."""

    def __init__(self) -> None:
        self.shared: dict[str, int] = {}
        self.spilled: dict[str, int] = {}
        self._seen: set[str] = set()
        self._launch = JITFunction.run

    def run(self, function: JITFunction, *arguments: object, **settings: object) -> CompiledKernel | None:
        if Cards.now in ALIKE and function.fn.__name__ in self.shared:
            return None
        compiled = self._launch(function, *arguments, **{**settings, "warmup": True})
        if compiled.hash not in self._seen:
            self._seen.add(compiled.hash)
            name = function.fn.__name__
            self.shared[name] = max(self.shared.get(name, 0), compiled.metadata.shared)
            self.spilled[name] = max(self.spilled.get(name, 0), spilled(compiled.asm))
        return compiled

    def found(self) -> dict[str, dict[str, int]]:
        found = {"shared": self.shared, "spilled": self.spilled}
        self.shared, self.spilled = {}, {}
        return found


def spilled(asm: dict) -> int:
    """Bytes of a thread's registers that lie in memory, as the assembler's own file says."""
    if "amdgcn" in asm:
        return 4 * int(re.search(r"\.vgpr_spill_count:\s+(\d+)", asm["amdgcn"])[1])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return max((int(found) for found in re.findall(r"STACK:(\d+)", said)), default=0)


def main(names: list[str]) -> None:
    torch.cuda.device_of = lambda _tensor: nullcontext()
    compiler = Compiler()
    JITFunction.run = lambda *arguments, **settings: compiler.run(*arguments, **settings)
    driver = Cards(names)
    triton.runtime.driver.set_active(driver)
    found = {}
    for number, name in enumerate(names):
        Cards.now, convolution.card_of, failed = name, lambda _device, name=name: card_of(name), []
        convolution._tile.cache_clear()
        for case in cases(name, number):
            try:
                case()
            except Exception as reason:
                while reason.__cause__ is not None:
                    reason = reason.__cause__
                failed.append(f"{type(reason).__name__}: {reason}"[-500:])
        found[name] = {"failed": failed, **compiler.found()}
    print(json.dumps(found))


main(sys.argv[1:])
