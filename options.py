"""Choices, default values and small types that several packages use, each defined only here."""

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
"""A callback progress(done, total). `done` and `total` count the same unit, such as bytes."""
ShowProgress = Callable[[str, str], AbstractContextManager[Progress]]
"""A function show(name, unit) that displays a stage's progress. It returns a context manager, which yields the Progress
callback."""

SolverName = Literal["unipc", "dpmpp"]
CameraCacheMode = Literal["auto", "off", "gpu"]
ResidencyMode = Literal["auto", "one", "both", "stream"]
KeyValueMode = Literal["auto", "gpu", "8bit", "host"]
DtypeName = Literal["bf16", "fp16", "fp32"]
Arithmetic = Literal["auto", "bf16", "fp8", "int8", "8bit"]
"""The number format of matrix products in the blocks' linear layers. "bf16" and the default "auto" mean the compute
dtype, even if it is fp16 or fp32. "8bit" means fp8 or int8, whichever suits the GPU."""
AttentionMode = Literal["auto", "exact", "8bit"]
"""The number format of matrix products in the blocks' self-attention. "auto" and "exact" mean the compute dtype. "8bit"
means an approximation with 8-bit products."""
QuantizeFormat = Literal["nf4", "comfy-fp8", "int8", "nvfp4"]
"""The formats that the command `quantize` writes: bitsandbytes' 4-bit nf4, and three that ComfyUI's loaders can
read."""
NoiseDevice = Literal["cpu", "cuda"]
VaeDtype = Literal["auto", "fp16", "bf16", "fp32"]
"""The dtype in which the VAE decodes. "auto" means fp16 on a GPU with matrix instructions for fp16, and bf16 for walks
on a CPU with bf16 instructions. In all other cases, and if several processes decode, "auto" means fp32."""

SOLVER_NAMES: tuple[SolverName, ...] = get_args(SolverName)
CAMERA_CACHE_MODES: tuple[CameraCacheMode, ...] = get_args(CameraCacheMode)
KEY_VALUE_MODES: tuple[KeyValueMode, ...] = get_args(KeyValueMode)
DTYPE_NAMES: tuple[DtypeName, ...] = get_args(DtypeName)
ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)
ATTENTION_MODES: tuple[AttentionMode, ...] = get_args(AttentionMode)
QUANTIZE_FORMATS: tuple[QuantizeFormat, ...] = get_args(QuantizeFormat)

BOUNDARY = 0.947
"""The timestep that divides the steps between the two experts, as a fraction of the 1,000 training timesteps. The
high-noise expert predicts the steps at or above this timestep."""
STEPS, SHIFT, GUIDE_SCALE, FRAMES, FPS = 40, 5.0, 5.0, 81, 16
SIZE = 480, 832
"""The (height, width) of the official videos in pixels. Their product is the default of the option `max_area`."""
CELL = 8
"""The height and width, in pixels, of the square that one latent pixel (cell) covers."""
CHUNK = 3
"""The default number of latent frames that a causal model generates together. A release or an option may choose another
number, one of CHUNKS."""
CHUNKS = (1, 2, 3, 4)
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""The supported block sizes of 4-bit quantization. A block is a number of values that share a scale."""

CAUSAL_SHIFT = 10.0
FAST_INDICES, V2_INDICES = (0, 179, 358, 679), (0, 250, 500, 750)
"""The official denoising steps of LingBot-World Fast (v1) and 2.0 (v2), as indices into a schedule of 1,000 steps."""


@dataclass(frozen=True)
class PerExpert(Generic[T]):
    """A pair of values: one for the high-noise expert, and one for the low-noise expert."""

    high: T
    low: T

    def __iter__(self) -> Iterator[T]:
        return iter((self.high, self.low))

    def of(self, high: bool) -> T:
        """Return the high-noise expert's value if `high`, else the low-noise expert's."""
        return self.high if high else self.low


@dataclass(frozen=True)
class Precision:
    """The number formats in which a model computes, and the number of processes.

    dtype: the compute dtype.
    arithmetic, attention: the formats of matrix products (see Arithmetic and AttentionMode).
    processes: the number of processes that split a video's tokens among them.
    """

    dtype: torch.dtype
    arithmetic: Arithmetic = "auto"
    attention: AttentionMode = "auto"
    processes: int = 1


@dataclass(frozen=True)
class Window:
    """The attention window of a causal model, in latent frames.

    frames: the number of latent frames that a chunk attends to, including its own; 0 for the whole video so far.
    sink: the number of latent frames from the start of the video that always stay in the window; `frames` includes
    them.
    """

    frames: int = 0
    sink: int = 0

    def check(self, chunk: int) -> None:
        """Raise InputError if `frames` or `sink` is negative. Also raise InputError if `frames` is not 0 and less than
        `sink` plus `chunk`, the number of latent frames in a chunk."""
        if self.sink < 0 or self.frames < 0 or (self.frames and self.frames < self.sink + chunk):
            raise InputError(
                f"`window` {self.frames} and `sink` {self.sink}: a window holds its sink and a chunk of {chunk} latent "
                f"frames, so at least {max(self.sink, 0) + chunk}, or 0 for the whole video"
            )

    def changed(self, frames: int | None, sink: int | None, chunk: int) -> Window:
        """Return a copy with other values of `frames` and `sink`; None keeps the current value. Raises InputError if
        the copy fails `check(chunk)`."""
        chosen = Window(self.frames if frames is None else frames, self.sink if sink is None else sink)
        chosen.check(chunk)
        return chosen

    def held(self, frames: int, chunk: int) -> Window:
        """Return the part of a video that the key-value cache holds. The video has `frames` latent frames, generated in
        chunks of `chunk`.

        The result's `frames` is the number of latent frames in a full cache. It is never 0, even if this window's
        `frames` is 0 (the whole video). The result's `sink` is the number of latent frames that are never evicted; it
        leaves room for a chunk.
        """
        held = min(self.frames, frames) if self.frames else frames
        return Window(held, min(self.sink, held - chunk))


@dataclass(frozen=True)
class LoraFile:
    """A LoRA's file and the strength that the user set. `expert`: "high" or "low" if the LoRA is for only one expert,
    else None."""

    path: Path
    strength: float = 1.0
    expert: str | None = None


@dataclass(frozen=True)
class Release:
    """The default settings of a release of the causal model.

    name: the name for messages.
    indices: the denoising steps, as indices into a schedule of 1,000 steps. A guided release ignores them.
    window: the attention window; Window() attends to the whole video.
    licence: the licence's name for messages.
    shift: the shift of the noise schedule.
    chunk: the number of latent frames that are generated together.
    guided: whether the release uses a negative prompt and many steps per chunk.
    """

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
"""The releases of the causal model by short name. Chunk, window, sink and shift are those of the official commands."""
SCHEDULES = {"v1": FAST_INDICES, "v2": V2_INDICES}
"""The denoising steps of the releases v1 and v2, as indices into a schedule of 1,000 steps."""


def torch_dtype(name: DtypeName) -> torch.dtype:
    """Return the torch.dtype of a short name such as "bf16". This function imports torch, so that commands such as
    --help, which do not call it, start fast."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
