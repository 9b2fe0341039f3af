"""Seconds and memory of a causal model's chunks at full size on a GPU, with random weights made on the spot.

    python scripts/bench_causal.py --folder SCRATCH                          # keys and values on the GPU, 8 bits, host
    python scripts/bench_causal.py --folder SCRATCH --storages host --cap 8  # play a smaller card (GB)

A chunk is five forwards over 12 frames; its window is full from the chunk on that the table names."""

import argparse
import dataclasses
import gc
import time
from pathlib import Path

import random_package
import torch
from bench_gpu import FULL, play_card
from bench_kernels import print_profile
from bench_parts import geometry_of
from bench_report import GB, Report
from lingbot_world.headless.profile import anonymous_memory
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.pipeline import CHUNK, World
from lingbot_world.sampling import FAST_INDICES, few_step_schedule

STORAGES = {
    "gpu": {},
    "8bit": {"eight_bit": True},
    "host": {"on_host": True},
    "host8bit": {"eight_bit": True, "on_host": True},
}


def bench_rollout(report: Report, model, options: argparse.Namespace, name: str, **storage) -> torch.Tensor:
    """Chunks with random inputs; each one's seconds, the GPU's peak, host memory. Returns the last chunk."""
    geometry = geometry_of(options.size, 81)
    size, device = (geometry.lat_h, geometry.lat_w), "cuda"
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin, before = time.perf_counter(), anonymous_memory()
    world = World(model, size, options.window, options.sink, device=device, **storage)
    torch.cuda.synchronize()
    report.add(f"{name}: making the cache", time.perf_counter() - begin, "s",
               f"{(anonymous_memory() - before) / GB:.2f} GB anonymous")  # fmt: skip
    generator = torch.Generator(device).manual_seed(0)

    def draw(shape):
        return torch.randn(shape, device=device, generator=generator)

    world.prompt = draw((1, 77, FULL.text_dim))
    schedule, seconds = few_step_schedule(FAST_INDICES, 10.0), []
    for _ in range(options.chunks):
        noise, y, camera = (draw((1, channels, CHUNK, *size)) for channels in (16, 20, FULL.control_channels))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        chunk = world.chunk(noise, y, camera, schedule, draw)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    if options.profile:
        print_profile(lambda: world.chunk(noise, y, camera, schedule, draw))
    peak = torch.cuda.max_memory_allocated() / GB
    full = -(-options.window // CHUNK)
    for index in sorted({0, 1, full - 1, full, len(seconds) // 2, len(seconds) - 1}):
        if index < len(seconds):
            report.add(f"{name}: chunk {index + 1}", seconds[index], "s")
    report.add(f"{name}: peak on the GPU", peak, "GB", f"{peak - held / GB:.2f} GB over the weights")
    if not chunk.isfinite().all():
        raise SystemExit("the chunk is not finite")
    return chunk


def decode_weights(model: torch.nn.Module) -> None:
    """Replace 4-bit weights by their bf16 values."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(weight, "_qdata"):
            module.weight = torch.nn.Parameter(weight.dequantize().to(torch.bfloat16), requires_grad=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="scratch for the weights")
    parser.add_argument("--storages", nargs="*", choices=STORAGES, default=list(STORAGES))
    parser.add_argument("--size", default="480*832")
    parser.add_argument("--window", type=int, default=18)
    parser.add_argument("--sink", type=int, default=6)
    parser.add_argument("--chunks", type=int, default=9)
    parser.add_argument("--resident-blocks", type=int)
    parser.add_argument("--camera-cache", type=float, help="GB at most (default: no limit)")
    parser.add_argument("--decoded", action="store_true", help="also with the weights decoded to bf16 once")
    parser.add_argument("--profile", action="store_true", help="what a chunk is made of")
    parser.add_argument("--cap", type=float, help="GB of GPU memory to play with")
    options, report = parser.parse_args(), Report()
    path = random_package.expert(options.folder, "high")
    if options.cap:
        play_card(options.cap)
    checkpoint = open_checkpoint(path)
    checkpoint = dataclasses.replace(checkpoint, config=dataclasses.replace(checkpoint.config, causal=True))
    model = load_expert(checkpoint, "cuda", resident_blocks=options.resident_blocks)
    limit = None if options.camera_cache is None else options.camera_cache * GB
    first = None
    for name in options.storages:
        gc.collect()
        torch.cuda.empty_cache()
        chunk = bench_rollout(report, model, options, name, camera_cache_bytes=limit, **STORAGES[name])
        first = chunk if first is None else first
        error = ((chunk - first).norm() / first.norm()).item()
        report.add(f"{name}: last chunk against {options.storages[0]}", error, "", "relative RMS")
    if options.decoded:
        decode_weights(model)
        bench_rollout(report, model, options, "gpu, decoded weights", camera_cache_bytes=limit)
    print(report.table())


if __name__ == "__main__":
    main()
