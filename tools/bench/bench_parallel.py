"""Seconds and memory of one video on several GPUs of a machine, with random weights of full size made on the spot.

    torchrun --nproc_per_node 4 tools/bench/bench_parallel.py --folder SCRATCH
    torchrun --nproc_per_node 4 tools/bench/bench_parallel.py --folder SCRATCH --only minute

Every layout is timed in the same run: the processes that a layout does not need wait. "Computing alone" is the same
step with the exchanges between processes left out. docs/scale.md keeps the figures."""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import random_package
import torch
from bench_causal import bench_rollout
from bench_parts import geometry_of, step_inputs
from bench_report import GB, Report, free
from lingbot_world.headless.decoding import divided_decoder, join_stripes
from lingbot_world.headless.process.processes import ALONE, Processes
from lingbot_world.loaders import load_expert
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.memory import activation_bytes
from lingbot_world.model.parallel import SequenceParallel
from lingbot_world.options import Precision
from lingbot_world.pipeline.geometry import Geometry
from lingbot_world.pipeline.two_experts import Conditioning, ParallelGroups, predict
from lingbot_world.pipeline.world import WorldMemory
from lingbot_world.vae import load_vae
from torch import distributed

PARTS = ("step", "causal", "large", "minute", "shard", "decode")
FULL, EXPERT = random_package.FULL, "high_noise_model_bnb_nf4"
LONGEST_WAIT = timedelta(minutes=20)


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
        if self.size == 1:
            return "1 GPU"
        split = ["guidance split"] * (self.halves > 1) + [f"tokens shared by {self.sequence}"] * (self.sequence > 1)
        return f"{self.size} GPUs, {', '.join(split)}"


ONE = Layout(1, 1)
LAYOUTS = (ONE, Layout(2, 1), Layout(1, 2), Layout(2, 2), Layout(1, 4), Layout(2, 4), Layout(1, 8))


class Bench:
    """The groups of this process, and the report of the first process."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.report = Report()
        self._groups: dict[tuple[int, ...], distributed.ProcessGroup] = {}
        self.layouts = {layout: self._together(layout) for layout in LAYOUTS if layout.size <= self.size}
        self._waiting = distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)

    def _together(self, layout: Layout) -> ParallelGroups | None:
        """Return this process's groups of a layout, or None outside of it. Every process must create all groups in the
        same order."""
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
        """A layout's processes work; the others wait until they are done."""
        distributed.barrier(self._waiting)
        yield self.layouts[layout]
        free()
        distributed.barrier(self._waiting)


@contextmanager
def no_exchange() -> Iterator[None]:
    """Exchanges copy within the process: what remains of a step is its computing."""

    def copy(received: torch.Tensor, sent: torch.Tensor, **_options: object) -> mock.Mock:
        received.copy_(sent)
        return mock.Mock()

    with mock.patch.object(distributed, "all_to_all_single", copy):
        yield


def seconds_of(step: Callable[[], object], repeats: int = 1) -> float:
    """The median; what a first call loads and chooses is counted too."""
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


@dataclass(frozen=True)
class Step:
    """The step that is timed: the video's size, the batch elements of guidance, and whether a CameraCache has the
    camera layers' results and the prompts' keys and values. Without `repeats` the first step is timed, else the later
    ones."""

    geometry: Geometry
    rows: int = 2
    cached: bool = False
    repeats: int = 0

    @property
    def name(self) -> str:
        size = f"{self.geometry.width}x{self.geometry.height}"
        return f"{self.geometry.frames} frames, {size}, {self.rows} rows{', camera cache' * self.cached}"

    def estimate(self, layout: Layout) -> float:
        """GB over the weights, without the cache."""
        cells = self.geometry.lat_f, self.geometry.lat_h, self.geometry.lat_w
        return (
            activation_bytes(
                FULL, *cells, Precision(torch.bfloat16, processes=layout.sequence), batch=self.rows // layout.halves
            )
            / GB
        )


def bench_step(bench: Bench, model: LingBotWorldModel, step: Step, layouts: list[Layout]) -> None:
    """Time a step in several layouts, and compare each with the first."""
    inputs = step_inputs(FULL, step.geometry, "cuda")
    positive, negative = inputs["context"].split(1)
    conditioning = Conditioning(inputs["x"][:1, 16:], positive, negative, inputs["camera"])
    first, base = None, 0.0
    for layout in layouts:
        with bench.alone(layout) as together:
            if together is None:
                continue
            run_step = partial(
                predict,
                model,
                inputs["x"][:1, :16],
                900,
                conditioning,
                5.0 if step.rows == 2 else 1.0,
                CameraCache() if step.cached else None,
                together,
            )
            out, seconds, peak = time_step(run_step, step.repeats)
            first, base = (out, seconds) if first is None else (first, base)
            note = f"{seconds / base:.3f} of the first; {peak:.2f} GB over the weights (estimated "
            note += f"{step.estimate(layout):.2f}{' without the cache' * step.cached}); relative RMS from the first "
            bench.add(f"{step.name}, {layout.name}", seconds, "s", note + f"{(out - first).norm() / first.norm():.1e}")
            if layout.sequence > 1 and step.repeats and not step.cached:
                with no_exchange():
                    bench.add(f"{layout.name}: computing alone", seconds_of(run_step), "s")


