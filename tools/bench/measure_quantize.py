"""What quantizing adds to a process, and how fast it is: anonymous memory, source GB/s, beside bitsandbytes' own rate.

    python tools/bench/measure_quantize.py FOLDER [--device cuda] [--search] [--keep] [--dim 5120 --layers 2 ...]

Makes a random fp32 model of the real layers' sizes in FOLDER (one block's weights serve all blocks; left there with
--keep, used again when it is there), quantizes it in a fresh process, and exits with 1 when its anonymous memory peaked
above 1.5 GB over what it was before. Linux only.
"""

import argparse
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from make_random_expert import add_size_arguments, config_from, random_tensors
from measure_memory import GB, anonymous_bytes
from memory_watch import Peak, in_fresh_process

LIMIT_GB = 1.5


def measure(source: Path, target: Path, device: str, search: bool) -> dict[str, float]:
    import torch
    from lingbot_world.headless.command.cli import progress_bar
    from lingbot_world.quantize import QuantizeOptions, plan_quantize, quantize

    torch.zeros(1, device=device)
    plan = plan_quantize(source, target, QuantizeOptions(search=search, device=device))
    before, begin, busy = anonymous_bytes(), time.perf_counter(), time.process_time()
    with Peak(anonymous_bytes, 0.002) as peak:
        metas = quantize(plan, progress_bar)
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    parameters = sum(meta["sizes"]["parameters"] for meta in metas.values()) / 1e6
    errors = [error for meta in metas.values() for error in meta["relative_rms"].values()]
    return {
        "source, GB": plan.jobs[0].source.nbytes / GB,
        "seconds": seconds,
        "source, GB/s": plan.jobs[0].source.nbytes / GB / seconds,
        "weights, millions/s": parameters / seconds,
        "weights, millions a CPU second": parameters / busy,
        "anonymous peak over the start, GB": (peak.bytes - before) / GB,
        "relative error": sum(errors) / len(errors),
    }


def bitsandbytes_rate(device: str) -> dict[str, float]:
    """Millions of weights a second of quantize_4bit, and of `codec.encode`, on one weight of 5120 x 5120."""
    import torch
    from lingbot_world.model.quantized import codec

    weight = torch.randn(5120, 5120, device=device)
    calls = {
        "codec.encode": lambda: codec.encode(weight),
        "codec.encode with search": lambda: codec.encode(weight, search=True),
    }
    if find_spec("bitsandbytes"):
        from bitsandbytes.functional import quantize_4bit

        calls["bitsandbytes"] = lambda: quantize_4bit(weight, None, None, 64, True, "nf4")
    rates = {}
    for name, call in calls.items():
        seconds, busy = (min(times) for times in zip(*(_seconds(call, device) for _ in range(3)), strict=True))
        rates |= {
            f"{name}, millions/s": weight.numel() / 1e6 / seconds,
            f"{name}, millions a CPU second": weight.numel() / 1e6 / busy,
        }
    return rates


def _seconds(call, device: str) -> tuple[float, float]:
    """Seconds of a call, and seconds that the CPUs were busy with it."""
    import torch

    begin, busy = time.perf_counter(), time.process_time()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, time.process_time() - busy


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
    _remove(target)
    try:
        report = in_fresh_process(measure, source, target, args.device, args.search) | bitsandbytes_rate(args.device)
    finally:
        _remove(target)
        if not args.keep:
            shutil.rmtree(source, ignore_errors=True)
    for name, value in report.items():
        print(f"{name:48} {value:10.4f}")
    return int(report["anonymous peak over the start, GB"] > LIMIT_GB)


def make_source(folder: Path, args: argparse.Namespace) -> None:
    import torch
    from lingbot_world.quantize import writer

    folder.mkdir(parents=True, exist_ok=True)
    config = config_from(args)
    tensors = random_tensors(config, device=args.device, repeat_block=True, quantized=False)
    writer.write_expert(folder / "model.safetensors", config, tensors, quant_type=None, dtype=torch.float32)


def _remove(target: Path) -> None:
    """The package, and what a stopped run left of it: to go on with that would be no measurement."""
    for folder in (target, target.with_suffix(".part")):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
