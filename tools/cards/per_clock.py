"""Kernels that GeForce cards run, measured per clock and multiprocessor on the GPU at hand; see docs/cards.md.

    python tools/cards/per_clock.py

The GPU plays compute capability 12.0. Each result is a line of JSON."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise

import torch
from lingbot_world.model.ops.rotation import GROUP, encode_rotated
from lingbot_world.vae.network import Decoder
from lingbot_world.vae.weights import prepare, vae_shapes
from model_cases import FRAMES, VAE_WIDTH, VIDEO, WIDTHS, card_of, profiled, shown
from play import play

KERNELS = "int8=comfy-kitchen,attention-8bit=comfy-kitchen,convolution=triton"
TOKENS, KEYS = (count * VIDEO[0] * VIDEO[1] // 4 for count in (FRAMES, 18))
REFERENCE, COOL = 400, 0.06
"""Loops of the kernel whose time tells the clock; seconds of rest, because work lowers a GPU's clock."""


@lru_cache
def multiplying(kind: str = "fp16, sums in fp32") -> tuple[Callable[[], object], float]:
    """Return a kernel that only multiplies, always as many cycles, and its operations."""
    from tensor_cores import SUMS, multiply

    count, tile, depth = 2 * torch.cuda.get_device_properties(0).multi_processor_count, 128, 32
    x = torch.ones(tile * depth, device="cuda").to(torch.int8 if kind == "int8" else torch.float16)
    out, launch = torch.empty(tile, tile, device="cuda"), multiply[(count,)]
    run = partial(launch, x, out, REFERENCE, SUMS=SUMS[kind], TILE=tile, DEPTH=depth, num_warps=8)
    return run, 2.0 * tile * tile * depth * REFERENCE * count


def timed(run, operations: float) -> dict:
    """Return the microseconds of a call, and of the reference kernel before and after, which tell the clock."""
    (multiply, _), found = multiplying(), []
    run()
    torch.cuda.synchronize()
    for count in (2, 6, 6, 6):
        time.sleep(COOL)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        for number, (kernel, times) in enumerate(((multiply, 8), (multiply, 1), (run, count), (multiply, 1))):
            for _ in range(times):
                kernel()
            marks[number].record()
        torch.cuda.synchronize()
        before, all_, after = (1000 * start.elapsed_time(end) for start, end in pairwise(marks))
        found.append((round(all_ / count, 1), round(before, 1), round(after, 1)))
    best = min(found[1:])
    return {"us, reference before, after": found[1:], "TFLOP/s": round(operations / best[0] / 1e6, 1)}