def time_step(run_step: Callable[[], torch.Tensor], repeats: int) -> tuple[torch.Tensor, float, float]:
    """Return the step's result, its seconds, and the peak in GB above the memory used before."""
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    out = run_step()
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    seconds = seconds_of(run_step, repeats) if repeats else first
    return out, seconds, (torch.cuda.max_memory_allocated() - held) / GB


def bench_causal(bench: Bench, model: LingBotWorldModel, options: argparse.Namespace) -> None:
    """Chunks with a full window; every layout without guidance shares tokens and heads."""
    first = None
    for layout in (layout for layout in bench.layouts if layout.halves == 1):
        with bench.alone(layout) as together:
            if together is None:
                continue
            report = bench.report if bench.rank == 0 else mock.Mock()
            for name, graphs in ((layout.name, False), (f"{layout.name}, recorded", True)):
                chunk = bench_rollout(report, model, options, name, WorldMemory(graphs=graphs), together.sequence)
                first = chunk if first is None else first
                bench.add(
                    f"{name}: last chunk from one GPU's",
                    ((chunk - first).norm() / first.norm()).item(),
                    "",
                    "relative RMS",
                )


def bench_shard(bench: Bench, package: Path, whole: LingBotWorldModel) -> None:
    """Time a step of the largest layout with sharded weights and with full weights."""
    layout, held = largest_layout(bench), torch.cuda.memory_allocated()
    everyone = distributed.new_group()
    divided = load_expert(package / EXPERT, "cuda", resident_blocks=0, shared_by=everyone)
    bench.add("divided weights", (torch.cuda.memory_allocated() - held) / GB, "GB", "a GPU")
    inputs, first = step_inputs(FULL, geometry_of("480*832", 81), "cuda"), None
    positive, negative = inputs["context"].split(1)
    conditioning = Conditioning(inputs["x"][:1, 16:], positive, negative, inputs["camera"])
    for name, model in (("whole", whole), ("divided", divided)):
        with bench.alone(layout) as together:
            out, seconds, peak = time_step(
                partial(predict, model, inputs["x"][:1, :16], 900, conditioning, 5.0, None, together), repeats=3
            )
            first = out if first is None else first
            bench.add(
                f"step, {layout.name}, weights {name}",
                seconds,
                "s",
                f"{peak:.2f} GB over the weights; "
                f"relative RMS from whole weights {(out - first).norm() / first.norm():.1e}",
            )


def bench_decode(bench: Bench, package: Path) -> None:
    """81 frames at 480x832 decoded by the first process, then in stripes by all."""
    vae, size = load_vae(random_package.vae(package), device="cuda"), (60, 104)
    latent = torch.randn(1, 16, 21, *size, generator=torch.Generator().manual_seed(0)).to(device="cuda")
    alone = None
    for name, processes in (("1 GPU", ALONE), (f"{bench.size} GPUs", Processes(bench.rank, bench.size))):
        for kind in (", first", ""):
            distributed.barrier(bench._waiting)
            if processes.size == 1 and bench.rank:
                continue
            torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            own = divided_decoder(vae, size, processes).decode(latent, last=True)
            video = join_stripes(own, size, processes)
            seconds, peak = time.perf_counter() - begin, torch.cuda.max_memory_allocated() / GB
            bench.add(f"decoding 81 frames, {name}{kind}", seconds, "s", f"{peak:.2f} GB")
            alone = video if alone is None else alone
    if alone is not None and video is not None:
        difference = (alone.int() - video.int()).abs()
        bench.add(
            "stripes against one decode",
            difference.max().item(),
            "",
            f"largest difference of a byte; {(difference > 0).float().mean():.1e} of the bytes differ",
        )


def largest_layout(bench: Bench) -> Layout:
    return max(bench.layouts, key=lambda layout: (layout.size, layout.halves))


def run(bench: Bench, options: argparse.Namespace) -> None:
    package = options.folder
    if bench.rank == 0:
        random_package.vae(package)
        random_package.expert(package, "high")
        random_package.causal(package)
    distributed.barrier(bench._waiting)
    shared = [layout for layout in bench.layouts if layout.size > 1]
    largest = largest_layout(bench)
    begin = time.perf_counter()
    model = load_expert(package / EXPERT, "cuda")
    bench.add("load, all processes at once", time.perf_counter() - begin, "s")
    bench_step(bench, model, Step(geometry_of("240*416", 17)), list(bench.layouts))  # NCCL begins with each group
    if "step" in options.only:
        for cached in (False, True):
            bench_step(bench, model, Step(geometry_of("480*832", 81), 2, cached, options.repeats), [ONE, *shared])
    if "large" in options.only:
        bench_step(bench, model, Step(geometry_of("720*1280", 161), rows=1), [ONE])
        bench_step(bench, model, Step(geometry_of("720*1280", 161)), [largest])
    if "minute" in options.only:
        bench_step(bench, model, Step(geometry_of("480*832", 961)), [largest])
    if "shard" in options.only:
        bench_shard(bench, package, model)
    del model
    free()
    if "decode" in options.only:
        bench_decode(bench, package)
    if "causal" in options.only:
        bench_causal(bench, load_expert(package / "lingbot_world_fast", "cuda"), options)
    if bench.rank == 0:
        print(bench.report.table())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="scratch for the weights")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--chunk", type=int, default=3, help="latent frames of a chunk")
    parser.set_defaults(size="480*832", window=18, sink=6, profile=False)
    options = parser.parse_args()
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as the command does
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("cpu:gloo,cuda:nccl", timeout=LONGEST_WAIT)
    with torch.no_grad():
        run(Bench(), options)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
