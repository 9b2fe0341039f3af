"""Choices, default values and small types that several packages use."""

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
"""A callback progress(done, total), with both numbers in the same unit, such as bytes."""
ShowProgress = Callable[[str, str], AbstractContextManager[Progress]]
"""A function show(name, unit) that returns a context manager. The context yields the Progress callback of a stage."""

SolverName = Literal["unipc", "dpmpp"]
CameraCacheMode = Literal["auto", "off", "gpu"]
ResidencyMode = Literal["auto", "one", "both", "stream"]
KeyValueMode = Literal["auto", "gpu", "8bit", "host"]
DtypeName = Literal["bf16", "fp16", "fp32"]
Arithmetic = Literal["auto", "bf16", "fp8", "int8", "8bit"]
"""The number format of matrix products in the blocks' linear layers. "auto", the default, and "bf16" both select the
model's own dtype, even fp16 or fp32. "8bit" selects fp8 or int8 by the device."""
AttentionMode = Literal["auto", "exact", "8bit"]
"""The precision of matrix products in self-attention. "exact" means the model's dtype, and "auto", the default, selects
"exact". "8bit" selects the device's 8-bit kernel."""
QuantizeFormat = Literal["nf4", "comfy-fp8", "int8", "nvfp4"]
"""The formats that `quantize` writes: bitsandbytes' nf4, and three that ComfyUI's loaders can read."""
NoiseDevice = Literal["cpu", "cuda"]
VaeDtype = Literal["auto", "fp16", "bf16", "fp32"]
"""The dtype in which the VAE decodes. "auto": fp16 on a GPU with fp16 tensor cores, bf16 for live videos on a CPU with
fast bf16, else fp32."""

SOLVER_NAMES: tuple[SolverName, ...] = get_args(SolverName)
CAMERA_CACHE_MODES: tuple[CameraCacheMode, ...] = get_args(CameraCacheMode)
KEY_VALUE_MODES: tuple[KeyValueMode, ...] = get_args(KeyValueMode)
DTYPE_NAMES: tuple[DtypeName, ...] = get_args(DtypeName)
ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)
ATTENTION_MODES: tuple[AttentionMode, ...] = get_args(AttentionMode)
QUANTIZE_FORMATS: tuple[QuantizeFormat, ...] = get_args(QuantizeFormat)

BOUNDARY = 0.947
"""The lowest timestep of the high-noise expert, as a fraction of the 1,000 training timesteps."""
STEPS, SHIFT, GUIDE_SCALE, FRAMES, FPS = 40, 5.0, 5.0, 81, 16
SIZE = 480, 832
"""The (height, width) of the official videos in pixels."""
CELL = 8
"""The height and width, in pixels, of the square that one latent pixel (cell) covers."""
CHUNK = 3
"""The default number of latent frames that a causal model generates together. CHUNKS has the allowed numbers."""
CHUNKS = (1, 2, 3, 4)
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""The supported block sizes of 4-bit quantization: numbers of values that share a scale."""

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
    """The settings of a model's forward pass that determine its memory: number formats and the number of processes.

    arithmetic, attention: the formats of matrix products.
    processes: the number of processes that split a video's tokens.
    """

    dtype: torch.dtype
    arithmetic: Arithmetic = "auto"
    attention: AttentionMode = "auto"
    processes: int = 1


@dataclass(frozen=True)
class Window:
    """The attention window of a causal model, in latent frames.

    frames: the number of frames that a chunk attends to, including its own; 0: all.
    sink: the number of first frames that always stay in the window.
    """

    frames: int = 0
    sink: int = 0

    def check(self, chunk: int) -> None:
        """Raise InputError if a number is negative, or the window is too small for the sink and `chunk` latent
        frames."""
        if self.sink < 0 or self.frames < 0 or (self.frames and self.frames < self.sink + chunk):
            raise InputError(
                f"`window` {self.frames} and `sink` {self.sink}: a window holds its sink and a chunk of {chunk} latent "
                f"frames, so at least {max(self.sink, 0) + chunk}, or 0 for the whole video"
            )

    def changed(self, frames: int | None, sink: int | None, chunk: int) -> Window:
        """Return a copy with other values; None keeps the current one. Raises InputError as `check(chunk)` does."""
        chosen = Window(self.frames if frames is None else frames, self.sink if sink is None else sink)
        chosen.check(chunk)
        return chosen

    def in_cache(self, video_frames: int, chunk: int) -> Window:
        """Return the KV cache's window for a video of `video_frames` latent frames. The result's `frames` is at most
        `video_frames`, which also replaces 0 (all). The result's `sink` is at most its `frames` minus `chunk`."""
        frames = min(self.frames or video_frames, video_frames)
        return Window(frames, min(self.sink, frames - chunk))


@dataclass(frozen=True)
class LoraFile:
    """A LoRA's file and strength, for one expert ("high" or "low") or for both (None)."""

    path: Path
    strength: float = 1.0
    expert: str | None = None


@dataclass(frozen=True)
class Release:
    """The default settings of a release of the causal model.

    indices: a few-step model's denoising steps, in a schedule of 1,000 steps; empty if `guided`.
    window: the attention window; Window() attends to the whole video.
    guided: whether the model uses classifier-free guidance, and a full schedule instead of `indices`.
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
"""The releases of the causal model by short name, with the settings of the official commands."""
SCHEDULES = {"v1": FAST_INDICES, "v2": V2_INDICES}
"""The denoising steps of the releases v1 and v2, as indices into a schedule of 1,000 steps."""


def torch_dtype(name: DtypeName) -> torch.dtype:
    """Return the torch.dtype of a short name such as "bf16". Torch is imported only here."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