def peaks() -> None:
    """Measure the tensor cores by instructions that GeForce has too, and the memory."""
    for kind in ("fp16, sums in fp32", "fp16, sums in fp16", "int8"):
        shown(f"peak, {kind}", partial(timed, *multiplying(kind)))
    for name, size in (("memory", 1 << 30), ("cache", TOKENS * WIDTHS["1.3B"][0] * 2)):
        x = torch.zeros(size // 2, dtype=torch.float16, device="cuda")
        shown(f"bytes of a copy, {name}", partial(timed, partial(torch.empty_like(x).copy_, x), 2.0 * size))


def convolutions() -> Counter:
    """Count a latent frame's convolutions as (kind, channels, out, height, width), on torch's device without data."""
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
    list(decoder.decode(latent))  # the video's first frame
    found.clear()
    list(decoder.decode(latent))
    return found


def operations_of(kind: str, channels: int, out: int, height: int, width: int) -> float:
    """Return the operations of a convolution in Triton's kernel, where doubling is four kernels of 2x2."""
    taps = {"over time": 27, "time only": 3, "doubling": 16}[kind]
    return 2.0 * taps * channels * out * height * width


def convolution() -> None:
    """Measure the decoder's largest convolutions by Triton and comfy-kitchen, and the frame writer."""
    from lingbot_world.model.choice.tiles import tile_of
    from lingbot_world.model.kernels import convolution as own

    for shape, count in sorted(convolutions().items(), key=lambda each: -operations_of(*each[0]) * each[1])[:7]:
        kind, channels, out, height, width = shape
        words, work = f"{kind} {channels} to {out}, {height}x{width}, {count} times", operations_of(*shape)
        arguments, tile = operands(*shape), tile_of(card_of(torch.device("cuda")), channels, out)
        for half in (False, True):
            own._tile = partial(lambda made, *_any: made, tile._replace(fp16_sums=half))
            run = partial(own.convolve, *arguments)
            shown(f"Triton, sums in fp{16 if half else 32}, {words}", partial(timed, run, work))
        if kind == "over time":
            shown(f"put, {words}", partial(put, own, *arguments))
            shown(f"comfy-kitchen, {words}", partial(kitchen, *shape[1:], work))


def operands(kind: str, channels: int, out: int, height: int, width: int) -> tuple:
    """Return random arguments of the kernel of convolution.py."""
    frames, side = (1, 2) if kind == "doubling" else (3, 3 if kind == "over time" else 1)
    x = torch.randn(frames * (height + 1) * (width + 1), channels, device="cuda").half()
    depth = frames * side * side * channels
    weight = torch.randn(out * (4 if side == 2 else 1), depth, device="cuda").half() / depth**0.5
    slots = None if frames == 1 else torch.arange(4, dtype=torch.int32, device="cuda")
    return x, slots, weight, torch.zeros(out, device="cuda").half(), (height, width), side


def put(own, x, slots, _weight, _bias, size, _side) -> dict:
    """Measure the kernel that writes a frame with its norm; its work is in bytes."""
    pixels = (size[0] + 1) * (size[1] + 1)
    run = partial(own.store, x[:pixels], x[0], 1e-24, x, slots, size)
    return timed(run, 4.0 * pixels * x.shape[1])


def kitchen(channels: int, out: int, height: int, width: int, work: float) -> dict:
    """Measure comfy-kitchen's convolution over three frames."""
    from comfy_kitchen import fp16_conv3d

    weight = torch.randn(out, 3 * channels, 3, 3, device="cuda").half()
    bias = torch.zeros(out, device="cuda").half()
    x = torch.randn(1, 3, height + 2, width + 2, channels, device="cuda").half().permute(0, 4, 1, 2, 3)
    kernel = weight.unflatten(1, (3, -1)).transpose(1, 2).contiguous(memory_format=torch.channels_last_3d)
    return timed(partial(fp16_conv3d, x, kernel, bias), work)


def attention() -> None:
    """Measure comfy-kitchen's attention of a chunk to a full window, all of it and by kernels."""
    from comfy_kitchen import int8_attention

    heads = WIDTHS["1.3B"][2]
    q, *kv = (
        torch.randn(1, count, heads, 128, device="cuda").bfloat16().transpose(1, 2) for count in (TOKENS, KEYS, KEYS)
    )
    work = 4.0 * TOKENS * KEYS * heads * 128
    shown("int8_attention", partial(timed, partial(int8_attention, q, *kv), work))
    shown("int8_attention by kernels", lambda: profiled(partial(int8_attention, q, *kv)))


def products() -> None:
    """Measure comfy-kitchen's products of a block, with rotated weights."""
    import comfy_kitchen

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
            shown("int8_linear, gelu in it, by kernels", partial(profiled, partial(run, input_act="gelu_tanh")))


def main() -> None:
    os.environ |= {"LINGBOT_WORLD_CARDS": "", "LINGBOT_WORLD_KERNELS": KERNELS}
    found = torch.cuda.get_device_properties(0)
    print(json.dumps({"card": found.name, "multiprocessors": found.multi_processor_count}), flush=True)
    play("12.0")
    with torch.no_grad():
        for part in (peaks, attention, products, convolution):
            shown(part.__name__, lambda part=part: part() or {})


if __name__ == "__main__":
    main()
