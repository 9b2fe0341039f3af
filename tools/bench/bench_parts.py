"""The parts of bench_gpu.py: a step, a load and a switch, text encoder, VAE, a whole run."""

import math
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from bench_report import GB, Report, free, timed
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.process.profile import Stage, StageRecorder
from lingbot_world.headless.run import run
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.pipeline.geometry import Geometry, explicit_geometry
from lingbot_world.pipeline.memory import estimate_text
from lingbot_world.text import NEGATIVE_PROMPT, encode
from lingbot_world.text.weights import open_weights
from lingbot_world.vae import VideoDecoder, load_vae, tiny
from memory_watch import StageMemory

PROMPT = "The video presents a soaring journey through a fantasy jungle, towards a castle on a green hill."


def step_inputs(config: ModelConfig, geometry: Geometry) -> dict:
    """Random arguments of a guided forward on the GPU: latent, timestep, prompts, one camera for both rows."""
    grid = geometry.lat_f, geometry.lat_h, geometry.lat_w
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator)

    return {
        "x": draw(2, config.in_dim, *grid),
        "timestep": torch.full((2,), 900.0, device="cuda"),
        "context": draw(2, min(77, config.text_len), config.text_dim),
        "camera": draw(1, config.control_channels, *grid),
    }


def bench_step(
    report: Report, model: LingBotWorldModel, inputs: dict, repeats: int, name: str, cache: bool
) -> torch.Tensor:
    """Seconds and memory of a guided step, if `cache` also with the camera cache. Returns the step's result."""
    for variant, options in {"camera": {}, "camera cache": {"camera_cache": CameraCache()}}.items():
        if options and not cache:
            continue
        seconds, peak = timed(partial(model, **inputs, options=options), repeats)
        report.add(f"CFG step, {name}, {variant}", seconds, "s", f"{peak / GB:.2f} GB over the weights")
    out = model(**inputs)
    if not out.isfinite().all():
        raise SystemExit("the step's result is not finite")
    return out


def bench_load(report: Report, path: Path, repeats: int) -> None:
    """Seconds from the page cache, as a new load and as a switch (the header already read, the other expert there)."""
    size = open_checkpoint(path).nbytes
    memory = StageMemory()
    with StageRecorder(torch.device("cuda"), memory.show) as stages:
        stages.begin("first load")
        resident = [load_expert(path, "cuda", torch.bfloat16)]
        torch.cuda.synchronize()
    for name, source in (("expert file, page cache to device", path), ("switch", open_checkpoint(path))):
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            resident.clear()
            resident.append(load_expert(source, "cuda", torch.bfloat16))
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        median = statistics.median(seconds)
        each = ", ".join(f"{second:.2f}" for second in seconds)
        report.add(name, median, "s", f"{size / GB / median:.1f} GB/s; single ones {each}")
    _add_stages(report, "load", stages.stages, memory)


def bench_text(report: Report, encoder: Path, tokenizer: Path) -> None:
    """Two prompts, the second time: the first one loads CUDA's libraries."""
    memory = StageMemory()
    with StageRecorder(torch.device("cuda"), memory.show) as stages:
        for name in ("first", "second"):
            stages.begin(name)
            encode([PROMPT, NEGATIVE_PROMPT], encoder, tokenizer, "cuda", torch.bfloat16)
            torch.cuda.synchronize()
    _add_stages(report, "text", stages.stages, memory)
    report.add("text, estimate", estimate_text(open_weights(encoder).config, torch.bfloat16).total / GB, "GB")


def bench_vae(report: Report, file: Path, size: tuple[int, int]) -> None:
    """Decoding three latent frames of that height and width, the third time, and then one by one; against fp32 without
    TF32."""
    generator = torch.Generator("cuda").manual_seed(0)
    latents = torch.randn((3, 1, 16, 3, *size), device="cuda", generator=generator)
    ways = {
        "fp32 without TF32": (torch.float32, False),
        "fp32": (torch.float32, True),
        "fp16": (torch.float16, True),
        "bf16": (torch.bfloat16, True),
    }
    want = None
    for name, (dtype, tf32) in ways.items():
        free()
        torch.backends.cudnn.allow_tf32 = tf32
        torch.cuda.reset_peak_memory_stats()
        decoder = VideoDecoder(load_vae(file, device="cuda", dtype=dtype), *size)
        for latent in latents:
            begin = time.perf_counter()
            frames = decoder.decode(latent)
            seconds = time.perf_counter() - begin
        frames = frames.double()
        want = frames if want is None else want
        error = (frames - want).square().mean().item()
        quality = f", {10 * math.log10(255**2 / error):.1f} dB" if error else ""
        report.add(f"VAE decode in {name}", seconds, "s", f"{torch.cuda.max_memory_allocated() / GB:.2f} GB{quality}")
        begin = time.perf_counter()
        for part in latents[-1].split(1, dim=2):
            decoder.decode(part)
        report.add(f"VAE decode in {name}, one latent frame at a time", time.perf_counter() - begin, "s")
        del decoder


def bench_tiny(report: Report, size: tuple[int, int]) -> None:
    """16 frames of that latent height and width by the tiny decoder, with random weights; the median of nine times."""
    drawn = {name: torch.randn(shape, device="cuda").half() * 0.1 for name, shape in tiny.shapes().items()}
    decoder = tiny.TinyDecoder(drawn)
    latent = torch.randn((1, 16, 4, *size), device="cuda")
    decoder.decode(latent)
    report.add("tiny decoder, 16 frames", timed(lambda: decoder.decode(latent), 9)[0], "s")


def bench_run(report: Report, package: Path, output: Path, **options) -> None:
    """Time each stage of `lingbot-world generate` on the package's example, and the share of sampling."""
    example = package / "example"
    plan = make_plan(
        GenerateOptions(
            ckpt_dir=package, image=example / "image.png", prompt=PROMPT, output=output, action_path=example, **options
        )
    )
    begin, memory = time.perf_counter(), StageMemory()
    stages = run(plan, memory.show).stages
    seconds = time.perf_counter() - begin
    _add_stages(report, "run", stages, memory)
    sampling = sum(stage.seconds for stage in stages if stage.name.endswith("steps"))
    report.add("whole run", seconds, "s", f"{plan.options.sampling_steps} steps")
    report.add("sampling's share of the whole run", sampling / seconds, "")


def _add_stages(report: Report, part: str, stages: list[Stage], memory: StageMemory) -> None:
    for stage in stages:
        gpu = "" if stage.gpu_peak is None else f", {stage.gpu_peak / GB:.2f} GB on the GPU"
        host = f"process {memory.peaks[stage.name] / GB:.2f} GB anonymous"
        report.add(f"{part}: {stage.name}", stage.seconds, "s", host + gpu)


def geometry_of(size: str, frames: int) -> Geometry:
    """The geometry of "height*width"."""
    height, width = map(int, size.split("*"))
    return explicit_geometry(width, height, frames)
