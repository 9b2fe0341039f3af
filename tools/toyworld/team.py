"""The processes that train one model together: each has a GPU, all have the same parameters."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Team:
    """Some of the processes, by their ranks; this process is one of them. A team of one needs no group."""

    device: torch.device
    ranks: tuple[int, ...]
    rank: int
    group: distributed.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this process is the team's first."""
        return self.rank == self.ranks[0]

    def average_(self, tensor: Tensor) -> None:
        """The mean over the team, in place."""
        if self.group is not None:
            distributed.all_reduce(tensor, group=self.group)
            tensor /= len(self.ranks)

    def agree(self, value: float) -> float:
        """The first process's value."""
        if self.group is None:
            return value
        told = torch.tensor([value], device=self.device, dtype=torch.float64)
        distributed.broadcast(told, self.ranks[0], group=self.group)
        return told.item()

    def least(self, value: int) -> int:
        """The smallest of the processes' values."""
        if self.group is None:
            return value
        told = torch.tensor([value], device=self.device)
        distributed.all_reduce(told, distributed.ReduceOp.MIN, group=self.group)
        return int(told.item())

    def gather(self, tensor: Tensor) -> Tensor:
        """Every process's rows, one after another."""
        if self.group is None:
            return tensor
        parts = [torch.empty_like(tensor) for _ in self.ranks]
        distributed.all_gather(parts, tensor.contiguous(), group=self.group)
        return torch.cat(parts)

    def wait(self) -> None:
        """Until every process has come here."""
        self.least(0)


def join(rank: int, size: int, kind: str, port: int) -> tuple[Team, list[Team | None]]:
    """The team of all processes, and the one of each expert: the first half of the processes trains the high-noise
    expert, the others the low-noise one. It is None where this process is not in it. A single process is in both."""
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    if size == 1:
        alone = Team(device, (0,), 0)
        return alone, [alone, alone]
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    backend = "nccl" if kind == "cuda" else "gloo"
    distributed.init_process_group(backend, f"tcp://127.0.0.1:{port}", world_size=size, rank=rank)
    half = size // 2
    teams = [_team(device, rank, ranks) for ranks in (range(size), range(half), range(half, size))]
    everyone = teams[0]
    assert everyone is not None
    return everyone, teams[1:]


def _team(device: torch.device, rank: int, ranks: range) -> Team | None:
    group = distributed.new_group(list(ranks)) if len(ranks) > 1 else None
    return Team(device, tuple(ranks), rank, group) if rank in ranks else None
