"""Attention in 8 bits by this project's kernel and by cuDNN's, on a GPU of compute capability 9.0.

    python tools/bench/bench_attention_8bit.py                                # the kernels alone, each for two seconds
    python tools/bench/bench_attention_8bit.py --folder SCRATCH --size 480*832 --chunk 3 [--profile]   # chunks by turns

The chunks are those of two worlds of one model in one process, recorded, in fp8 with the window full: a card that is
warm for one is warm for the other. Each chunk has a new camera: with the one before, a block's camera layers would have
nothing to compute."""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import random_package
import torch
from bench_causal import STORAGES
from bench_gpu import FULL
from bench_kernels import print_profile
from bench_parts import geometry_of
from bench_report import Report
from lingbot_world.loaders import load_expert
from lingbot_world.model.attention import choose_8bit as attention_8bit
from lingbot_world.model.attention.fp8 import operands
from lingbot_world.model.attention.fp8_cudnn import cudnn_attention, cudnn_attention_of
from lingbot_world.model.attention.fp8_hopper import hopper_attention, hopper_attention_of
from lingbot_world.options import CHUNK, CHUNKS, FAST_INDICES, Window
from lingbot_world.pipeline.world import World
from lingbot_world.sampling import few_step_schedule

SHAPES = (
    (4680, 28080, 40),
    (2880, 17280, 40),
    (960, 17280, 40),
    (6032, 27144, 12),
    (1508, 27144, 12),
    (32760, 32760, 40),
)
KINDS = {"cuDNN": cudnn_attention, "ours": hopper_attention}


def use(kind: str) -> None:
    kernel = next(each for each in attention_8bit.KERNELS.values() if each.attend is KINDS[kind])
    attention_8bit.find_kernel = lambda device, head_dim: kernel


def sustained(work: Callable[[], object], seconds: float = 2.0) -> float:
    """Milliseconds of `work`, the last of as many as fill the time."""
    begin, took = time.perf_counter(), 0.0
    while time.perf_counter() < begin + seconds:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(40):
            work()
        last.record()
        torch.cuda.synchronize()
        took = first.elapsed_time(last) / 40
    return took


def bench_kernels(report: Report) -> None:
    """Queries, keys and values in 8 bits; the result in bf16. With what turns values across and merges parts."""
    for queries, keys, heads in SHAPES:
        given = (torch.randn(1, count, heads * 128, device="cuda").bfloat16() for count in (queries, keys, keys))
        q, k, v = operands(*given)
        for name, attend in (("cuDNN", cudnn_attention_of), ("ours", hopper_attention_of)):
            took = sustained(partial(attend, q, k, v, heads, torch.bfloat16))
            rate = 4 * queries * keys * heads * 128 / took / 1e9
            report.add(f"{queries} queries, {keys} keys, {heads} heads: {name}", took, "ms", f"{rate:.0f} TFLOP/s")


def bench_chunks(report: Report, options: argparse.Namespace) -> None:
    make = random_package.small if options.model == "1.3b" else random_package.causal
    model = load_expert(make(options.folder), "cuda", decoded_blocks=FULL.num_layers, arithmetic="fp8")
    geometry, generator = geometry_of(options.size, 81), torch.Generator("cuda").manual_seed(0)
    size, schedule = (geometry.lat_h, geometry.lat_w), few_step_schedule(FAST_INDICES, 10.0)

    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator)

    memory = replace(STORAGES["graphs"], place=STORAGES["graphs"].place._replace(fp8=True))
    noise, image = (draw((1, channels, options.chunk, *size)) for channels in (16, 20))
    worlds, seconds = {}, {kind: [] for kind in KINDS}

    def chunk(kind: str) -> float:
        use(kind)
        camera = draw((1, FULL.control_channels, options.chunk, *size)).cpu()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        worlds[kind].chunk(noise, image, camera, schedule, draw)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    for kind in KINDS:
        use(kind)
        model.set_attention("8bit")
        worlds[kind] = World(model, size, Window(18, 6), chunk=options.chunk, device="cuda", memory=memory)
        worlds[kind].prompt = draw((1, 77, FULL.text_dim))
        for _ in range(18 // options.chunk + 2):
            chunk(kind)
    for _ in range(options.turns):
        for kind, took in seconds.items():
            took.append(chunk(kind))
    for kind, took in seconds.items():
        report.add(
            f"{options.model}, {options.size}, chunk {options.chunk}: {kind}",
            statistics.median(took),
            "s",
            f"{min(took):.4f} to {max(took):.4f}",
        )
        if options.profile:
            print_profile(partial(chunk, kind))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="scratch for the weights; left out: the kernels alone")
    parser.add_argument("--model", choices=("14b", "1.3b"), default="14b")
    parser.add_argument("--size", default="480*832")
    parser.add_argument("--chunk", type=int, choices=CHUNKS, default=CHUNK, help="latent frames of a chunk")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="what a chunk is made of")
    options, report = parser.parse_args(), Report()
    bench_kernels(report) if options.folder is None else bench_chunks(report, options)
    print(report.table())


if __name__ == "__main__":
    main()
