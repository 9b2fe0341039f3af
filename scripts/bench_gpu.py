"""Time and memory of one expert at full size on a GPU, with random weights made on the spot.

    python scripts/bench_gpu.py                                  # kernels, step, load, switch
    python scripts/bench_gpu.py --only step --profile            # what a step is made of
    python scripts/bench_gpu.py --cap 24                         # play a smaller card (GB)

Run it from an environment where `lingbot_world` can be imported. Prints one line per figure; `docs/benchmarks.md` keeps
them."""

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

import torch
from bitsandbytes import functional as bnb
from lingbot_world.loaders.checkpoint import open_checkpoint
from lingbot_world.loaders.experts import load_expert
from lingbot_world.loaders.nf4 import frozen_parameter, nf4_tensor
from lingbot_world.loaders.quantize import encode
from lingbot_world.loaders.writer import write_expert
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.memory import activation_bytes

FULL = ModelConfig(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40, freq_dim=256, text_dim=4096)
GB = 1e9


def report(name: str, **figures) -> None:
    print(json.dumps({"figure": name, **figures}), flush=True)


def random_weight(shape: tuple[int, ...], nf4: bool, gain: float = 1.0) -> torch.Tensor:
    weight = (torch.randn(shape, device="cuda") * gain / shape[-1] ** 0.5).bfloat16()
    if not nf4:
        return weight
    packed, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
    return nf4_tensor(
        packed, state.absmax, state.code, state.state2.absmax, state.state2.code, state.offset, shape,
        64, state.state2.blocksize, torch.bfloat16, torch.bfloat16,
    )  # fmt: skip


def random_expert(config: ModelConfig, nf4: bool = True) -> LingBotWorldModel:
    """A whole expert on the GPU: unit-gain linear layers, norms near 1, small modulation."""
    model = LingBotWorldModel(config, device="meta", dtype=torch.bfloat16)
    for name, shape in config.parameter_shapes().items():
        if name.endswith("weight") and len(shape) == 2:
            value = random_weight(shape, nf4)
        elif "norm" in name and name.endswith("weight"):
            value = 1 + 0.02 * torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        else:
            value = 0.02 * torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, frozen_parameter(value))
    return model.eval()


