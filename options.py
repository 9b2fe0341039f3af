"""What more than one room has to agree on: choices, defaults and small types, each said here once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, get_args

from .errors import InputError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""`progress(done, total)`, called now and then by whatever takes long."""
ShowProgress = Callable[[str, str], AbstractContextManager[Progress]]
"""`show(name, unit)` is open for as long as the stage of that name runs; it gives the stage's progress callback."""

SolverName = Literal["unipc", "dpmpp"]
CameraCacheMode = Literal["auto", "off", "gpu"]
ResidencyMode = Literal["auto", "one", "both", "stream"]
KeyValueMode = Literal["auto", "gpu", "8bit", "host"]
DtypeName = Literal["bf16", "fp16", "fp32"]
Arithmetic = Literal["auto", "bf16", "fp8", "int8", "8bit"]
"""How the blocks' linear layers multiply. bf16 means the compute dtype, whichever it is; auto means bf16; 8bit means
fp8 or int8, whichever suits the card."""
AttentionMode = Literal["auto", "exact", "8bit"]
"""How the blocks' self-attention is computed; auto means exact."""
QuantizeFormat = Literal["nf4", "comfy-fp8", "int8", "nvfp4"]
"""What `quantize` writes: 4-bit weights of bitsandbytes, or a format that ComfyUI's own loaders read too."""
NoiseDevice = Literal["cpu", "cuda"]
VaeDtype = Literal["auto", "fp16", "bf16", "fp32"]
"""What the VAE decodes in."""

SOLVER_NAMES: tuple[SolverName, ...] = get_args(SolverName)
CAMERA_CACHE_MODES: tuple[CameraCacheMode, ...] = get_args(CameraCacheMode)
KEY_VALUE_MODES: tuple[KeyValueMode, ...] = get_args(KeyValueMode)
DTYPE_NAMES: tuple[DtypeName, ...] = get_args(DtypeName)
ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)
ATTENTION_MODES: tuple[AttentionMode, ...] = get_args(AttentionMode)
QUANTIZE_FORMATS: tuple[QuantizeFormat, ...] = get_args(QuantizeFormat)

BOUNDARY = 0.947
"""Share of the noise range from which on the high-noise expert predicts."""
STEPS, SHIFT, GUIDE_SCALE, FRAMES, FPS = 40, 5.0, 5.0, 81, 16
SIZE = 480, 832
"""Height and width of the official videos; their product is the default area."""
CELL = 8
"""Pixels of a latent cell, each way."""
CHUNK = 3
"""Latent frames that a causal model makes at a time, unless it is told or was made for another number of CHUNKS."""
CHUNKS = (1, 2, 3, 4)
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Values of a 4-bit weight that may share a scale."""

CAUSAL_SHIFT = 10.0
FAST_INDICES, V2_INDICES = (0, 179, 358, 679), (0, 250, 500, 750)
"""The official steps of LingBot-World Fast (v1) and 2.0, as indices of a schedule of 1,000 steps."""


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


@dataclass(frozen=True)
class Precision:
    """What a forward computes in, and how many processes share its tokens."""

    dtype: torch.dtype
    arithmetic: Arithmetic = "auto"
    attention: AttentionMode = "auto"
    processes: int = 1


@dataclass(frozen=True)
class Window:
    """How far a chunk of a causal model's video looks back, in latent frames: it sees `frames`, its own included, of
    which the first `sink` are always the video's first ones. 0 `frames` are the whole video."""

    frames: int = 0
    sink: int = 0

    def check(self, chunk: int) -> None:
        """Raises InputError for a window that its sink leaves no room in for a chunk."""
        if self.sink < 0 or self.frames < 0 or (self.frames and self.frames < self.sink + chunk):
            raise InputError(
                f"`window` {self.frames} and `sink` {self.sink}: a window holds its sink and a chunk of {chunk} latent "
                f"frames, so at least {max(self.sink, 0) + chunk}, or 0 for the whole video"
            )

    def changed(self, frames: int | None, sink: int | None, chunk: int) -> Window:
        """This one, or what is asked for in its place; None asks for nothing. Raises InputError."""
        chosen = Window(self.frames if frames is None else frames, self.sink if sink is None else sink)
        chosen.check(chunk)
        return chosen

    def held(self, frames: int, chunk: int) -> Window:
        """What is held at once of a video of `frames` latent frames, and how many of them stay for good."""
        held = min(self.frames, frames) if self.frames else frames
        return Window(held, min(self.sink, held - chunk))


@dataclass(frozen=True)
class LoraFile:
    """A LoRA's file and strength; `expert` is "high" or "low" where it is meant for one expert only."""

    path: Path
    strength: float = 1.0
    expert: str | None = None


@dataclass(frozen=True)
class Release:
    """What a release of the causal model was made for; `chunk` in latent frames. `guided`: it takes a negative prompt
    and many steps a chunk; `indices` then mean nothing."""

    name: str
    indices: tuple[int, ...]
    window: Window
    licence: str
    shift: float = CAUSAL_SHIFT
    chunk: int = CHUNK
    guided: bool = False


_LICENCE_V2 = "CC BY-NC-SA 4.0, for non-commercial use"
RELEASES = {
    "v1": Release("LingBot-World Fast", FAST_INDICES, Window(), "Apache-2.0"),
    "v2": Release("LingBot-World 2.0", V2_INDICES, Window(18, 6), _LICENCE_V2, chunk=4),
    "v2-1.3b": Release("LingBot-World 2.0 1.3B", V2_INDICES, Window(18, 6), _LICENCE_V2, shift=5.0, chunk=4),
    "v2-pretrain": Release("LingBot-World 2.0 causal-pretrain", (), Window(), _LICENCE_V2, guided=True),
}
"""Chunk, window and sink are those of the official commands, the shift as well."""
SCHEDULES = {"v1": FAST_INDICES, "v2": V2_INDICES}
"""Steps by the name of what they were published with."""


def torch_dtype(name: DtypeName) -> torch.dtype:
    """The torch.dtype that a name stands for. Imports torch: the command's help reads this file without it."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
