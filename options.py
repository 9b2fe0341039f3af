"""What more than one room has to agree on: choices, defaults and small types, each said here once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, get_args

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""`progress(done, total)`, called now and then by whatever takes long."""

SolverName = Literal["unipc", "dpmpp"]
CameraCacheMode = Literal["auto", "off", "gpu"]
ResidencyMode = Literal["auto", "one", "both", "stream"]
KeyValueMode = Literal["auto", "gpu", "8bit", "host"]
DtypeName = Literal["bf16", "fp16", "fp32"]
NoiseDevice = Literal["cpu", "cuda"]

SOLVER_NAMES: tuple[SolverName, ...] = get_args(SolverName)
CAMERA_CACHE_MODES: tuple[CameraCacheMode, ...] = get_args(CameraCacheMode)
RESIDENCY_MODES: tuple[ResidencyMode, ...] = get_args(ResidencyMode)
KEY_VALUE_MODES: tuple[KeyValueMode, ...] = get_args(KeyValueMode)
DTYPE_NAMES: tuple[DtypeName, ...] = get_args(DtypeName)
NOISE_DEVICES: tuple[NoiseDevice, ...] = get_args(NoiseDevice)

BOUNDARY = 0.947
"""Share of the noise range from which on the high-noise expert predicts."""
STEPS, SHIFT, GUIDE_SCALE, FRAMES, FPS = 40, 5.0, 5.0, 81, 16
SIZE = 480, 832
"""Height and width of the official videos; their product is the default area."""
CELL = 8
"""Pixels of a latent cell, each way."""


@dataclass(frozen=True)
class PerExpert(Generic[T]):
    """A value for the high-noise expert and one for the low-noise expert."""

    high: T
    low: T

    def __iter__(self) -> Iterator[T]:
        return iter((self.high, self.low))

    def of(self, high: bool) -> T:
        """The high-noise expert's value, or else the low-noise expert's."""
        return self.high if high else self.low


def torch_dtype(name: DtypeName) -> torch.dtype:
    """The torch.dtype that a name stands for. Imports torch: the command's help reads this file without it."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
