"""What a run is asked for, and every check that can be made before anything heavy is loaded."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..camera import read_pose_folder
from ..camera.pose_folder import PoseFolder
from ..errors import CameraError, DependencyError, InputError
from ..geometry import Geometry, explicit_geometry, output_geometry
from ..loaders import Checkpoint, Package, find_package
from ..loaders.package import open_experts
from ..options import (
    BOUNDARY,
    CAMERA_CACHE_MODES,
    DTYPE_NAMES,
    FPS,
    FRAMES,
    GUIDE_SCALE,
    RESIDENCY_MODES,
    SHIFT,
    STEPS,
    CameraCacheMode,
    DtypeName,
    NoiseDevice,
    ResidencyMode,
    SolverName,
    torch_dtype,
)
from ..sampling import flow_timesteps, guide_scales
from ..text import load_tokenizer
from ..text.weights import open_weights
from ..vae import read_vae
from .video import Target, check_target, find_target

LARGEST_IMAGE = 200_000_000  # pixels


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """One run, as the command takes it; the names are those of the community's scripts.

    `max_area` counts where `width` and `height` are None. `guide_scale` is (low, high). None for `seed` draws one,
    for `negative` takes the default list, for `device` the GPU if there is one, for `dtype` bf16 there and fp32 on
    the CPU. The last five name parts that are not where the package has them.
    """

    ckpt_dir: str | Path
    image: str | Path
    prompt: str
    output: str | Path
    negative: str | None = None
    action_path: str | Path | None = None
    max_area: int = 480 * 832
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


@dataclass(frozen=True)
class Plan:
    """A run that can start: everything named exists, fits together and can be written."""

    options: GenerateOptions
    package: Package
    high: Checkpoint
    low: Checkpoint
    image: np.ndarray
    geometry: Geometry
    camera: PoseFolder | None
    target: Target
    device: torch.device
    dtype: torch.dtype
    notes: tuple[str, ...]

    @property
    def guided(self) -> bool:
        """Whether a negative prompt takes part."""
        return any(scale != 1 for scale in guide_scales(self.options.guide_scale))


def make_plan(options: GenerateOptions) -> Plan:
    """Checks everything that can be checked cheaply, cheapest first. Raises a LingBotError for what is wrong."""
    _check_settings(options)
    device = _device(options.device)
    target = find_target(options.output)
    _check_modules("diffusers", *(() if target.pattern else ("av",)))
    image = read_image(options.image)
    package = _package(options)
    _check_parts(package)
    high, low = open_experts(package.experts)
    camera = None if options.action_path is None else _camera(Path(options.action_path), high)
    geometry = _geometry(options, image, camera)
    check_target(target, geometry)
    dtype = torch_dtype(options.dtype or ("fp32" if device.type == "cpu" else "bf16"))
    notes = _notes(options, geometry, camera)
    return Plan(options, package, high, low, image, geometry, camera, target, device, dtype, notes)


def read_image(path: str | Path) -> np.ndarray:
    """Pixels uint8 [H, W, 3] of an image file, turned as its EXIF data says. Raises InputError."""
    from PIL import Image, ImageOps

    path = Path(path)
    if not path.is_file():
        raise InputError(f"--image {path}: no such file")
    try:
        with Image.open(path) as image:
            if image.width * image.height > LARGEST_IMAGE:
                raise InputError(f"--image {path}: {image.width}x{image.height} pixels are too many; scale it down")
            return np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--image {path}: not an image that can be read ({error})") from error


def _check_settings(options: GenerateOptions) -> None:
    flow_timesteps(options.sampling_steps, options.shift, options.solver)
    guide_scales(options.guide_scale)
    if not 0 <= options.boundary <= 1:
        raise InputError(f"--boundary {options.boundary}: a share of the noise range from 0 to 1 is expected")
    if (options.width is None) != (options.height is None):
        raise InputError("--width and --height go together; name both, or neither and --size")
    if options.seed is not None and not 0 <= options.seed < 2**63:
        raise InputError(f"--seed {options.seed}: expected 0 to 2**63 - 1")
    if options.residency not in RESIDENCY_MODES:
        raise InputError(f"--residency {options.residency}: expected one of {', '.join(RESIDENCY_MODES)}")
    if options.camera_cache not in CAMERA_CACHE_MODES:
        raise InputError(f"--camera_cache {options.camera_cache}: expected one of {', '.join(CAMERA_CACHE_MODES)}")
    if options.dtype not in (None, *DTYPE_NAMES):
        raise InputError(f"--dtype {options.dtype}: expected one of {', '.join(DTYPE_NAMES)}")


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"--device {name}: not a device that torch knows; use cpu, cuda or cuda:1") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device {name}: torch sees {torch.cuda.device_count()} CUDA GPUs here; use --device cpu")
    return device


def _check_modules(*names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise DependencyError(
            f"{' and '.join(missing)} cannot be imported by {sys.executable}; install with: "
            f'"{sys.executable}" -m pip install "lingbot-world[cli]"'
        )


def _package(options: GenerateOptions) -> Package:
    names = ("high", "low", "text_encoder", "tokenizer", "vae")
    named = {name: Path(getattr(options, name)) for name in names if getattr(options, name) is not None}
    package = find_package(options.ckpt_dir, **named)
    for name in names[2:]:
        part = getattr(package, name)
        if part is None:
            raise InputError(f"--ckpt_dir {options.ckpt_dir}: no {name} in this package; name one with --{name} PATH")
        if not part.exists():
            raise InputError(f"--{name} {part}: no such file or folder")
    return package


def _check_parts(package: Package) -> None:
    load_tokenizer(package.tokenizer)
    open_weights(package.text_encoder)
    read_vae(package.vae)


def _camera(path: Path, checkpoint: Checkpoint) -> PoseFolder:
    control = checkpoint.config.control
    if control is None:
        raise CameraError(
            f"--action_path {path}: {checkpoint.path} has no camera layers (plain Wan) and would ignore the camera; "
            "use a LingBot-World checkpoint, or leave --action_path out"
        )
    return read_pose_folder(path, actions=control == 7)


def _geometry(options: GenerateOptions, image: np.ndarray, camera: PoseFolder | None) -> Geometry:
    n_poses = None if camera is None else len(camera.c2w)
    if options.width is not None:
        return explicit_geometry(options.width, options.height, options.frame_num, n_poses)
    return output_geometry(image.shape[1], image.shape[0], options.max_area, options.frame_num, n_poses)


def _notes(options: GenerateOptions, geometry: Geometry, camera: PoseFolder | None) -> tuple[str, ...]:
    notes = () if camera is None else camera.notes
    asked, frames = options.frame_num, geometry.frames
    if frames == asked:
        return notes
    reason = "Frames come in 4n+1"
    if camera is not None and len(camera.c2w) < asked:
        reason = f"{options.action_path} holds {len(camera.c2w)} poses"
    return (*notes, f"{reason}: the video has {frames} frames, not {asked}.")
