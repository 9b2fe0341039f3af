"""Functions of comfy-kitchen that the engine calls or could call, tried on a GPU. See try_kernels.py."""

import json
import math
import time
import traceback
from functools import partial
from itertools import product

import torch
from torch.nn import functional as F

DTYPES = torch.bfloat16, torch.float16
LINEAR = (1, 1536, 1536), (1508, 1536, 8960), (6032, 8960, 1536), (1560, 5120, 13824)
"""Tokens, columns of the input, columns of the output."""
ATTENTION = (1508, 6032, 12, 128), (77, 1000, 4, 64), (780, 3120, 40, 128)
"""Queries, keys, heads, columns of a head."""
CHANNELS = (96, 96), (192, 192), (384, 384)


def relative(got, want) -> float:
    """The relative RMS error."""
    return float((got.float() - want.float()).norm() / want.float().norm())


def decibels(error: float) -> float:
    """A relative RMS error in dB."""
    return -20 * math.log10(max(error, 1e-12))


def shown(name: str, run) -> dict:
    """Return the result of `run`, or the reason of its failure, and print it as a line of JSON."""
    start = time.perf_counter()
    try:
        found = run()
    except Exception as reason:  # a kernel's failure is a result
        last = traceback.extract_tb(reason.__traceback__)[-1]
        said = " ".join(str(reason).split())[:200]
        found = {"failed": f"{type(reason).__name__}: {said}", "at": f"{last.filename}:{last.lineno}"}
    found = {"what": name, **found, "took_s": round(time.perf_counter() - start, 2)}
    print(json.dumps(found), flush=True)
    return found


def try_kitchen() -> list[dict]:
    """Try int8_linear, int8_attention, fp16_conv3d and adaln with the kernels that the library's registry selects for
    the card."""
    import comfy_kitchen as kitchen

    torch.manual_seed(0)
    found = [shown("comfy-kitchen", partial(_backends, kitchen))]
    for dtype, size, how in product(DTYPES, LINEAR, ({}, {"convrot": True})):
        name = f"int8_linear {dtype} {'x'.join(map(str, size))} {'convrot' if how else ''}"
        found.append(shown(name, partial(_linear, kitchen, dtype, size, how)))
    for dtype, size, sharp, split in product(DTYPES, ATTENTION, (False, True), (False, True)):
        name = f"int8_attention {dtype} {'x'.join(map(str, size))}{' sharp' * sharp}{' prequantized' * split}"
        found.append(shown(name, partial(_attention, kitchen, dtype, size, sharp, split)))
    found += [shown(f"fp16_conv3d {size}", partial(_convolution, kitchen, *size)) for size in CHANNELS]
    return [*found, shown("adaln", partial(_norm, kitchen))]


def replayed(make, inputs) -> float:
    """How far a recording of make(*inputs), replayed on new numbers, is from make() of the same."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        make(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = make(*inputs)
    for x in inputs:
        x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    return float((out.float() - make(*inputs).float()).abs().max())


def _backends(kitchen) -> dict:
    names = "available", "disabled", "unavailable_reason"
    return {"backends": {name: {key: found[key] for key in names} for name, found in kitchen.list_backends().items()}}


def _linear(kitchen, dtype, size, how) -> dict:
    from lingbot_world.model.choice.trials import seconds_of

    tokens, width, out = size
    x = torch.randn(tokens, width, device="cuda", dtype=dtype)
    weight, bias = torch.randn(out, width, device="cuda") / width**0.5, torch.randn(out, device="cuda", dtype=dtype)
    scales = weight.abs().amax(1, keepdim=True) / 127
    values = (weight / scales).round().to(torch.int8)
    if how:
        asked = {"weight": weight, "group_size": 256}
        values, scales = kitchen.registry.get_implementation("quantize_int8_convrot_weight", kwargs=asked)(weight, 256)
    scales = scales.float().view(-1).contiguous()
    arguments = {"weight": values, "weight_scale": scales, "bias": bias, "out_dtype": dtype}
    picked = kitchen.registry.get_capable_backend("int8_linear", {"x": x, **arguments})

    def run(x):
        return kitchen.int8_linear(x, **arguments, **how)

    error, seconds = relative(run(x), F.linear(x.float(), weight, bias.float())), seconds_of(lambda: run(x), x.device)
    found = {"backend": picked, "error": error, "replay_differs_by": replayed(run, [x])}
    return found | ({} if seconds is None else {"ms": 1e3 * seconds})


def _attention(kitchen, dtype, size, sharp, split) -> dict:
    queries, keys, heads, dim = size
    q, k, v = (torch.randn(1, heads, count, dim, device="cuda", dtype=dtype) for count in (queries, keys, keys))
    if sharp:  # scores as sharp as the real model's, and keys with large channels
        large = torch.rand(1, heads, 1, dim, device="cuda") < 0.1
        q, k = 1.7 * q, k + 8 * torch.randn(1, heads, 1, dim, device="cuda", dtype=dtype) * large

    def run(q, k, v):
        if split:
            return kitchen.int8_attention_from_prequantized(kitchen.prequantize_int8_attention(q, k, v))
        return kitchen.int8_attention(q, k, v)

    error = relative(run(q, k, v), F.scaled_dot_product_attention(q.float(), k.float(), v.float()))
    return {"error": error, "replay_differs_by": replayed(run, [q, k, v])}


def _convolution(kitchen, channels, out) -> dict:
    x = F.pad(torch.randn(1, channels, 3, 58, 104, device="cuda").half(), (1, 1, 1, 1))
    weight = torch.randn(out, channels, 3, 3, 3, device="cuda").half() / (27 * channels) ** 0.5
    bias = torch.randn(out, device="cuda").half()
    want = F.conv3d(x.float(), weight.float(), bias.float())
    x, weight = (each.to(memory_format=torch.channels_last_3d) for each in (x, weight))
    got, torchs = kitchen.fp16_conv3d(x, weight, bias), F.conv3d(x, weight, bias)
    return {"dB": decibels(relative(got, want)), "torch_dB": decibels(relative(torchs, want))}


def _norm(kitchen) -> dict:
    shapes = (1, 6032, 1536), (1, 1, 1536), (1, 1, 1536)
    x, scale, shift = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    want = F.layer_norm(x.float(), (1536,)) * (1 + scale.float()) + shift.float()
    return {"error": relative(kitchen.adaln(x, scale, shift), want)}
