"""What quantizing adds to a process, and how fast it is: anonymous memory, source GB/s, beside bitsandbytes' own rate.

    python scripts/measure_quantize.py FOLDER [--device cuda] [--search] [--keep] [--dim 5120 --layers 2 ...]

Makes a random fp32 model of the real layers' sizes in FOLDER (one block's weights serve all blocks; left there with
--keep, used again when it is there), quantizes it in a fresh process, and exits with 1 when its anonymous memory peaked
above 1.5 GB over what it was before. Linux only.
"""

import argparse
import multiprocessing
import shutil
import sys
import time
from pathlib import Path

from make_random_expert import add_size_arguments, config_from, random_tensors
from measure_memory import GB, Peak, anonymous_bytes

LIMIT_GB = 1.5


def measure(source: Path, target: Path, device: str, search: bool, results) -> None:
    import torch
    from lingbot_world.headless.cli import progress_bar
    from lingbot_world.quantize import QuantizeOptions, plan_quantize, quantize

    torch.zeros(1, device=device)
    plan = plan_quantize(source, target, QuantizeOptions(search=search, device=device))
    before, begin = anonymous_bytes(), time.perf_counter()
    with Peak() as peak:
        metas = quantize(plan, progress_bar)
    seconds = time.perf_counter() - begin
    errors = [error for meta in metas.values() for error in meta["relative_rms"].values()]
    results.put({
        "source, GB": plan.jobs[0].source.nbytes / GB,
        "seconds": seconds,
        "source, GB/s": plan.jobs[0].source.nbytes / GB / seconds,
        "weights, millions/s": sum(meta["sizes"]["parameters"] for meta in metas.values()) / 1e6 / seconds,
        "anonymous peak over the start, GB": (peak.bytes - before) / GB,
        "relative error": sum(errors) / len(errors),
    })  # fmt: skip


def bitsandbytes_rate(device: str) -> dict[str, float]:
    """Millions of weights a second of quantize_4bit, and of `codec.encode`, on one weight of 5120 x 5120."""
    import bitsandbytes.functional as functional
    import torch
    from lingbot_world.loaders import codec

    weight = torch.randn(5120, 5120, device=device)
    calls = {
        "bitsandbytes, millions/s": lambda: functional.quantize_4bit(weight, None, None, 64, True, "nf4"),
        "codec.encode, millions/s": lambda: codec.encode(weight),
        "codec.encode with search, millions/s": lambda: codec.encode(weight, search=True),
    }
    return {name: weight.numel() / 1e6 / min(_seconds(call, device) for _ in range(3)) for name, call in calls.items()}


def _seconds(call, device: str) -> float:
    import torch

    begin = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the source there")
    add_size_arguments(parser)
    args = parser.parse_args()
    source, target = args.folder / "source", args.folder / "quantized"
    if not (source / "model.safetensors").exists():
        make_source(source, args)
    shutil.rmtree(target, ignore_errors=True)
    try:
        report = _in_fresh_process(source, target, args.device, args.search) | bitsandbytes_rate(args.device)
    finally:
        shutil.rmtree(target, ignore_errors=True)
        if not args.keep:
            shutil.rmtree(source, ignore_errors=True)
    for name, value in report.items():
        print(f"{name:40} {value:10.4f}")
    return int(report["anonymous peak over the start, GB"] > LIMIT_GB)


def make_source(folder: Path, args: argparse.Namespace) -> None:
    import torch
    from lingbot_world.loaders import writer

    folder.mkdir(parents=True, exist_ok=True)
    config = config_from(args)
    tensors = random_tensors(config, device=args.device, repeat_block=True, quantized=False)
    writer.write_expert(folder / "model.safetensors", config, tensors, quant_type=None, dtype=torch.float32)


def _in_fresh_process(*arguments) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=measure, args=(*arguments, results))
    process.start()
    report = results.get() if not process.join() and not process.exitcode else None
    if report is None:
        raise SystemExit(f"the measuring process failed with {process.exitcode}")
    return report


if __name__ == "__main__":
    sys.exit(main())
