"""Seconds and memory of a causal model at full size on a GPU, with random weights made on the spot.

    python tools/bench/bench_causal.py --folder SCRATCH                           # chunks, by where keys and values lie
    python tools/bench/bench_causal.py --folder SCRATCH --runs --cap 8 -- --kv_cache host # the command, a smaller card

A chunk is five forwards over 12 frames, the first one four. What follows `--` is passed to the command."""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import random_package
import torch
from bench_common import GB, Memory, Report, anon_bytes, free, geometry_of, gpu_parser, normal_draw, play_card, ways_of
from bench_gpu import FULL, bench_load
from lingbot_world.loaders import load_expert
from lingbot_world.model.kv.place import KeyValuePlace
from lingbot_world.model.parallel import SequenceParallel
from lingbot_world.options import CHUNK, CHUNKS, FAST_INDICES, Precision, Window
from lingbot_world.pipeline.rollout_memory import RolloutWork
from lingbot_world.pipeline.world import World, WorldMemory
from lingbot_world.sampling import few_step_schedule

STORAGES = {
    "gpu": WorldMemory(),
    "graphs": WorldMemory(graphs=True),
    "8bit": WorldMemory(KeyValuePlace(int8=True)),
    "host": WorldMemory(KeyValuePlace(on_host=True)),
    "host8bit": WorldMemory(KeyValuePlace(int8=True, on_host=True)),
}
WINDOW = Window(18, 6)


