"""Time and memory at full size on a GPU, with random weights made on the spot; one table at the end.

    python tools/bench/bench_gpu.py --folder SCRATCH                             # all parts and a short run
    python tools/bench/bench_gpu.py --folder SCRATCH --only run --cap 8          # play a smaller card (GB)
    python tools/bench/bench_gpu.py --folder SCRATCH --only step --arithmetic fp8 --attention 8bit  # in 8 bits

Needs 31 GB in SCRATCH and an environment with `lingbot_world`; `docs/benchmarks.md` has the figures."""

import argparse
import math
import os
import statistics
import time
import traceback
from functools import partial
from pathlib import Path

import random_package
import torch
from bench_common import GB, Report, StageMemory, free, geometry_of, gpu_parser, normal_draw, play_card, timed, ways_of
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.process.profile import Stage, StageRecorder
from lingbot_world.headless.run import run
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.memory import activation_bytes
from lingbot_world.options import Precision
from lingbot_world.pipeline.geometry import Geometry
from lingbot_world.pipeline.memory import estimate_text
from lingbot_world.text import NEGATIVE_PROMPT, encode
from lingbot_world.text.weights import open_weights
from lingbot_world.vae import VideoDecoder, load_vae, tiny

PARTS = ("load", "step", "text", "vae", "run")
FULL = random_package.FULL
PROMPT = "The video presents a soaring journey through a fantasy jungle, towards a castle on a green hill."


def step_inputs(config: ModelConfig, geometry: Geometry) -> dict:
    """Return random arguments of a guided forward on the GPU, with one camera for both rows."""
    grid, draw = (geometry.lat_f, geometry.lat_h, geometry.lat_w), normal_draw()
    return {
        "x": draw((2, config.in_dim, *grid)),
        "timestep": torch.full((2,), 900.0, device="cuda"),
        "context": draw((2, min(77, config.text_len), config.text_dim)),
        "camera": draw((1, config.control_channels, *grid)),
    }


def bench_step(
    report: Report, model: LingBotWorldModel, inputs: dict, repeats: int, name: str, cache: bool
) -> torch.Tensor:
    """Report a guided step, with `cache` also with the camera cache. Return its result."""
    ways = {"camera": {}} | ({"camera cache": {"camera_cache": CameraCache()}} if cache else {})
    for variant, options in ways.items():
        seconds, peak = timed(partial(model, **inputs, options=options), repeats)
        report.add(f"CFG step, {name}, {variant}", seconds, "s", f"{peak / GB:.2f} GB over the weights")
    out = model(**inputs)
    if not out.isfinite().all():
        raise SystemExit("the step's result is not finite")
    return out


def bench_steps(report: Report, package: Path, options: argparse.Namespace) -> None:
    """Report NF4 with its estimate and profile, then 8 bits on the same inputs."""
    inputs = step_inputs(FULL, geometry_of(options.size))
    model = load_expert(random_package.expert(package, "high"), "cuda")
    want = bench_step(report, model, inputs, options.repeats, "NF4", cache=not options.cap)
    for attention, arithmetic in ways_of(options):
        free()
        model.set_attention(attention)
        model.set_arithmetic(arithmetic)
        name = f"NF4, {arithmetic}" + ", attention in 8 bits" * (attention == "8bit")
        try:
            got = bench_step(report, model, inputs, options.repeats, name, cache=not options.cap)
        except Exception:  # the others continue
            traceback.print_exc()
            continue
        estimate = activation_bytes(FULL, *inputs["x"].shape[2:], Precision(torch.bfloat16, arithmetic, attention))
        report.add(f"{name}: peak over the weights, estimate", estimate / GB, "GB")
        report.add_error(f"{name}: forward against bf16", got, want)
        if options.profile:
            report.profile(partial(model, **inputs))
    model.set_arithmetic("auto")
    model.set_attention("auto")
    report.add("peak over the weights, estimate", activation_bytes(FULL, *inputs["x"].shape[2:]) / GB, "GB")
    if options.profile:
        report.profile(partial(model, **inputs))


def bench_load(report: Report, path: Path, repeats: int) -> None:
    """Report loads from the page cache, as a new load and as a switch (the other expert resident)."""
    size, memory = open_checkpoint(path).nbytes, StageMemory()
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
    """Report two prompts, twice: the first time loads CUDA's libraries."""
    memory = StageMemory()
    with StageRecorder(torch.device("cuda"), memory.show) as stages:
        for name in ("first", "second"):
            stages.begin(name)
            encode([PROMPT, NEGATIVE_PROMPT], encoder, tokenizer, "cuda", torch.bfloat16)
            torch.cuda.synchronize()
    _add_stages(report, "text", stages.stages, memory)
    report.add("text, estimate", estimate_text(open_weights(encoder).config, torch.bfloat16).total / GB, "GB")


def bench_vae(report: Report, file: Path, size: tuple[int, int]) -> None:
    """Report decoding three latent frames, the third time, and one by one; dB against fp32 without TF32."""
    latents, want, float32 = normal_draw()((3, 1, 16, 3, *size)), None, torch.float32
    ways = {"fp32 without TF32": float32, "fp32": float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    for name, dtype in ways.items():
        free()
        torch.backends.cudnn.allow_tf32 = want is not None
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
    drawn = {name: torch.randn(shape, device="cuda").half() * 0.1 for name, shape in tiny.shapes().items()}
    decoder, latent = tiny.TinyDecoder(drawn), torch.randn((1, 16, 4, *size), device="cuda")
    decoder.decode(latent)
    report.add("tiny decoder, 16 frames", timed(lambda: decoder.decode(latent), 9)[0], "s")


def bench_run(report: Report, package: Path, output: Path, **options) -> None:
    """Report each stage of `lingbot-world generate` on the package's example, and the share of sampling."""
    files = {"ckpt_dir": package, "image": package / "example/image.png", "action_path": package / "example"}
    plan = make_plan(GenerateOptions(**files, prompt=PROMPT, output=output, shift=15.0, seed=0, **options))
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


def main() -> None:
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as the command does
    parser, report = gpu_parser(__doc__), Report()
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--steps", type=int, default=4, help="of the run (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    package = options.folder / "models/lingbot_world/bench"  # where bench_comfyui.py has it too
    if options.cap:
        play_card(options.cap)
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    if "load" in options.only:
        bench_load(report, random_package.expert(package, "high"), 3 * options.repeats)
        free()
    if "step" in options.only:
        bench_steps(report, package, options)
        free()
    if "text" in options.only:
        bench_text(report, *random_package.text_encoder(package))
    geometry = geometry_of(options.size)
    if "vae" in options.only:
        bench_vae(report, random_package.vae(package), (geometry.lat_h, geometry.lat_w))
    if "run" in options.only:
        size = {"width": geometry.width, "height": geometry.height, "frame_num": 81}
        output = options.folder / "video/*.png"
        bench_run(report, random_package.whole(package), output, sampling_steps=options.steps, **size)
    print(report.table())


if __name__ == "__main__":
    main()
