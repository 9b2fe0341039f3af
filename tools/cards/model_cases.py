"""What try_kernels.py and per_clock.py measure on a GPU: kernels, blocks of both models, decoders of the VAE."""

import json
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path

import torch
from lingbot_world.loaders import load_expert
from lingbot_world.model.attention.choose_8bit import check_8_bits, supports_fp8_cache
from lingbot_world.model.choice.card import card_of
from lingbot_world.model.choice.rates import LARGE_SIZES, SIZES
from lingbot_world.model.choice.table import candidates, missing
from lingbot_world.model.choice.trials import Size, try_all
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.kv.place import KeyValuePlace
from lingbot_world.options import FAST_INDICES, Window
from lingbot_world.pipeline.world import World, WorldMemory
from lingbot_world.sampling import few_step_schedule
from lingbot_world.toy.weights import Weights
from lingbot_world.vae import load_vae
from lingbot_world.vae.convolutions import KitchenDecoder, convolution_kernel
from lingbot_world.vae.network import Decoder
from lingbot_world.vae.pooled import PooledDecoder
from lingbot_world.vae.weights import vae_shapes

sys.path.insert(0, str(Path(__file__).absolute().parent.parent / "bench"))
from bench_common import normal_draw, relative
from random_package import VAE_WIDTH, write_random_expert

BLOCKS = 1, 3  # the numbers of blocks of two models; the difference of their launches gives the launches of a block
FORWARDS = 5  # the forwards of a chunk: four steps and a clean pass
WIDTHS = {"1.3B": (1536, 8960, 12), "14B in NF4": (5120, 13824, 40)}
VIDEO, FRAMES = (58, 104), 4  # the latent's size of the timed decode, 464x832, and its frames


def decibels(error: float) -> float:
    """Return a relative RMS error in dB."""
    return -20 * math.log10(max(error, 1e-12))


def shown(name: str, run) -> None:
    """Print the result of `run`, or its error, as a line of JSON."""
    start = time.perf_counter()
    try:
        found = run()
    except Exception as reason:  # a kernel's failure is a result
        last = traceback.extract_tb(reason.__traceback__)[-1]
        said = " ".join(str(reason).split())[:200]
        found = {"failed": f"{type(reason).__name__}: {said}", "at": f"{last.filename}:{last.lineno}"}
    found = {"what": name, **found, "took_s": round(time.perf_counter() - start, 2)}
    print(json.dumps(found), flush=True)


def try_candidates(timed: bool) -> None:
    """Try the candidates of each operation at the widths of both models."""
    device = torch.device("cuda", 0)
    for model, sizes in (("1.3B", SIZES | {"norms": Size(6032, 0, 1536)}), ("14B", LARGE_SIZES)):
        for work, size in sizes.items():
            shown(f"{work}, {model}", partial(_candidates, work, size, device, timed))


def _candidates(work, size, device, timed: bool) -> dict:
    card = card_of(device)
    absent = {each.name: why for each in candidates(work, card) if (why := missing(each.name, card)) is not None}
    present = [each for each in candidates(work, card) if each.name not in absent]
    return absent | {trial.name: trial._asdict() for trial in try_all(present, device, size, timed=timed)}


def random_expert(folder: Path, name: str, blocks: int, causal: bool = False) -> Path:
    """Return the weights of a few blocks of the width `name`, written if missing."""
    dim, feed_forward, heads = WIDTHS[name]
    rest = {"num_layers": blocks, "freq_dim": 256, "text_dim": 4096, "causal": causal}
    place = folder / f"{name.replace(' ', '')}-{blocks}" / ("lingbot-world-v2-causal-fast" if causal else "base")
    path, dtype = place / "model.safetensors", None if "NF4" in name else torch.bfloat16
    if not path.is_file():
        config = ModelConfig(dim=dim, ffn_dim=feed_forward, num_heads=heads, **rest)
        write_random_expert(place, config, dtype=dtype, device="cuda")
    return path


