"""Seconds and memory of one video on several GPUs of a machine, with random weights of full size made on the spot.

    torchrun --nproc_per_node 4 tools/bench/bench_parallel.py --folder SCRATCH

Every layout is timed in the same run, while the other processes wait. docs/scale.md has the figures."""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from unittest import mock

import random_package
import torch
from bench_causal import bench_rollout
from bench_common import GB, Report, free, geometry_of, parser_of, relative, timed
from bench_gpu import FULL, step_inputs
from lingbot_world.loaders import load_expert
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.memory import activation_bytes
from lingbot_world.model.parallel import SequenceParallel
from lingbot_world.options import Precision
from lingbot_world.pipeline.two_experts import Conditioning, ParallelGroups, predict
from lingbot_world.pipeline.world import WorldMemory
from torch import distributed

LONGEST_WAIT, REPEATS = timedelta(minutes=20), 3


@dataclass(frozen=True)
class Layout:
    """The first `sequence` x `halves` processes: `halves` rows of guidance, each shared by `sequence` processes."""

    halves: int
    sequence: int

    @property
    def size(self) -> int:
        return self.halves * self.sequence

    @property
    def name(self) -> str:
        split = ["guidance split"] * (self.halves > 1) + [f"tokens shared by {self.sequence}"] * (self.sequence > 1)
        return ", ".join([f"{self.size} GPUs", *split]) if split else "1 GPU"


LAYOUTS = (Layout(1, 1), Layout(2, 1), Layout(1, 2), Layout(2, 2), Layout(1, 4), Layout(2, 4), Layout(1, 8))


class Bench:
    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.report = Report()
        self._groups: dict[tuple[int, ...], distributed.ProcessGroup] = {}
        self.layouts = {layout: self._together(layout) for layout in LAYOUTS if layout.size <= self.size}
        self._waiting = distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)

    def _together(self, layout: Layout) -> ParallelGroups | None:
        """Return this process's groups of a layout, if any. All processes must create all groups in the same order."""
        rows = [range(row * layout.sequence, (row + 1) * layout.sequence) for row in range(layout.halves)]
        sequences = [self._group(*ranks) for ranks in rows]
        pairs = [self._group(i, i + layout.sequence) for i in range(layout.sequence * (layout.halves > 1))]
        if self.rank >= layout.size:
            return None
        group = sequences[self.rank // layout.sequence]
        sequence = SequenceParallel(group) if layout.sequence > 1 else None
        return ParallelGroups(sequence, pairs[self.rank % layout.sequence] if pairs else None)

    def _group(self, *ranks: int) -> distributed.ProcessGroup:
        if ranks not in self._groups:
            self._groups[ranks] = distributed.new_group(list(ranks))
        return self._groups[ranks]

    def add(self, figure: str, value: float, unit: str, note: str = "") -> None:
        if self.rank == 0:
            self.report.add(figure, value, unit, note)

    @contextmanager
    def alone(self, layout: Layout) -> Iterator[ParallelGroups | None]:
        """Run a layout's processes while the others wait."""
        distributed.barrier(self._waiting)
        yield self.layouts[layout]
        free()
        distributed.barrier(self._waiting)


def bench_step(bench: Bench, model: LingBotWorldModel, cached: bool) -> None:
    """Report a guided step in every layout, and its distance from one GPU's."""
    geometry = geometry_of("480*832")
    inputs = step_inputs(FULL, geometry)
    positive, negative = inputs["context"].split(1)
    conditioning = Conditioning(inputs["x"][:1, 16:], positive, negative, inputs["camera"])
    first, base = None, 0.0
    for layout in bench.layouts:
        with bench.alone(layout) as together:
            if together is None:
                continue
            cache, latent = CameraCache() if cached else None, inputs["x"][:1, :16]
            step = partial(predict, model, latent, 900, conditioning, 5.0, cache, together)
            seconds, peak = timed(step, REPEATS)
            out = step()
            first, base = (out, seconds) if first is None else (first, base)
            precision = Precision(torch.bfloat16, processes=layout.sequence)
            cells = geometry.lat_f, geometry.lat_h, geometry.lat_w
            estimate = activation_bytes(FULL, *cells, precision, batch=2 // layout.halves) / GB
            note = f"{seconds / base:.3f} of the first; {peak / GB:.2f} GB over weights and cache (estimated "
            note += f"{estimate:.2f}); relative RMS from the first {relative(out, first):.1e}"
            bench.add(f"step{', camera cache' * cached}, {layout.name}", seconds, "s", note)


def bench_causal(bench: Bench, model: LingBotWorldModel, options: argparse.Namespace) -> None:
    """Report chunks with a full window, with shared tokens and heads."""
    first = None
    for layout in (layout for layout in bench.layouts if layout.halves == 1):
        with bench.alone(layout) as together:
            if together is None:
                continue
            report = bench.report if bench.rank == 0 else mock.Mock()
            for name, graphs in ((layout.name, False), (f"{layout.name}, recorded", True)):
                chunk = bench_rollout(report, model, options, name, WorldMemory(graphs=graphs), together.sequence)
                first = chunk if first is None else first
                bench.add(f"{name}: last chunk from one GPU's", relative(chunk, first), "", "relative RMS")


def run(bench: Bench, options: argparse.Namespace) -> None:
    if bench.rank == 0:
        random_package.expert(options.folder, "high")
        random_package.causal(options.folder)
    distributed.barrier(bench._waiting)
    begin = time.perf_counter()
    model = load_expert(random_package.expert(options.folder, "high"), "cuda")
    bench.add("load, all processes at once", time.perf_counter() - begin, "s")
    for cached in (False, True):
        bench_step(bench, model, cached)
    del model
    free()
    bench_causal(bench, load_expert(random_package.causal(options.folder), "cuda"), options)
    if bench.rank == 0:
        print(bench.report.table())


def main() -> None:
    parser = parser_of(__doc__)
    parser.set_defaults(size="480*832", chunks=8, chunk=3, profile=False)
    options = parser.parse_args()
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as the command does
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("cpu:gloo,cuda:nccl", timeout=LONGEST_WAIT)
    with torch.no_grad():
        run(Bench(), options)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
