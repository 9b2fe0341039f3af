"""Kernels that GeForce cards run, measured per clock and multiprocessor on the GPU at hand.

    python tools/cards/per_clock.py [--parts peaks attention products convolution block decoder] [--dry]

A multiprocessor of an H100 and one of a GeForce card have the same shared memory and arithmetic a clock, but tensor
cores and memory of other speeds. What a kernel takes here therefore bounds what it takes there: see docs/cards.md. The
GPU plays compute capability 12.0 (play.py). Each result is printed as a line of JSON. `--dry` prints the shapes and
needs no GPU. 3 minutes on an H100."""

import argparse
import ctypes
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from functools import lru_cache, partial
from pathlib import Path

import torch
from model_cases import FRAMES, VIDEO, WIDTHS, decibels, launches, profiled, relative, shown, try_vae
from try_kernels import importable

PLAYED, SECONDS, VAE_WIDTH = "12.0", 0.15, 96
KERNELS = "int8=comfy-kitchen,attention-8bit=comfy-kitchen,convolution=triton"
TOKENS, KEYS = (count * VIDEO[0] * VIDEO[1] // 4 for count in (FRAMES, 18))
SUM = "    return tl.dot(x, _block(w, row, column, ROWS, COLUMNS, total.shape[1], K, DESCRIBED).T, total)\n"
SUM_IN_HALF = """    block = _block(w, row, column, ROWS, COLUMNS, total.shape[1], K, DESCRIBED).T
    return total + tl.dot(x, block, out_dtype=tl.float16).to(tl.float32)
"""
"""The sum in model/kernels/convolution.py, and the same with sums over KA channels in fp16."""


TILES = {
    96: ((128, 64, 32, 64, 0, 8, 3), (256, 64, 32, 32, 0, 8, 4), (128, 64, 32, 32, 0, 4, 4)),
    192: ((128, 128, 0, 32, 0, 8, 4), (128, 64, 0, 64, 0, 8, 3), (256, 64, 0, 32, 0, 8, 4)),
    384: ((128, 128, 0, 32, 0, 8, 4), (128, 64, 0, 64, 0, 8, 3), (256, 64, 0, 32, 0, 8, 4)),
}
"""Other tiles (model/choice/tiles.py) for sums in fp16, by output channels."""


@lru_cache
def nvml() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """NVIDIA's library that tells clocks, and its handle of the first GPU."""
    library, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    library.nvmlInit_v2()
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    return library, device


def clock() -> int:
    """The GPU's clock in MHz now."""
    (library, device), megahertz = nvml(), ctypes.c_uint()
    library.nvmlDeviceGetClockInfo(device, 1, ctypes.byref(megahertz))
    return megahertz.value


def timed(run, operations: float) -> dict:
    """The seconds of a call, and its operations per clock and multiprocessor."""
    run()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "12")
    start.record()
    run()
    end.record()
    end.synchronize()
    count, clocks = max(3, min(2000, int(SECONDS * 1000 / max(start.elapsed_time(end), 1e-3)))), []
    start.record()
    for _ in range(count):
        run()
    end.record()
    while not end.query():
        clocks.append(clock())
        time.sleep(0.005)
    seconds, multiprocessors = start.elapsed_time(end) / count / 1000, torch.cuda.get_device_properties(0)
    found = {"us": round(seconds * 1e6, 1), "TFLOP/s": round(operations / seconds / 1e12, 1)}
    if clocks:
        hertz = 1e6 * statistics.median(clocks)
        rate = operations / seconds / hertz / multiprocessors.multi_processor_count
        found |= {"MHz": round(hertz / 1e6), "per_clock": round(rate, 1)}
    return found


