"""Time and memory at full size on a GPU, with random weights made on the spot; one table at the end.

    python tools/bench/bench_gpu.py --folder SCRATCH                             # all parts and a short run
    python tools/bench/bench_gpu.py --folder SCRATCH --only run --cap 8          # play a smaller card (GB)
    python tools/bench/bench_gpu.py --folder SCRATCH --only step --profile       # what a step is made of
    python tools/bench/bench_gpu.py --folder SCRATCH --only step --arithmetic fp8 --attention 8bit  # in 8 bits

Needs 31 GB in SCRATCH for a package that is made once. Run it from an environment where `lingbot_world` can be
imported; `docs/benchmarks.md` keeps the figures."""

import argparse
import os
import traceback
from functools import partial
from pathlib import Path

import random_package
import torch
from bench_parts import bench_load, bench_run, bench_step, bench_text, bench_tiny, bench_vae, geometry_of, step_inputs
from bench_report import GB, Report, free, gpu_parser, print_profile, ways_of
from lingbot_world.loaders import load_expert
from lingbot_world.model.memory import activation_bytes
from lingbot_world.options import Precision

PARTS = ("load", "step", "text", "vae", "run")
FULL = random_package.FULL


def bench_steps(report: Report, package: Path, options: argparse.Namespace) -> None:
    """NF4 with its estimate and profile, then in 8 bits, on the same inputs."""
    inputs = step_inputs(FULL, geometry_of(options.size, options.frame_num))
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
        report.add(f"{name}: forward against bf16", ((got - want).norm() / want.norm()).item(), "", "relative RMS")
        if options.profile:
            print_profile(partial(model, **inputs))
    model.set_arithmetic("auto")
    model.set_attention("auto")
    report.add("peak over the weights, estimate", activation_bytes(FULL, *inputs["x"].shape[2:]) / GB, "GB")
    if options.profile:
        print_profile(partial(model, **inputs))


def play_card(gigabytes: float) -> None:
    """Limit torch's GPU memory to this many GB, of which half a GB is for the CUDA context."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((gigabytes - 0.5) * GB / total)


def parse_options() -> argparse.Namespace:
    parser = gpu_parser(__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--frame_num", type=int, default=81)
    parser.add_argument("--steps", type=int, default=4, help="of the run (%(default)s)")
    parser.add_argument("--residency", default="auto", help="of the run (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as the command does
    options, report = parse_options(), Report()
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
    geometry = geometry_of(options.size, options.frame_num)
    if "vae" in options.only:
        bench_vae(report, random_package.vae(package), (geometry.lat_h, geometry.lat_w))
        bench_tiny(report, (geometry.lat_h, geometry.lat_w))
    if "run" in options.only:
        bench_run(
            report,
            random_package.whole(package),
            options.folder / "video/*.png",
            width=geometry.width,
            height=geometry.height,
            frame_num=options.frame_num,
            sampling_steps=options.steps,
            shift=15.0,
            seed=0,
            residency=options.residency,
        )
    print(report.table())


if __name__ == "__main__":
    main()
