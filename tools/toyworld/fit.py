"""The training loop of both toys: Adam on flat parameters, a cosine learning rate and an averaged result."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from .parameters import Parameters
from .team import Team

WARM_UP = 100
AGREE_EVERY = 10
LOG_EVERY = 50

KEEP_EVERY = 0.1
Keep = Callable[[Parameters], None]
"""Writes a checkpoint of the moving average."""

Loss = Callable[[dict[str, Tensor], float], Tensor]
"""(named parameters, progress from 0 to 1) -> what is to become small."""


@dataclass
class Phase:
    """How long something goes on: so many minutes from now, or so many steps where they are given. The learning rate
    is held for the share `hold` of it before it falls."""

    minutes: float
    steps: int | None = None
    hold: float = 0.0
    begun: float = field(default_factory=time.monotonic)

    def progress(self, step: int) -> float:
        """0 at the begin; 1 at the end."""
        if self.steps is not None:
            return step / self.steps
        return (time.monotonic() - self.begun) / (60 * self.minutes) if self.minutes else 1.0


@dataclass
class Log:
    """What happened, as lines on the screen and as JSON lines in a file; None writes nothing."""

    path: Path | None
    begun: float

    def write(self, **values: object) -> None:
        """Adds a line with the seconds since the start."""
        if self.path is None:
            return
        line = json.dumps({"seconds": round(time.time() - self.begun, 1), **values})
        print(line, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def fit(
    name: str,
    parameters: Parameters,
    loss: Loss,
    team: Team,
    phase: Phase,
    rate: float,
    log: Log,
    most_decay: float,
    keep: Keep | None = None,
) -> Parameters:
    """Trains `parameters` with the team until the phase ends; returns their moving average, which is kept at the end
    and now and then before, so that a run that is stopped can be resumed.

    Where steps are limited by time, the first process's clock counts for all."""
    flat = parameters.flat.requires_grad_()
    average = flat.detach().clone()
    optimizer = torch.optim.AdamW([flat], rate, betas=(0.9, 0.98), weight_decay=0.0, fused=flat.device.type == "cuda")
    step, progress, kept = 0, 0.0, 0.0
    result = Parameters(parameters.shapes, average)
    while True:
        if step % AGREE_EVERY == 0 or phase.steps is not None:
            progress = team.agree(phase.progress(step))
            if progress >= 1:
                break
        optimizer.param_groups[0]["lr"] = rate * learning_rate(step, progress, phase.hold)
        value = loss(parameters.named(), progress)
        value.backward()
        norm = _clip_(flat, team)
        optimizer.step()
        optimizer.zero_grad()
        average.lerp_(flat.detach(), 1 - min(most_decay, (step + 1) / (step + 10)))
        if step % LOG_EVERY == 0:
            log.write(phase=name, step=step, progress=round(progress, 4), loss=value.item(), gradient=norm.item())
        if keep is not None and progress >= kept + KEEP_EVERY:
            kept = progress
            keep(result)
        step += 1
    if keep is not None:
        keep(result)
    log.write(phase=name, step=step, progress=1.0, minutes=round((time.monotonic() - phase.begun) / 60, 2))
    return result


def learning_rate(step: int, progress: float, hold: float) -> float:
    """The share of the full rate: rising for the first steps, of a short training for its first tenth; after `hold`
    half a cosine down to 2 %."""
    rising = min(1.0, max((step + 1) / WARM_UP, progress / 0.1))
    falling = max(0.0, progress - hold) / max(1e-9, 1 - hold)
    return rising * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * falling)))


def _clip_(flat: Tensor, team: Team) -> Tensor:
    """Averages the gradient over the team and shortens it to length 1; one that is not finite becomes 0."""
    assert flat.grad is not None
    team.average_(flat.grad)
    norm = flat.grad.norm()
    share = torch.where(norm.isfinite(), (1 / norm.clamp(min=1e-12)).clamp(max=1), torch.zeros_like(norm))
    flat.grad.nan_to_num_(0.0, 0.0, 0.0).mul_(share)
    return norm
