"""Decoders of the VAE, and launches of a block, tried on a GPU. See try_kernels.py."""

import json
import math
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path

import torch

BLOCKS = 1, 3
"""The numbers of blocks of two models; the difference of their launches gives the launches of a block."""
FORWARDS = 5
"""The forwards of a chunk: four steps and a clean pass."""
WIDTHS = {"1.3B": (1536, 8960, 12), "14B in NF4": (5120, 13824, 40)}
VIDEO, FRAMES = (58, 104), 4
"""The latent's size of the timed decode, 464x832, and its frames."""


def relative(got, want) -> float:
    """The relative RMS error."""
    return float((got.float() - want.float()).norm() / want.float().norm())


def decibels(error: float) -> float:
    """A relative RMS error in dB."""
    return -20 * math.log10(max(error, 1e-12))


def shown(name: str, run) -> None:
    """Print the result of `run`, or the reason of its failure, as a line of JSON."""
    start = time.perf_counter()
    try:
        found = run()
    except Exception as reason:  # a kernel's failure is a result
        last = traceback.extract_tb(reason.__traceback__)[-1]
        said = " ".join(str(reason).split())[:200]
        found = {"failed": f"{type(reason).__name__}: {said}", "at": f"{last.filename}:{last.lineno}"}
    found = {"what": name, **found, "took_s": round(time.perf_counter() - start, 2)}
    print(json.dumps(found), flush=True)


def try_vae(timed: bool, device: str = "cuda") -> None:
    """Decode random latents by each decoder: dB from the decode in fp32 (peak 2), and on the card itself the seconds of
    a latent frame at 464x832."""
    from lingbot_world.toy.weights import Weights
    from lingbot_world.vae import load_vae
    from lingbot_world.vae.convolutions import KitchenDecoder, convolution_of
    from lingbot_world.vae.network import Decoder
    from lingbot_world.vae.pooled import PooledDecoder
    from lingbot_world.vae.weights import vae_shapes

    random = Weights(0)
    whole = load_vae(
        {name: random.layer(name, shape, gain=1.0) for name, shape in vae_shapes(96).items()}, device=device
    )
    half = whole.decoding_in_half()
    latents = torch.randn(FRAMES, 1, 16, 20, 22, generator=torch.Generator().manual_seed(0))
    want = _decoded(Decoder(whole.weights), latents, whole)
    shown("VAE: the table's choice", lambda: {"chosen": convolution_of(torch.device(device))})
    for name, make in {
        "Triton, or ours": lambda recorded: PooledDecoder(half, recorded=recorded),
        "comfy-kitchen": lambda _recorded: KitchenDecoder(half.weights),
        "torch": lambda _recorded: Decoder(half.weights),
    }.items():
        shown(f"VAE by {name}", partial(_decode, make, latents, half, want, timed))


def _decode(make, latents, vae, want, timed: bool) -> dict:
    error = (_decoded(make(False), latents, vae) - want).square().mean().sqrt() / 2
    result = {"dB": decibels(float(error))}
    if timed:
        large = torch.randn(2 * FRAMES, 1, 16, *VIDEO, generator=torch.Generator().manual_seed(0))
        decoder = make(True)
        _decoded(decoder, large[:FRAMES], vae, kept=False)
        torch.cuda.synchronize()
        start = time.perf_counter()
        _decoded(decoder, large[FRAMES:], vae, kept=False)
        torch.cuda.synchronize()
        result["seconds_a_latent_frame"] = (time.perf_counter() - start) / FRAMES
    return result


@torch.no_grad()
def _decoded(decoder, latents, vae, kept: bool = True):
    frames = []
    for latent in latents:
        for frame in decoder.decode(vae.denormalized(latent)):
            frames += [frame.float().clamp(-1, 1)] if kept else []
    return torch.cat(frames) if kept else None