def peaks() -> None:
    """The tensor cores through the instructions that GeForce has too, and the memory."""
    from tensor_cores import SUMS, multiply

    count, tile, depth, loops = 2 * torch.cuda.get_device_properties(0).multi_processor_count, 128, 32, 2000
    for name, sums in SUMS.items():
        x = torch.ones(tile * depth, device="cuda").to(torch.int8 if name == "int8" else torch.float16)
        out = torch.empty(tile, tile, device="cuda")
        run = partial(multiply[(count,)], x, out, loops, SUMS=sums, TILE=tile, DEPTH=depth, num_warps=8)
        shown(f"peak, {name}", partial(timed, run, 2.0 * tile * tile * depth * loops * count))
    for name, size in (("memory", 1 << 30), ("cache", TOKENS * WIDTHS["1.3B"][0] * 2)):
        x = torch.zeros(size // 2, dtype=torch.float16, device="cuda")
        shown(f"bytes of a copy, {name}", partial(timed, partial(torch.empty_like(x).copy_, x), 2.0 * size))


def convolutions() -> Counter:
    """The convolutions of a latent frame, as (kind, channels, out, height, width), with their number. They are those
    of a `Decoder` on torch's device without data."""
    from lingbot_world.vae.network import Decoder
    from lingbot_world.vae.weights import prepare, vae_shapes

    found = Counter[tuple]()

    class Listed(Decoder):
        def _causal_conv(self, name, x):
            out, channels, side, _ = self.weights[f"{name}.weight"].shape
            kind = "over time" if side == 3 else "time only"
            found[(kind, channels // 3, out, *x.shape[2:])] += 1
            return super()._causal_conv(name, x)

        def _doubled(self, name, x):
            out, channels = self.weights[f"{name}.weight"].shape[:2]
            found[("doubling", channels, out, *x.shape[2:])] += 1
            return super()._doubled(name, x)

    shapes, meta = vae_shapes(VAE_WIDTH), torch.device("meta")
    weights = {name: torch.empty(shape, device=meta) for name, shape in shapes.items()}
    decoder, latent = Listed(prepare(weights, meta, torch.float16)), torch.empty(1, 16, *VIDEO, device=meta).half()
    for _ in decoder.decode(latent):  # the video's first frame
        pass
    found.clear()
    for _ in decoder.decode(latent):
        pass
    return found


def operations_of(kind: str, channels: int, out: int, height: int, width: int) -> float:
    """The operations of a convolution as Triton's kernel computes it: doubling is four kernels of 2x2."""
    taps = {"over time": 27, "time only": 3, "doubling": 16}[kind]
    return 2.0 * taps * channels * out * height * width


def convolution() -> None:
    """Each convolution of the decoder: Triton's kernel with its sums in fp32 and in parts in fp16, comfy-kitchen's with
    and without the copies before it, and the kernel that writes a frame to its slot."""
    from lingbot_world.model.choice.tiles import Tile
    from lingbot_world.model.kernels import convolution as own

    half = with_sums_in_half()
    for shape, count in sorted(convolutions().items(), key=lambda each: -operations_of(*each[0]) * each[1]):
        kind, channels, out, height, width = shape
        words, work = f"{kind} {channels} to {out}, {height}x{width}, {count} times", operations_of(*shape)
        arguments = operands(*shape)
        shown(f"Triton, {words}", partial(timed, partial(own.convolve, *arguments), work))
        shown(f"sums in fp16, {words}", partial(in_half, half, own, arguments, work))
        if kind != "over time":
            continue
        shown(f"put, {words}", partial(put, own, *arguments))
        shown(f"comfy-kitchen, {words}", partial(kitchen, *shape[1:], work))
        if channels != out:
            continue
        shown(f"comfy-kitchen with copies, {words}", partial(kitchen, *shape[1:], work, copies=True))
        for tile in TILES[out]:
            half._tile = lambda *_any, tile=tile: Tile(*tile, described=False)
            shown(f"sums in fp16, tile {tile}, {words}", partial(in_half, half, own, arguments, work))
        half._tile = own._tile


def with_sums_in_half():
    """Return the module model/kernels/convolution.py with its sums over KA channels in fp16."""
    from lingbot_world.model.kernels import convolution as own

    text = Path(own.__file__).read_text(encoding="utf-8")
    assert SUM in text
    path = Path(tempfile.mkdtemp()) / "convolution_half.py"
    path.write_text(text.replace(SUM, SUM_IN_HALF), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("lingbot_world.model.kernels.convolution_half", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def operands(kind: str, channels: int, out: int, height: int, width: int) -> tuple:
    """Random arguments of the kernel of convolution.py."""
    frames, side = (1, 2) if kind == "doubling" else (3, 3 if kind == "over time" else 1)
    x = torch.randn(frames * (height + 1) * (width + 1), channels, device="cuda").half()
    depth = frames * side * side * channels
    weight = torch.randn(out * (4 if side == 2 else 1), depth, device="cuda").half() / depth**0.5
    slots = None if frames == 1 else torch.arange(4, dtype=torch.int32, device="cuda")
    return x, slots, weight, torch.zeros(out, device="cuda").half(), (height, width), side


def in_half(half, own, arguments: tuple, work: float) -> dict:
    """The time with sums in fp16, and the distance from sums in fp32."""
    off = relative(half.convolve(*arguments), own.convolve(*arguments))
    return {"dB": round(decibels(off), 1), **timed(partial(half.convolve, *arguments), work)}


def put(own, x, slots, _weight, _bias, size, _side) -> dict:
    """The kernel that writes a frame with its norm; its work is in bytes."""
    pixels = (size[0] + 1) * (size[1] + 1)
    run = partial(own.put, x[:pixels], x[0], 1e-24, x, slots, size)
    return timed(run, 4.0 * pixels * x.shape[1])


def kitchen(channels: int, out: int, height: int, width: int, work: float, copies: bool = False) -> dict:
    """comfy-kitchen's convolution over three frames."""
    from comfy_kitchen import fp16_conv3d
    from lingbot_world.vae.convolutions import convolve_by_kitchen

    weight = torch.randn(out, 3 * channels, 3, 3, device="cuda").half().contiguous(memory_format=torch.channels_last)
    bias = torch.zeros(out, device="cuda").half()
    if copies:
        frames = torch.randn(3, channels, height, width, device="cuda").half()
        frames = frames.contiguous(memory_format=torch.channels_last)
        return timed(partial(convolve_by_kitchen, frames.split(1), weight, bias), work)
    x = torch.randn(1, 3, height + 2, width + 2, channels, device="cuda").half().permute(0, 4, 1, 2, 3)
    kernel = weight.unflatten(1, (3, -1)).transpose(1, 2).contiguous(memory_format=torch.channels_last_3d)
    return timed(partial(fp16_conv3d, x, kernel, bias), work)


def attention() -> None:
    """comfy-kitchen's attention of a chunk to a full window, all of it and by kernels."""
    from comfy_kitchen import int8_attention

    heads = WIDTHS["1.3B"][2]
    q, *kv = (
        torch.randn(1, count, heads, 128, device="cuda").bfloat16().transpose(1, 2) for count in (TOKENS, KEYS, KEYS)
    )
    work = 4.0 * TOKENS * KEYS * heads * 128
    shown("int8_attention", partial(timed, partial(int8_attention, q, *kv), work))
    shown("int8_attention by kernels", lambda: profiled(partial(int8_attention, q, *kv)))


def products() -> None:
    """comfy-kitchen's products of a block, with rotated weights."""
    import comfy_kitchen
    from lingbot_world.model.ops.rotation import GROUP, encode_rotated

    dim, wide, _ = WIDTHS["1.3B"]
    for name, columns, out in (("q, k, v", dim, 3 * dim), ("o", dim, dim), ("up", dim, wide), ("down", wide, dim)):
        x = torch.randn(TOKENS, columns, device="cuda").bfloat16()
        weight = encode_rotated(torch.randn(out, columns, device="cuda").bfloat16())
        given = {"bias": torch.zeros(out, device="cuda").bfloat16(), "convrot": True, "convrot_groupsize": GROUP}
        run = partial(comfy_kitchen.int8_linear, x, weight.values, weight.scales.view(-1), **given)
        shown(f"int8_linear, {name}", partial(timed, run, 2.0 * TOKENS * columns * out))
        shown(f"int8_linear, {name}, by kernels", partial(profiled, run))
        if name == "down":
            shown("gelu, apart", lambda x=x: profiled(partial(torch.ops.aten.gelu_, x, approximate="tanh")))
            shown(
                "int8_linear, down, gelu in it, by kernels",
                lambda run=run: profiled(partial(run, input_act="gelu_tanh")),
            )


def block() -> None:
    """The kernels of a block of the 1.3B in a chunk with a full window."""
    folder = Path(tempfile.mkdtemp())
    for words, *how in (("8 bits", "8bit", "8bit"), ("exact", "auto", "auto")):
        shown(f"block, {words}", partial(launches, folder, "1.3B", *how))


def decoder() -> None:
    """The decoder with sums in fp32 and in fp16: its error, its time, and its kernels."""
    from lingbot_world.vae import pooled

    try_vae(True)
    pooled_init, half = pooled.PooledDecoder.__init__, with_sums_in_half()

    def init(self, *arguments, **settings):
        pooled_init(self, *arguments, **settings)
        self._kernels = half

    pooled.PooledDecoder.__init__ = init
    try_vae(True)


PARTS = {each.__name__: each for each in (peaks, attention, products, convolution, block, decoder)}


def dry() -> None:
    """Print what would be measured."""
    found = convolutions()
    for shape, count in found.items():
        print(*shape, "times", count, f"{count * operations_of(*shape) / 1e12:.3f} TFLOP")
    print("a latent frame:", f"{sum(operations_of(*each) * count for each, count in found.items()) / 1e12:.2f} TFLOP")
    print("tokens", TOKENS, "keys", KEYS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--dry", action="store_true", help="print the shapes only")
    options = parser.parse_args()
    importable()
    os.environ |= {"LINGBOT_WORLD_CARDS": "", "LINGBOT_WORLD_KERNELS": KERNELS}
    if options.dry:
        dry()
        return
    from play import play

    found = torch.cuda.get_device_properties(0)
    print(json.dumps({"card": found.name, "multiprocessors": found.multi_processor_count}), flush=True)
    play(PLAYED)
    with torch.no_grad():
        for part in options.parts:
            shown(part, lambda part=part: PARTS[part]() or {})


if __name__ == "__main__":
    main()
