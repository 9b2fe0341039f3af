"""The training loop that all trainings share, on flat parameters; the gradient may come from a CUDA graph."""

from __future__ import annotations

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
"""The share of a training after which a checkpoint is written; steps until the full learning rate."""
LOG_EVERY = 200
"""The number of steps over which the logged loss is averaged."""
MOMENTUM, LENGTH = 0.95, 0.2
"""The parameters of Muon: the momentum, and the root mean square of a step at a rate of 1."""
OUTERMOST = "patch_embedding.weight", "encoder.conv1.weight", "conv1.weight", "conv2.weight", "decoder.head.2.weight"
"""Layers from or to pixels or latents."""
WARM_UPS = 2
"""Runs before a recording."""

R = TypeVar("R")
Keep = Callable[[Parameters], None]
"""Writes a checkpoint of the moving average."""
Slope = Callable[[float], tuple[Tensor, Tensor]]
"""(progress from 0 to 1) -> the loss and its gradient by the flat parameters."""


@dataclass
class Phase:
    """The length of a training and its learning rate: so many minutes from now, or so many steps if given. The learning
    rate is held for the share `hold` of the phase before it falls. `rate` is a factor on the part's own rate."""

    minutes: float
    steps: int | None = None
    hold: float = 0.0
    rate: float = 1.0
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
        """Add a line with the seconds since the start."""
        line = json.dumps({"seconds": round(time.time() - self.begun, 1), **values})
        print(line, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def learning_rate(step: int, progress: float, hold: float) -> float:
    """Return the share of the full rate: rising for the first steps, of a short training for its first tenth; after
    `hold` half a cosine down to 2 %."""
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
    """Train `parameters` until the phase ends. Return their moving average, which is kept at the end and now and then
    before, so that a run that is stopped can be resumed."""
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
    """Muon for the matrices of blocks and the convolutions between a VAE's outermost ones, Adam for all else. Muon's
    steps are as long as Adam's are, so one rate does for both (Liu et al., Muon is scalable for LLM training, 2025).

    On a GPU a step is a recording: its thousand kernels are as small as a VAE's."""

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
        """Moves the parameters against a flat gradient."""
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
    """The matrices [n, rows, columns] with singular values of about 1, float32: five Newton-Schulz iterations, in bf16
    on a GPU. Processors multiply that slowly."""
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = wide.bfloat16() if wide.is_cuda else wide.float()
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-12).to(x.dtype)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return (x.mT if wide is not matrices else x).float()


def slope_of(parameters: Parameters, loss: Callable[[dict[str, Tensor]], Tensor]) -> tuple[Tensor, Tensor]:
    """The loss (named parameters) and its gradient by the flat ones."""
    value = loss(parameters.named())
    return value.detach(), torch.autograd.grad(value, parameters.flat)[0]


def replayed(work: Callable[[], R], random: Generator | None = None, memory: Any = None) -> Callable[[], R]:
    """Return a CUDA graph of `work`, whose kernels are too many and too small to be launched one by one. `work` is run
    a few times before. A result is valid until the next run. `random`: the generator that `work` uses, if it is not
    torch's own. `memory`: a handle of `torch.cuda.graph_pool_handle` that several graphs share; a result is then valid
    until any of them runs."""
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
    """Clip a gradient in place to norm 1; set NaN and infinity to 0. Return the norm before clipping."""
    norm = gradient.norm()
    share = torch.where(norm.isfinite(), (1 / norm.clamp(min=1e-12)).clamp(max=1), torch.zeros_like(norm))
    gradient.nan_to_num_(0.0, 0.0, 0.0).mul_(share)
    return norm
