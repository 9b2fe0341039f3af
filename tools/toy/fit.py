"""The training loop of all parts, on flat parameters."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor

from .parameters import Parameters

KEEP_EVERY, WARM_UP = 0.1, 100
"""The share of a training between two checkpoints; the steps until the full learning rate."""
LOG_EVERY, WARM_UPS = 200, 2  # the steps of a logged mean loss; runs before a CUDA graph is recorded
MOMENTUM, LENGTH = 0.95, 0.2  # Muon's momentum, and the RMS of a step at a rate of 1
OUTERMOST = "patch_embedding.weight", "encoder.conv1.weight", "conv1.weight", "conv2.weight", "decoder.head.2.weight"
"""Layers from or to pixels or latents."""

R = TypeVar("R")
Keep = Callable[[Parameters], None]  # writes a checkpoint of the moving average
Slope = Callable[[float], tuple[Tensor, Tensor]]
"""(progress from 0 to 1) -> the loss and its gradient by the flat parameters."""


@dataclass
class Phase:
    """The length of a training, and its learning rate."""

    minutes: float
    steps: int | None = None  # instead of minutes
    hold: float = 0.0  # the share at the full rate
    rate: float = 1.0  # a factor on the part's rate
    begun: float = field(default_factory=time.monotonic)

    def progress(self, step: int) -> float:
        """Return 0 at the start, 1 at the end."""
        if self.steps is not None:
            return step / self.steps
        return (time.monotonic() - self.begun) / (60 * self.minutes) if self.minutes else 1.0


@dataclass
class Log:
    """Events as lines on the screen and as JSON lines in a file."""

    path: Path
    begun: float

    def write(self, **values: object) -> None:
        line = json.dumps({"seconds": round(time.time() - self.begun, 1), **values})
        print(line, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def learning_rate(step: int, progress: float, hold: float) -> float:
    """Return the share of the full rate: a warm-up, then after `hold` half a cosine down to 2 %."""
    rising = min(1.0, max((step + 1) / WARM_UP, progress / 0.1))
    falling = max(0.0, progress - hold) / max(1e-9, 1 - hold)
    return rising * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * falling)))


def fit(
    name: str,
    parameters: Parameters,
    slope: Slope,
    phase: Phase,
    rate: float,
    log: Log,
    most_decay: float,
    keep: Keep | None = None,
) -> Parameters:
    """Train `parameters` until the phase ends. Return their moving average; `keep` also writes checkpoints of it."""
    flat = parameters.flat.requires_grad_()
    average = flat.detach().clone()
    optimizer = Optimizer(parameters)
    step, kept, total = 0, 0.0, torch.zeros(2, device=flat.device)
    result = Parameters(parameters.shapes, average)
    while (progress := phase.progress(step)) < 1:
        value, gradient = slope(progress)
        total += torch.stack([value, _clip_(gradient)])
        optimizer.step(gradient, rate * phase.rate * learning_rate(step, progress, phase.hold))
        average.lerp_(flat.detach(), 1 - min(most_decay, (step + 1) / (step + 10)))
        if step % LOG_EVERY == LOG_EVERY - 1:
            mean = dict(zip(("loss", "gradient"), (total / LOG_EVERY).tolist(), strict=True))
            log.write(phase=name, step=step + 1, progress=round(progress, 4), **mean)
            total.zero_()
        if keep is not None and progress >= kept + KEEP_EVERY:
            kept = progress
            keep(result)
        step += 1
    if keep is not None:
        keep(result)
    log.write(phase=name, step=step, progress=1.0, minutes=round((time.monotonic() - phase.begun) / 60, 2))
    return result


class Optimizer:
    """Muon (Liu et al., 2025) for the blocks' matrices and inner convolutions, Adam for the rest. A CUDA graph on a
    GPU."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters, flat = parameters, parameters.flat
        on_gpu = flat.device.type == "cuda"
        self.momentum, self.gradient = torch.zeros_like(flat), torch.zeros_like(flat)
        self.rate = torch.zeros((), device=flat.device)
        self.adam = torch.optim.AdamW(
            [flat], lr=self.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=on_gpu, capturable=on_gpu
        )
        self.groups: dict[tuple[int, int], list[str]] = {}
        for name, shape in parameters.shapes.items():
            if name.startswith("blocks.") and len(shape) == 2 or len(shape) > 3 and name not in OUTERMOST:
                self.groups.setdefault((shape[0], math.prod(shape[1:])), []).append(name)
        self.run = replayed(self._move) if on_gpu else self._move

    def step(self, gradient: Tensor, rate: float) -> None:
        self.gradient.copy_(gradient)
        self.rate.fill_(rate)
        self.run()

    @torch.no_grad()
    def _move(self) -> None:
        flat, shapes, gradient = self.parameters.flat, self.parameters.shapes, self.gradient
        self.momentum.mul_(MOMENTUM).add_(gradient)
        ahead = Parameters(shapes, torch.add(gradient, self.momentum, alpha=MOMENTUM)).named()
        weights, slopes = (Parameters(shapes, part).named() for part in (flat.detach(), gradient))
        for shape, names in self.groups.items():
            turned = orthogonal(torch.stack([ahead[name].view(shape) for name in names]))
            turned *= self.rate * LENGTH * max(shape) ** 0.5
            for name, change in zip(names, turned.unbind(), strict=True):
                weights[name].view(shape).sub_(change)
                slopes[name].zero_()
        flat.grad = gradient
        self.adam.step()


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices [n, rows, columns] with singular values near 1, float32, by five Newton-Schulz iterations."""
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = wide.bfloat16() if wide.is_cuda else wide.float()
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-12).to(x.dtype)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return (x.mT if wide is not matrices else x).float()


def slope_of(parameters: Parameters, loss: Callable[[dict[str, Tensor]], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the loss of the named parameters and its gradient by the flat ones."""
    value = loss(parameters.named())
    return value.detach(), torch.autograd.grad(value, parameters.flat)[0]


def replayed(work: Callable[[], R], random: Generator | None = None, memory: Any = None) -> Callable[[], R]:
    """Record `work` in a CUDA graph; a result is valid until the next run. `memory`: a pool that several graphs
    share."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    if random is not None:
        graph.register_generator_state(random)
    with torch.cuda.graph(graph, memory):
        result = work()

    def run() -> R:
        graph.replay()
        return result

    return run


def _clip_(gradient: Tensor) -> Tensor:
    """Clip a gradient in place to norm 1; set NaN and infinity to 0. Return the previous norm."""
    norm = gradient.norm()
    share = torch.where(norm.isfinite(), (1 / norm.clamp(min=1e-12)).clamp(max=1), torch.zeros_like(norm))
    gradient.nan_to_num_(0.0, 0.0, 0.0).mul_(share)
    return norm
