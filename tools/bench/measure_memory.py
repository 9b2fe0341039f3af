"""What loading a full-size expert (9.58 GB of NF4) adds to a process: anonymous memory, and GB/s to a GPU.

    python tools/bench/measure_memory.py FOLDER [--device cuda] [--keep] [--limit-gb 0.5] [--dim 128 --layers 2 ...]

Makes a random expert in FOLDER (left there with --keep, used again when it is already there), loads it in a fresh
process and exits with 1 when anonymous memory grew, or peaked, above the limit. On the CPU one block is decoded as
well. For a GPU the CUDA context is made before the first reading: it is the driver's, not the loader's. Linux only.
"""

import argparse
import re
import shutil
import sys
import time
from pathlib import Path

from memory_watch import Peak, in_fresh_process
from random_package import add_size_arguments, config_from, write_random_expert

GB = 1e9


def anonymous_bytes() -> int:
    """RssAnon: memory of this process that no file stands behind."""
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def private_dirty_bytes() -> int:
    """Pages of this process that were written to, copies of mapped pages included."""
    return 1024 * int(re.search(r"Private_Dirty:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())[1])


def measure(folder: Path, device: str) -> dict[str, float]:
    """What the first load adds; on a GPU also the seconds of a second one, whose buffers are pinned already."""
    import torch
    from lingbot_world.loaders import load_expert, open_checkpoint, warm

    checkpoint = open_checkpoint(folder)
    if device != "cpu":
        torch.zeros(1, device=device)
        warm(checkpoint).join()
    before, dirty = anonymous_bytes(), private_dirty_bytes()
    with Peak(anonymous_bytes, 0.002) as peak:
        seconds, model = _timed_load(load_expert, checkpoint, device)
    report = {
        "anonymous growth": (anonymous_bytes() - before) / GB,
        "anonymous peak": (peak.bytes - before) / GB,
        "private dirty growth": (private_dirty_bytes() - dirty) / GB,
        "file": checkpoint.nbytes / GB,
        "seconds": seconds,
    }
    if device == "cpu":
        report["growth after decoding block 0"] = _decode_block(model, anonymous_bytes, before)
    else:
        del model
        report["seconds again"], model = _timed_load(load_expert, checkpoint, device)
    return report


def _timed_load(load_expert, checkpoint, device: str):
    begin = time.perf_counter()
    model = load_expert(checkpoint, device)
    return time.perf_counter() - begin, model


def _decode_block(model, anonymous_bytes, before: int) -> float:
    for parameter in model.blocks[0].parameters():
        if hasattr(parameter, "decode"):
            parameter.decode(parameter.scales.code.dtype)
    return (anonymous_bytes() - before) / GB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", action="store_true", help="leave the expert there")
    parser.add_argument("--limit-gb", type=float, default=0.5)
    add_size_arguments(parser)
    args = parser.parse_args()
    expert, made = args.folder / "high_noise_model_bnb_nf4", False
    try:
        if not (expert / "model.safetensors").exists():
            made = True
            write_random_expert(expert, config_from(args), device=args.device, repeat_block=True)
        report = in_fresh_process(measure, expert, args.device)
    finally:
        if made and not args.keep:
            shutil.rmtree(expert, ignore_errors=True)
    for name, value in report.items():
        print(f"{name:32} {value:8.3f} {'s' if 'seconds' in name else 'GB'}")
    if args.device != "cpu":
        print(
            f"{'speed, first and second load':32} {report['file'] / report['seconds']:8.1f} "
            f"{report['file'] / report['seconds again']:.1f} GB/s"
        )
    return int(max(report["anonymous growth"], report["anonymous peak"]) > args.limit_gb)


if __name__ == "__main__":
    sys.exit(main())