def step_inputs(config: ModelConfig, frames: int, height: int, width: int, rows: int = 2) -> dict:
    grid = ((frames - 1) // 4 + 1, height // 8, width // 8)
    generator = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(shape, device="cuda", generator=generator)  # noqa: E731
    return {
        "x": draw(rows, config.in_dim, *grid),
        "timestep": torch.full((rows,), 900.0, device="cuda"),
        "context": draw(rows, 77, config.text_dim).bfloat16(),
        "camera": draw(1, config.control_channels, *grid).bfloat16(),
    }


def timed(step, repeats: int) -> tuple[float, float, float]:
    """Median seconds, seconds of the first call, and peak bytes over what was held before."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), first, torch.cuda.max_memory_allocated() - held


def bench_step(size: tuple[int, int, int], repeats: int, profile: bool, bf16: bool, capped: bool) -> None:
    model = random_expert(FULL)
    inputs = step_inputs(FULL, *size)
    cache = CameraCache()
    variants = {
        "camera": lambda: model(**inputs),
        "no camera": lambda: model(**{**inputs, "camera": None}),
    }
    if not capped:
        variants["camera cache"] = lambda: model(**inputs, options={"camera_cache": cache})
    for name, step in variants.items():
        seconds, first, peak = timed(step, repeats)
        report(f"CFG step NF4, {name}", s=round(seconds, 3), first_s=round(first, 2), peak_over_GB=round(peak / GB, 2))
    cache.clear()
    report("estimate of the peak over the weights", GB=round(activation_bytes(FULL, *inputs["x"].shape[2:]) / GB, 2))
    report("finite", value=bool(torch.isfinite(model(**inputs)).all()))
    if profile:
        print_profile(lambda: model(**inputs))
    del model
    if bf16:
        gc.collect()
        torch.cuda.empty_cache()
        model = random_expert(FULL, nf4=False)
        seconds, _, peak = timed(lambda: model(**inputs), repeats)
        report("CFG step bf16 weights, camera", s=round(seconds, 3), peak_over_GB=round(peak / GB, 2))


def print_profile(step) -> None:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize()
    print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=70))


def bench_kernels() -> None:
    """Fused kernels against plain torch, on one row of full width."""
    from lingbot_world.model import pointwise

    generator = torch.Generator("cuda").manual_seed(1)
    draw = lambda *shape: torch.randn(shape, device="cuda", generator=generator)  # noqa: E731
    tokens, dim, half = 32760, FULL.dim, FULL.head_dim // 2
    x, y = draw(tokens, dim), draw(tokens, dim).bfloat16()
    angles = draw(tokens, half)
    cases = {
        "layer_norm": (x, 1 + 0.1 * draw(dim), draw(dim), 1e-6, torch.bfloat16),
        "rms_norm_": (y, draw(dim), 1e-6),
        "rms_rope_": (y, draw(dim), angles.cos(), angles.sin(), 1e-6),
        "gated_add_": (x, y, draw(dim)),
        "affine_": (x, y, draw(tokens, dim).bfloat16()),
    }
    for name, (first, *rest) in cases.items():
        outs, times = {}, {}
        for mode in ("eager", "triton"):
            run = pointwise.implementation(name, "cuda", mode)
            outs[mode] = run(first.clone(), *rest)
            scratch = first.clone()
            times[mode] = timed(lambda: run(scratch, *rest), 10)[0]  # noqa: B023
        error = (outs["eager"].double() - outs["triton"].double()).norm() / outs["eager"].double().norm()
        report(f"kernel {name}", relative=float(error), eager_ms=round(times["eager"] * 1e3, 3),
               triton_ms=round(times["triton"] * 1e3, 3))  # fmt: skip


def write_random_expert(path: Path, config: ModelConfig) -> None:
    """A file of the community package's format; linear layers of one shape share their random bytes."""
    made: dict[tuple[int, ...], object] = {}

    def source(name: str, shape: tuple[int, ...]):
        if not (name.endswith("weight") and len(shape) == 2):
            return 0.02 * torch.randn(shape)
        if shape not in made:
            made[shape] = encode(torch.randn(shape, device="cuda") / shape[1] ** 0.5, 64, True, "nf4")
            made[shape] = made[shape][0].cpu(), type(made[shape][1])(*map(on_cpu, made[shape][1]))
        return made[shape]

    write_expert(path, config, ((name, source(name, shape)) for name, shape in config.parameter_shapes().items()))


def on_cpu(value):
    return value.cpu() if isinstance(value, torch.Tensor) else value


def bench_load(folder: Path, repeats: int) -> None:
    path = folder / "random_expert.safetensors"
    start = time.perf_counter()
    write_random_expert(path, FULL)
    nbytes = path.stat().st_size
    report("expert file", bytes=nbytes, written_s=round(time.perf_counter() - start, 1))
    seconds, resident = [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        resident.clear()
        resident.append(load_expert(path, "cuda", torch.bfloat16))
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    report("expert file, page cache to GPU", s=round(median, 3), GBps=round(nbytes / GB / median, 1),
           first_s=round(seconds[0], 3), all=[round(s, 3) for s in seconds[1:]])  # fmt: skip
    checkpoint, seconds = open_checkpoint(path), []
    for _ in range(repeats):
        start = time.perf_counter()
        resident.clear()
        resident.append(load_expert(checkpoint, "cuda", torch.bfloat16))
        seconds.append(time.perf_counter() - start)
    report("switch to the other expert, one resident", s=round(statistics.median(seconds), 3))
    path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["kernels", "load", "step"])
    parser.add_argument("--size", default="480*832")
    parser.add_argument("--frame_num", type=int, default=81)
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the random expert is written")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cap", type=float, help="GB of GPU memory to play with")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="also the same step with bf16 weights")
    options = parser.parse_args()
    if options.cap:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(options.cap * GB / total)
    report("machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__, script=Path(__file__).name)
    height, width = map(int, options.size.split("*"))
    if "kernels" in options.only:
        bench_kernels()
    if "load" in options.only:
        bench_load(options.folder, options.repeats)
    if "step" in options.only:
        size = options.frame_num, height, width
        bench_step(size, options.repeats, options.profile, options.bf16, capped=bool(options.cap))


if __name__ == "__main__":
    main()