def try_launches(device: str = "cuda", size: tuple[int, int] = VIDEO, widths: dict | None = None) -> None:
    """Count the kernels and copies of a block in a forward, from a profile of a chunk with a full window."""
    folder = Path(tempfile.mkdtemp())
    for name, arithmetic, attention in product(widths or WIDTHS, ("bf16", "8bit"), ("auto", "8bit")):
        if (arithmetic == "bf16") != (attention == "auto"):
            continue
        run = partial(_launches, folder, name, (widths or WIDTHS)[name], (arithmetic, attention), device, size)
        shown(f"launches, {name}, {'exact' if attention == 'auto' else '8 bits'}", run)


def _launches(folder: Path, name: str, width, how: tuple[str, str], device: str, size: tuple[int, int]) -> dict:
    few, many = (_kernels(_model(folder, name, width, count, how, device), device, size) for count in BLOCKS)
    blocks, found = (BLOCKS[1] - BLOCKS[0]) * FORWARDS, Counter[str]()
    for each in {**few, **many}:
        kind = "fill" if each.startswith("Memset") else "copy" if each.startswith("Memcpy") else each[:70]
        found[kind] += many.get(each, 0) - few.get(each, 0)
    return {
        "a_block": sum(found.values()) / blocks,
        "kernels": {each: round(count / blocks, 2) for each, count in found.most_common() if count},
    }


def _model(folder: Path, name: str, width, count: int, how: tuple[str, str], device: str):
    from lingbot_world.loaders import load_expert
    from lingbot_world.model.config import ModelConfig

    sys.path.insert(0, str(Path(__file__).absolute().parent.parent / "bench"))
    from random_package import write_random_expert

    dim, feed_forward, heads = width
    rest = {"freq_dim": 256, "text_dim": 4096, "causal": True}
    config = ModelConfig(dim=dim, ffn_dim=feed_forward, num_heads=heads, num_layers=count, **rest)
    place = folder / f"{name.replace(' ', '')}-{count}" / "lingbot-world-v2-causal-fast"
    path = place / "model.safetensors"
    if not path.is_file():
        write_random_expert(place, config, bf16="NF4" not in name, device=device)
    arithmetic = "auto" if how[0] == "bf16" else how[0]
    return load_expert(path, device, torch.bfloat16, arithmetic=arithmetic, attention_mode=how[1], decoded_blocks=count)


def _kernels(model, device: str, size: tuple[int, int]) -> dict[str, int]:
    """Count what a GPU runs in the third chunk, by name; its window is full."""
    from lingbot_world.model.attention.choose_8bit import takes_operands
    from lingbot_world.model.kv.place import KeyValuePlace
    from lingbot_world.options import FAST_INDICES, Window
    from lingbot_world.pipeline.world import World, WorldMemory
    from lingbot_world.sampling import few_step_schedule

    memory = WorldMemory(KeyValuePlace(fp8=takes_operands(model.attention_mode, torch.device(device), model.config)))
    world = World(model, size, Window(2 * FRAMES, FRAMES), chunk=FRAMES, device=device, memory=memory)
    generator = torch.Generator(device).manual_seed(0)

    def draw(shape):
        return torch.randn(shape, device=device, generator=generator)

    world.prompt, schedule = draw((1, 77, 4096)), few_step_schedule(FAST_INDICES, 10.0)

    def chunk():
        noise, y, camera = (draw((1, channels, FRAMES, *size)) for channels in (16, 20, model.config.control_channels))
        world.chunk(noise, y, camera.cpu(), schedule, draw)

    chunk(), chunk(), chunk()
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if device == "cuda" else activity.CPU]) as profiler:
        chunk()
        if device == "cuda":
            torch.cuda.synchronize()
    return {each.key: each.count for each in profiler.key_averages() if device != "cuda" or each.device_time_total}


if __name__ == "__main__":  # the launches on the CPU, tiny, to see that they run
    os.environ["LINGBOT_WORLD_CARDS"] = ""
    try_launches("cpu", (4, 4), {"1.3B": (256, 512, 2)})
