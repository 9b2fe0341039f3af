"""The benchmark at toy size on a CPU, for regressions: the same parts as bench_gpu.py, in about a minute.

    python tools/bench/bench_cpu.py --save before.json
    python tools/bench/bench_cpu.py --compare before.json      # exits with 1 when a figure takes 1.25 times as long

Compare runs of one idle machine only."""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from bench_parts import bench_load, bench_run, bench_step, bench_text, geometry_of, step_inputs
from bench_report import Report
from lingbot_world.loaders import load_expert
from lingbot_world.toy import write_toy_package

SIZE, FRAMES = "240*416", 9


def measure(folder: Path, repeats: int) -> Report:
    report, package = Report(), write_toy_package(folder / "package")
    geometry = geometry_of(SIZE, FRAMES)
    expert = package / "high_noise_model_bnb_nf4"
    bench_load(report, expert, "cpu", torch.float32, 5 * repeats)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = load_expert(expert, "cpu", dtype)
        bench_step(report, model, step_inputs(model.config, geometry, "cpu"), repeats, name, cache=True)
    bench_text(report, package / "models_t5_umt5-xxl-enc-bf16.pth", package / "tokenizer", "cpu")
    bench_run(
        report,
        package,
        folder / "video/*.png",
        width=geometry.width,
        height=geometry.height,
        frame_num=FRAMES,
        sampling_steps=4,
        seed=0,
    )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", type=Path, help="write the figures to a JSON file")
    parser.add_argument("--compare", type=Path, help="such a file of an earlier run")
    parser.add_argument("--factor", type=float, default=1.25, help="what counts as slower (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), options.repeats)
    print(report.table())
    if options.save:
        report.save(options.save)
    slower = report.slower(options.compare, options.factor) if options.compare else []
    sys.exit("\n".join(["slower than before:", *slower]) if slower else None)


if __name__ == "__main__":
    main()
