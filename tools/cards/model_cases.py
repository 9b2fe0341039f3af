"""Decoders of the VAE, and launches of a block, tried on a GPU. See try_kernels.py."""

import json
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
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


def try_vae(timed: bool) -> None:
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
        {name: random.layer(name, shape, gain=1.0) for name, shape in vae_shapes(96).items()}, device="cuda"
    )
    half = whole.decoding_in_half()
    latents = torch.randn(FRAMES, 1, 16, 20, 22, generator=torch.Generator().manual_seed(0))
    want = decoded(Decoder(whole.weights), latents, whole)
    shown("VAE: the table's choice", lambda: {"chosen": convolution_of(torch.device("cuda"))})
    for name, make in {
        "Triton, or ours": lambda recorded: PooledDecoder(half, recorded=recorded),
        "comfy-kitchen": lambda _recorded: KitchenDecoder(half.weights),
        "torch": lambda _recorded: Decoder(half.weights),
    }.items():
        shown(f"VAE by {name}", partial(_decode, make, latents, half, want, timed))


def _decode(make, latents, vae, want, timed: bool) -> dict:
    error = (decoded(make(False), latents, vae) - want).square().mean().sqrt() / 2
    result = {"dB": decibels(float(error))}
    if timed:
        large = torch.randn(2 * FRAMES, 1, 16, *VIDEO, generator=torch.Generator().manual_seed(0))
        decoder = make(True)
        decoded(decoder, large[:FRAMES], vae, kept=False)
        torch.cuda.synchronize()
        start = time.perf_counter()
        decoded(decoder, large[FRAMES:], vae, kept=False)
        torch.cuda.synchronize()
        result["seconds_a_latent_frame"] = (time.perf_counter() - start) / FRAMES
        result["kernels"] = profiled(partial(decoded, decoder, large[FRAMES:], vae, kept=False), 1)
    return result


@torch.no_grad()
def decoded(decoder, latents, vae, kept: bool = True):
    frames = []
    for latent in latents:
        for frame in decoder.decode(vae.denormalized(latent)):
            frames += [frame.float().clamp(-1, 1)] if kept else []
    return torch.cat(frames) if kept else None


def try_launches() -> None:
    """Count the kernels and copies of a block in a forward, from a profile of a chunk with a full window."""
    folder = Path(tempfile.mkdtemp())
    for name, (words, *how) in product(WIDTHS, (("exact", "auto", "auto"), ("8 bits", "8bit", "8bit"))):
        shown(f"launches, {name}, {words}", partial(launches, folder, name, *how))


def launches(folder: Path, name: str, arithmetic: str, attention: str) -> dict:
    """The launches of a block in a forward, and of each kernel its launches and microseconds."""
    few, many = (_kernels(_model(folder, name, count, arithmetic, attention)) for count in BLOCKS)
    blocks, found = (BLOCKS[1] - BLOCKS[0]) * FORWARDS, {}
    for each in {**few, **many}:
        (count, time_), (less, less_time) = many.get(each, (0, 0.0)), few.get(each, (0, 0.0))
        if count != less:
            found[each] = round((count - less) / blocks, 2), round((time_ - less_time) / blocks, 1)
    return {"a_block": sum(count for count, _ in found.values()), "kernels": _by_time(found)}


def _by_time(kernels: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return dict(sorted(kernels.items(), key=lambda each: -each[1][1]))


def profiled(run: Callable[[], object], times: int = 5) -> dict[str, tuple[float, float]]:
    """What a GPU runs in a call of `run`, by name: launches and microseconds."""
    run()
    torch.cuda.synchronize()
    time.sleep(0.5)  # a GPU that works for long lowers its clock
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    found: dict[str, tuple[float, float]] = {}
    for each in profiler.key_averages():
        if each.device_time_total:
            kind = next((kind for kind in ("Memset", "Memcpy") if each.key.startswith(kind)), each.key[:110])
            count, spent = found.get(kind, (0.0, 0.0))
            found[kind] = count + each.count / times, spent + each.device_time_total / times
    return _by_time(found)


def _model(folder: Path, name: str, count: int, arithmetic: str, attention: str):
    from lingbot_world.loaders import load_expert
    from lingbot_world.model.config import ModelConfig

    sys.path.insert(0, str(Path(__file__).absolute().parent.parent / "bench"))
    from random_package import write_random_expert

    dim, feed_forward, heads = WIDTHS[name]
    rest = {"freq_dim": 256, "text_dim": 4096, "causal": True}
    config = ModelConfig(dim=dim, ffn_dim=feed_forward, num_heads=heads, num_layers=count, **rest)
    place = folder / f"{name.replace(' ', '')}-{count}" / "lingbot-world-v2-causal-fast"
    path = place / "model.safetensors"
    if not path.is_file():
        write_random_expert(place, config, bf16="NF4" not in name, device="cuda")
    how = {"arithmetic": arithmetic, "attention_mode": attention}
    return load_expert(path, "cuda", torch.bfloat16, decoded_blocks=count, **how)


def _kernels(model) -> dict[str, tuple[float, float]]:
    """What a GPU runs in a chunk whose window is full, by name: launches and microseconds."""
    from lingbot_world.model.attention.choose_8bit import takes_operands
    from lingbot_world.model.kv.place import KeyValuePlace
    from lingbot_world.options import FAST_INDICES, Window
    from lingbot_world.pipeline.world import World, WorldMemory
    from lingbot_world.sampling import few_step_schedule

    memory = WorldMemory(KeyValuePlace(fp8=takes_operands(model.attention_mode, torch.device("cuda"), model.config)))
    world = World(model, VIDEO, Window(2 * FRAMES, FRAMES), chunk=FRAMES, device="cuda", memory=memory)
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(shape):
        return torch.randn(shape, device="cuda", generator=generator)

    world.prompt, schedule = draw((1, 77, 4096)), few_step_schedule(FAST_INDICES, 10.0)

    def chunk():
        noise, y, camera = (draw((1, channels, FRAMES, *VIDEO)) for channels in (16, 20, model.config.control_channels))
        world.chunk(noise, y, camera.cpu(), schedule, draw)

    chunk(), chunk()
    return profiled(chunk, 1)