def try_models() -> None:
    """Compare a few blocks in each arithmetic and attention with exact bf16 of the same weights."""
    for name, blocks in (("1.3B", 6), ("14B in NF4", 2)):
        path, draw, grid = random_expert(Path(tempfile.mkdtemp()), name, blocks), normal_draw(seed=1), (3, *VIDEO)
        inputs = {
            "x": draw((1, 36, *grid)),
            "timestep": torch.tensor([900.0], device="cuda"),
            "context": draw((1, 40, 4096)),
            "camera": 0.47 * draw((1, 384, *grid)),
        }
        exact = load_expert(path, "cuda", torch.bfloat16)(**inputs)
        for arithmetic, attention in product(("bf16", "int8", "fp8", "8bit"), ("exact", "8bit")):
            run = partial(_forward, path, inputs, exact, arithmetic, attention)
            shown(f"{name}, {arithmetic}, attention {attention}", run)


def _forward(path: Path, inputs: dict, exact, arithmetic: str, attention: str) -> dict:
    model = load_expert(path, "cuda", torch.bfloat16, arithmetic=arithmetic, attention_mode=attention)
    notes = check_8_bits(arithmetic, attention, torch.device("cuda"), model.config)
    return {"dB": decibels(relative(model(**inputs), exact)), "notes": notes}


@cache
def random_vae():
    random = Weights(0)
    weights = {name: random.layer(name, shape, gain=1.0) for name, shape in vae_shapes(VAE_WIDTH).items()}
    return load_vae(weights, device="cuda")


def try_vae(timed: bool) -> None:
    """Decode by each decoder: dB from fp32 (peak 2), and if `timed` the seconds of a latent frame at 464x832."""
    whole, half = random_vae(), random_vae().decoding_in_half()
    latents = torch.randn(FRAMES, 1, 16, 20, 22, generator=torch.Generator().manual_seed(0))
    want = decoded(Decoder(whole.weights), latents, whole)
    shown("VAE: the table's choice", lambda: {"chosen": convolution_kernel(torch.device("cuda"))})
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
    """Return the launches of a block in a forward, and of each kernel its launches and microseconds."""
    few, many = (_kernels(random_expert(folder, name, count, True), arithmetic, attention) for count in BLOCKS)
    blocks, found = (BLOCKS[1] - BLOCKS[0]) * FORWARDS, {}
    for each in {**few, **many}:
        (count, time_), (less, less_time) = many.get(each, (0, 0.0)), few.get(each, (0, 0.0))
        if count != less:
            found[each] = round((count - less) / blocks, 2), round((time_ - less_time) / blocks, 1)
    return {"a_block": sum(count for count, _ in found.values()), "kernels": _by_time(found)}


def _by_time(kernels: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return dict(sorted(kernels.items(), key=lambda each: -each[1][1]))


def profiled(run: Callable[[], object], times: int = 5) -> dict[str, tuple[float, float]]:
    """Return launches and microseconds of what a GPU runs in a call of `run`, by name."""
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


def _kernels(path: Path, arithmetic: str, attention: str) -> dict[str, tuple[float, float]]:
    """Profile a chunk with a full window."""
    how = {"arithmetic": arithmetic, "attention_mode": attention}
    model = load_expert(path, "cuda", torch.bfloat16, decoded_blocks=max(BLOCKS), **how)
    memory = WorldMemory(
        KeyValuePlace(fp8=supports_fp8_cache(model.attention_mode, torch.device("cuda"), model.config))
    )
    world = World(model, VIDEO, Window(2 * FRAMES, FRAMES), chunk=FRAMES, device="cuda", memory=memory)
    draw, schedule = normal_draw(), few_step_schedule(FAST_INDICES, 10.0)
    world.prompt = draw((1, 77, 4096))

    def chunk():
        noise, y, camera = (draw((1, channels, FRAMES, *VIDEO)) for channels in (16, 20, model.config.control_channels))
        world.chunk(noise, y, camera.cpu(), schedule, draw)

    chunk(), chunk()
    return profiled(chunk, 1)
