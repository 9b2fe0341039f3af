"""Every check that can be made before anything heavy is loaded, and what the checks opened."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..camera import read_pose_folder
from ..camera.pose_folder import PoseFolder
from ..errors import CameraError, DependencyError, InputError
from ..geometry import Geometry, explicit_geometry, output_geometry
from ..loaders import Checkpoint, Package, find_package
from ..loaders.package import open_experts
from ..options import torch_dtype
from ..sampling import flow_timesteps, guide_scales
from ..text import Tokenizer, load_tokenizer
from ..text.encoder import check_vocabulary
from ..text.weights import UMT5Weights, open_weights
from ..vae import read_vae
from .options import CHOICES, PARTS, GenerateOptions
from .video import Target, check_target, find_target

LARGEST_IMAGE = 200_000_000  # pixels


@dataclass(frozen=True)
class Plan:
    """A run that can start: every file exists, fits the others and is open; the output can be written.

    Weights are mapped from their files, which takes no memory.
    """

    options: GenerateOptions
    tokenizer: Tokenizer
    text_encoder: UMT5Weights
    vae: Mapping[str, Tensor]
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
    """Checks the options and opens every file, the cheapest first. Raises a LingBotError for what is wrong."""
    _check_settings(options)
    device = _device(options.device)
    target = find_target(options.output)
    if target.pattern is None:
        _check_module("av")
    image = read_image(options.image)
    package = _package(options)
    tokenizer, text_encoder = load_tokenizer(package.tokenizer), open_weights(package.text_encoder)
    check_vocabulary(tokenizer, text_encoder)
    vae = read_vae(package.vae)
    high, low = open_experts(package.experts)
    camera = None if options.action_path is None else _camera_files(Path(options.action_path), high)
    geometry = _geometry(options, image, camera)
    check_target(target, geometry)
    dtype = torch_dtype(options.dtype or ("fp32" if device.type == "cpu" else "bf16"))
    return Plan(
        options=options,
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        vae=vae,
        high=high,
        low=low,
        image=image,
        geometry=geometry,
        camera=camera,
        target=target,
        device=device,
        dtype=dtype,
        notes=_notes(options, geometry, camera),
    )


def read_image(path: str | Path) -> np.ndarray:
    """Pixels uint8 [H, W, 3] of an image file, turned as its EXIF data says. Raises InputError."""
    from PIL import Image, ImageOps

    path = Path(path)
    if not path.is_file():
        raise InputError(f"`image` {path}: no such file")
    try:
        with Image.open(path) as image:
            if image.width * image.height > LARGEST_IMAGE:
                raise InputError(f"`image` {path}: {image.width}x{image.height} pixels are too many; scale it down")
            return np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"`image` {path}: not an image that can be read ({error})") from error


def _check_settings(options: GenerateOptions) -> None:
    for name, choices in CHOICES.items():
        found = getattr(options, name)
        if found not in choices and not (found is None and name == "dtype"):
            raise InputError(f"`{name}` {found}: expected one of {', '.join(choices)}")
    flow_timesteps(options.sampling_steps, options.shift, options.solver)
    guide_scales(options.guide_scale)
    if not 0 <= options.boundary <= 1:
        raise InputError(f"`boundary` {options.boundary}: a share of the noise range from 0 to 1 is expected")
    if (options.width is None) != (options.height is None):
        raise InputError("`width` and `height` go together; name both or neither")
    if options.seed is not None and not 0 <= options.seed < 2**63:
        raise InputError(f"`seed` {options.seed}: expected 0 to 2**63 - 1")
    if options.fps < 1:
        raise InputError(f"`fps` {options.fps}: expected at least 1 frame a second")
    if options.noise_device == "cuda" and not torch.cuda.is_available():
        raise InputError("`noise_device` cuda: torch sees no CUDA GPU here; use cpu")


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"`device` {name}: not a device that torch knows; use cpu, cuda or cuda:1") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"`device` {name}: torch sees {torch.cuda.device_count()} CUDA GPUs here; use cpu")
    return device


def _check_module(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise DependencyError(
            f"{name} cannot be imported by {sys.executable}; install with: "
            f'"{sys.executable}" -m pip install "lingbot-world[cli]"'
        )


def _package(options: GenerateOptions) -> Package:
    package = find_package(options.ckpt_dir, **{name: getattr(options, name) for name in PARTS})
    for name in ("text_encoder", "tokenizer", "vae"):
        if getattr(package, name) is None:
            raise InputError(f"`ckpt_dir` {options.ckpt_dir}: no {name} in this package; name its path as `{name}`")
    return package


def _camera_files(path: Path, checkpoint: Checkpoint) -> PoseFolder:
    control = checkpoint.config.control
    if control is None:
        raise CameraError(
            f"`action_path` {path}: {checkpoint.path} has no camera layers (plain Wan) and would ignore the camera; "
            "use a LingBot-World checkpoint, or leave `action_path` out"
        )
    return read_pose_folder(path, actions=control == 7)


def _geometry(options: GenerateOptions, image: np.ndarray, camera: PoseFolder | None) -> Geometry:
    n_poses = None if camera is None else len(camera.c2w)
    if options.width is not None and options.height is not None:
        return explicit_geometry(options.width, options.height, options.frame_num, n_poses)
    return output_geometry(image.shape[1], image.shape[0], options.max_area, options.frame_num, n_poses)


def _notes(options: GenerateOptions, geometry: Geometry, camera: PoseFolder | None) -> tuple[str, ...]:
    notes = () if camera is None else camera.notes
    wanted, frames = options.frame_num, geometry.frames
    if frames == wanted:
        return notes
    reason = "Frames come in 4n+1"
    if camera is not None and len(camera.c2w) < wanted:
        reason = f"{options.action_path} holds {len(camera.c2w)} poses"
    return (*notes, f"{reason}: the video has {frames} frames, not {wanted}.")
