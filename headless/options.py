"""What a run can be asked for. The command makes its flags from these names, defaults and choices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..options import (
    BOUNDARY,
    CAMERA_CACHE_MODES,
    DTYPE_NAMES,
    FPS,
    FRAMES,
    GUIDE_SCALE,
    NOISE_DEVICES,
    RESIDENCY_MODES,
    SHIFT,
    SIZE,
    SOLVER_NAMES,
    STEPS,
    CameraCacheMode,
    DtypeName,
    NoiseDevice,
    ResidencyMode,
    SolverName,
)

CHOICES: dict[str, tuple[str, ...]] = {
    "solver": SOLVER_NAMES,
    "noise_device": NOISE_DEVICES,
    "dtype": DTYPE_NAMES,
    "residency": RESIDENCY_MODES,
    "camera_cache": CAMERA_CACHE_MODES,
}
"""The options that take one of a few words."""

PARTS = ("high", "low", "text_encoder", "tokenizer", "vae")
"""The options that name a part of the package which lies somewhere else."""


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """One run; the names are those of the official script and of the community's.

    The video has at most `max_area` pixels in the image's aspect ratio, or exactly `width` times `height`, which are
    given together. `guide_scale` is one number or (low, high). None stands for: a `seed` that is drawn, the default
    `negative` prompt, the GPU if there is one as `device`, bf16 there and fp32 on the CPU as `dtype`, the package's
    own parts as `high`, `low`, `text_encoder`, `tokenizer` and `vae`.
    """

    ckpt_dir: str | Path
    image: str | Path
    prompt: str
    output: str | Path
    negative: str | None = None
    action_path: str | Path | None = None
    max_area: int = SIZE[0] * SIZE[1]
    width: int | None = None
    height: int | None = None
    frame_num: int = FRAMES
    sampling_steps: int = STEPS
    shift: float = SHIFT
    boundary: float = BOUNDARY
    guide_scale: float | tuple[float, float] = GUIDE_SCALE
    solver: SolverName = "unipc"
    seed: int | None = None
    noise_device: NoiseDevice = "cpu"
    device: str | None = None
    dtype: DtypeName | None = None
    residency: ResidencyMode = "auto"
    camera_cache: CameraCacheMode = "auto"
    vae_tiling: bool = False
    fps: int = FPS
    high: str | Path | None = None
    low: str | Path | None = None
    text_encoder: str | Path | None = None
    tokenizer: str | Path | None = None
    vae: str | Path | None = None