def bench_rollout(
    report: Report,
    model,
    options: argparse.Namespace,
    name: str,
    memory: WorldMemory,
    sequence_parallel: SequenceParallel | None = None,
) -> torch.Tensor:
    """Report chunks with random inputs: seconds, the GPU's peak, host memory. Return the last chunk."""
    geometry = geometry_of(options.size)
    size, placed = (geometry.lat_h, geometry.lat_w), {"device": "cuda", "memory": memory}
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin, before = time.perf_counter(), anon_bytes(os.getpid())
    world = World(model, size, WINDOW, chunk=options.chunk, sequence_parallel=sequence_parallel, **placed)
    torch.cuda.synchronize()
    anonymous = f"{(anon_bytes(os.getpid()) - before) / GB:.2f} GB anonymous"
    report.add(f"{name}: making the cache", time.perf_counter() - begin, "s", anonymous)
    draw = normal_draw()
    world.prompt = draw((1, 77, FULL.text_dim))
    schedule, seconds = few_step_schedule(FAST_INDICES, 10.0), []
    for _ in range(options.chunks):
        noise, y, camera = (draw((1, channels, options.chunk, *size)) for channels in (16, 20, FULL.control_channels))
        camera = camera.cpu()  # as the fronts give it
        torch.cuda.synchronize()
        begin = time.perf_counter()
        chunk = world.chunk(noise, y, camera, schedule, draw)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    graphs = world._branches[0].options.get("graphs")
    if graphs is not None:
        report.add(f"{name}: states recorded", graphs.recorded, "")
    if options.profile:
        report.profile(lambda: world.chunk(noise, y, camera, schedule, draw))
    peak = torch.cuda.max_memory_allocated() / GB
    full = -(-WINDOW.frames // options.chunk)
    for index in sorted({0, 1, full - 1, full, len(seconds) // 2, len(seconds) - 1}):
        if index < len(seconds):
            report.add(f"{name}: chunk {index + 1}", seconds[index], "s")
    if settled := seconds[full + 2 :]:  # behind the full window's first chunk, which runs as usual, and a recorded one
        report.add(f"{name}: median of the last {len(settled)} chunks", statistics.median(settled), "s")
    report.add(f"{name}: peak on the GPU", peak, "GB", f"{peak - held / GB:.2f} GB over the weights")
    reserved, planned = torch.cuda.max_memory_reserved(), held + _planned(model, options, size, memory)
    note = f"planned {(planned - held) / GB:.2f}; with the weights {reserved / GB:.2f} and {planned / GB:.2f}"
    report.add(f"{name}: reserved over the weights", (reserved - held) / GB, "GB", note)
    if not chunk.isfinite().all():
        raise SystemExit("the chunk is not finite")
    return chunk


def _planned(model, options: argparse.Namespace, size: tuple[int, int], memory: WorldMemory) -> int:
    """Return the planner's bytes besides the weights, with the whole camera cache."""
    eight_bit = "8bit" if memory.place.fp8 else "exact"
    precision = Precision(torch.bfloat16, model.blocks[0].ffn[0].arithmetic, eight_bit)
    work = RolloutWork(model.config, size, options.chunk, WINDOW.frames, precision)
    held = work.key_values(memory.place).device + work.forward(memory.place) + work.camera_cache("gpu", 0)
    return held + memory.graphs * work.recorded


COMMAND = """
import sys
from lingbot_world.headless.command.cli import main
if card := float(sys.argv.pop(1)):
    from bench_common import play_card
    play_card(card)
sys.exit(main())
"""


def bench_command(report: Report, package: Path, path: Path, options: argparse.Namespace) -> None:
    """Report `generate`: seconds to the first frames and to the closed files, and its memory."""
    example, (height, width) = package / "example", options.size.split("*")
    words = ["--ckpt_dir", path, "--image", example / "image.png", "--prompt", "A road through a golden evening."]
    words += ["--action_path", example, "--width", width, "--height", height, "--seed", 0]
    words += ["--output", package / "video" / "*.png", *options.generate]
    memory, begin = Memory(), time.perf_counter()
    command = [sys.executable, "-c", COMMAND, str(options.cap or 0), "generate", *map(str, words)]
    python_path = os.pathsep.join([str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = random_package.environment() | {"PYTHONPATH": python_path}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
    memory.now(process.pid, 0)
    first, said = None, b""
    while part := process.stderr.read1():
        said += part
        if first is None and b"chunks:" in said and re.search(rb"chunks:[^\r]*? [1-9]\d*/", said):
            first = time.perf_counter() - begin
    process.wait()
    seconds = time.perf_counter() - begin
    memory.stop()
    name = " ".join(options.generate) or "default"
    if process.returncode:
        raise SystemExit(said.decode()[-3000:])
    print(said.decode()[-300:])
    report.add(f"generate {name}: first frames", first or 0, "s", "from the command on")
    report.add(f"generate {name}: files closed", seconds, "s")
    report.add(f"generate {name}: highest on the card", memory.peaks.get("vram", 0) / GB, "GB", "CUDA context included")
    report.add(f"generate {name}: anonymous", memory.peaks.get("anon", 0) / GB, "GB")


def bench_chunks(report: Report, path: Path, options: argparse.Namespace) -> None:
    """Report each storage, then each further way in the first storage."""
    decoded = FULL.num_layers if options.decoded else 0
    first_of = options.arithmetic[0] if options.decoded and options.arithmetic else "auto"  # whose weights stay
    model = load_expert(path, "cuda", decoded_blocks=decoded, arithmetic=first_of)
    model.set_arithmetic("auto")
    first, storage = None, options.storages[0]
    for name in options.storages:
        free()
        chunk = bench_rollout(report, model, options, name, STORAGES[name])
        first = chunk if first is None else first
        report.add_error(f"{name}: last chunk against {storage}", chunk, first)
    for attention, arithmetic in ways_of(options):
        free()
        model.set_arithmetic(arithmetic)
        model.set_attention(attention)
        memory = STORAGES[storage]
        memory = replace(memory, place=memory.place._replace(fp8=attention == "8bit"))
        name = f"{storage}, {arithmetic}, {attention} attention"
        report.add_error(f"{name}: last chunk against bf16", bench_rollout(report, model, options, name, memory), first)


def main() -> None:
    parser = gpu_parser(__doc__)
    parser.add_argument("--storages", nargs="*", choices=STORAGES, default=list(STORAGES))
    parser.add_argument("--model", choices=("14b", "1.3b"), default="14b")
    parser.add_argument("--gguf", action="store_true", help="the 14B from a GGUF file of Q4_K, with the time of a load")
    parser.add_argument("--chunks", type=int, default=9)
    parser.add_argument("--chunk", type=int, choices=CHUNKS, default=CHUNK, help="latent frames of a chunk")
    parser.add_argument("--decoded", action="store_true", help="decoded weights stay")
    parser.add_argument("--runs", action="store_true", help="time the command instead")
    parser.add_argument("generate", nargs="*", help="options of `generate`, behind --")
    options, report = parser.parse_args(), Report()
    kinds = {"14b": random_package.causal, "1.3b": random_package.small}
    path = (random_package.causal_gguf if options.gguf else kinds[options.model])(options.folder)
    if options.gguf:
        bench_load(report, path, 3)
    if options.runs:
        random_package.around(options.folder)
        bench_command(report, options.folder, path, options)
    else:
        if options.cap:
            play_card(options.cap)
        bench_chunks(report, path, options)
    print(report.table())


if __name__ == "__main__":
    main()
