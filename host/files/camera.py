"""Camera paths in ComfyUI: listing, loading and drawing files, and use in a CONDITIONING."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path

import folder_paths
import node_helpers
import numpy as np
import torch
from PIL import Image

from ...camera import action_embedding, camera_embedding, frame_count, read_pose_folder
from ...camera.advice import warnings
from ...camera.formats import FORMATS
from ...camera.formats.sniff import looks_like_camera, looks_like_lens, looks_like_poses
from ...camera.origin_report import convention_warnings, report_origin
from ...camera.path import CameraPath, Origin, lens_from_fov
from ...camera.poses import FEWEST_POSES
from ...camera.preview import render_preview
from ...errors import CameraError
from ...options import CELL
from ..prompt.notice import show_note, show_warning
from ..prompt.queue import PromptValues, validating_prompt
from .folders import PACKAGES
from .image import pixels, to_image
from .names import split_path

NEXT_TO_POSES, DEFAULT_LENS = "beside the poses", "default (79 degrees)"
CAMERA_CONTROL, ACTION_CONTROL = "camera", "action (W, A, S, D)"
CONDITIONING_KEY = "lingbot_camera"
VIDEO_LATENTS = ("WanImageToVideo", "WanFirstLastFrameToVideo", "WanFunInpaintToVideo", "EmptyHunyuanLatentVideo")
"""ComfyUI's nodes that make a video latent, with as many video frames as their input `length`."""
FOLDER_DEPTH = 4  # levels of folders below the input folder that are searched


def pose_choices() -> list[str]:
    """Return the names of .npy files and folders with poses, in ComfyUI's input folder and `models/lingbot_world`."""
    found = _named(looks_like_poses, ".npy")
    return sorted({name.removesuffix("/poses.npy") if name.endswith("/poses.npy") else name for name in found})


def lens_choices() -> list[str]:
    """Return NEXT_TO_POSES, DEFAULT_LENS, and the names of .npy files with lenses (fx, fy, cx, cy)."""
    return [NEXT_TO_POSES, DEFAULT_LENS, *_named(looks_like_lens, ".npy")]


def camera_files() -> list[str]:
    """Return the names of files that look like a camera path, in ComfyUI's input folder and `models/lingbot_world`."""
    return _named(looks_like_camera, ".npz", ".txt", ".csv", ".tum", ".json", ".npy", ".bin")


def _named(looks: Callable[[Path], bool], *suffixes: str) -> list[str]:
    found = set()
    for root in _roots():
        for folder, folders, files in os.walk(root):
            below = Path(folder).relative_to(root)
            if len(below.parts) >= FOLDER_DEPTH:
                folders.clear()
            named = [below / file for file in files if file.lower().endswith(suffixes)]
            found |= {name.as_posix() for name in named if looks(root / name)}
    return sorted(found)


def resolve(name: str) -> Path:
    """Return the path of `name` in the input folder or `models/lingbot_world`. Raise InputError for a name outside of
    these folders, CameraError if nothing is there."""
    parts = split_path(name, "camera file", "input folder")
    for root in _roots():
        path = root.joinpath(*parts)
        if path.exists() and _inside(path):
            return path
    raise CameraError(f"{name!r} was not found in {', '.join(map(str, _roots()))}: put it there, or choose another")


def pose_files(poses: str, lens: str) -> tuple[Path, Path | None, Path]:
    """Return the pose, lens and action files. The lens file is None for DEFAULT_LENS; the action file may not exist."""
    path = resolve(poses)
    path = path / "poses.npy" if path.is_dir() else path
    if not path.is_file():
        raise CameraError(f"{path}: no such file")
    lens_path = (
        None if lens == DEFAULT_LENS else path.with_name("intrinsics.npy") if lens == NEXT_TO_POSES else resolve(lens)
    )
    if lens_path is not None and not lens_path.is_file():
        raise CameraError(f"{lens_path}: no such file; choose {DEFAULT_LENS!r} or another lens file")
    actions = path.with_name("action.npy")
    for file in (path, lens_path, actions):
        if file is not None and not _inside(file):
            raise CameraError(f"{file}: a link that leaves ComfyUI's input folder; put the file itself there")
    return path, lens_path, actions


def _inside(path: Path) -> bool:
    return any(path.resolve().is_relative_to(root.resolve()) for root in _roots())


def check_poses(poses: str, lens: str = DEFAULT_LENS, start: int = 0) -> None:
    """Raise InputError or CameraError if a pose or lens file is unusable, or has too few poses from `start` on."""
    pose_file, lens_file, _ = pose_files(poses, lens if lens in lens_choices() else DEFAULT_LENS)
    folder = read_pose_folder(pose_file, lens=lens_from_fov() if lens_file is None else lens_file)
    check_length(pose_file, len(folder.c2w), start)


def load_path(poses: str, lens: str, frames: int, start: int) -> CameraPath:
    """Return the path in the pose file `poses` from frame `start` on: at most `frames` poses, rounded down to 4n+1.
    `lens`: the node's lens choice."""
    pose_file, lens_file, _ = pose_files(poses, lens)
    folder = read_pose_folder(pose_file, lens=lens_from_fov() if lens_file is None else lens_file)
    show_warning("", *folder.notes)
    available = check_length(pose_file, len(folder.c2w), start)
    origin = Origin("lingbot", FORMATS["lingbot"].convention)
    path = CameraPath(folder.c2w, folder.intrinsics, actions=folder.actions, origin=origin)
    path = path[start : start + frame_count(frames, available)]
    show_origin(path)
    return path


def check_length(file: Path, poses: int, start: int, minimum: int = FEWEST_POSES) -> int:
    """Return how many poses are left from frame `start` on. Raise CameraError if they are fewer than `minimum`."""
    if start < 0:
        raise CameraError(f"{file}: `start` is {start}, expected 0 or more, counted from the first pose")
    if poses - start < minimum:
        raise CameraError(f"{file}: {poses} poses, fewer than {minimum} of them from frame {start} on; lower `start`")
    return poses - start


def chain(paths: list[CameraPath]) -> CameraPath:
    """Return the paths joined: each begins at the last pose of the one before. The first path gives the frame rate."""
    return reduce(CameraPath.__add__, [replace(path, fps=paths[0].fps) for path in paths])


def camera_embedding_for(path: CameraPath, latent: dict, control: str) -> torch.Tensor:
    """Return the model's camera input [1, C, f, h, w] for a path and a LATENT: C is 384, or 448 for ACTION_CONTROL.
    Raise CameraError if they do not fit."""
    samples = latent["samples"]
    if samples.ndim != 5:
        raise CameraError(f"latent {list(samples.shape)} is of images; wire the video latent of WanImageToVideo")
    latent_frames, height, width = samples.shape[2:]
    actions = fitting_actions(path, latent_frames, control)
    show_warning("")
    if len(path) != latent_frames * 4 - 3:
        show_warning(
            f"The camera path has {len(path)} poses, the video {latent_frames * 4 - 3} frames, as frames come "
            "as 4n+1 (5, 9, 13, ... 81): the last poses are not used."
        )
    size = {"frames": frame_count(len(path), len(path)), "height": height * CELL, "width": width * CELL}
    if actions is None:
        return camera_embedding(path.c2w, path.intrinsics, **size)
    return action_embedding(path.c2w, path.intrinsics, actions, **size)


def fitting_actions(path: CameraPath, latent_frames: int, control: str) -> np.ndarray | None:
    """Return the path's actions (W, A, S, D) if `control` is ACTION_CONTROL, else None. Raise CameraError if the needed
    actions are missing, or if the path's length does not fit the latent."""
    frames, video = frame_count(len(path), len(path)), latent_frames * 4 - 3
    if frames != video:
        raise CameraError(
            f"the camera path has {len(path)} poses for {frames} frames, the latent {latent_frames} latent frames for "
            f"{video}: wire the camera's frames output to the length of WanImageToVideo"
        )
    if control == CAMERA_CONTROL:
        return None
    if path.actions is None:
        raise CameraError("this camera path has no actions: make it with LingBot-World Camera Keys, or load action.npy")
    return path.actions


def show_origin(path: CameraPath) -> list[str]:
    """Show on the running node how the path's file was interpreted. Return the shown texts, warnings first."""
    notes, doubted = report_origin(path), convention_warnings(path)
    show_warning(*doubted)
    show_note(*notes)
    return [*doubted, *notes]


def show_warnings(path: CameraPath, frames: int) -> None:
    """Show warnings on the running node about camera moves that the model will not follow in `frames` video frames."""
    show_warning("", *warnings(path, frames))


def add_camera(conditioning, embedding: torch.Tensor):
    """Return the CONDITIONING with the camera embedding [1, C, f, h, w] in each prompt, replacing any earlier one."""
    if any(CONDITIONING_KEY in extras for _, extras in conditioning):
        show_warning(
            "The texts had a camera already, from another Apply LingBot-World Camera: this one takes its "
            "place. For one after the other, use LingBot-World Camera Chain."
        )
    return node_helpers.conditioning_set_values(conditioning, {CONDITIONING_KEY: embedding})


def preview_image(
    path: CameraPath, image: torch.Tensor | None, frames: int, size: tuple[int, int], light: bool = False
) -> torch.Tensor:
    """Return a drawing of a path over `frames` frames as an IMAGE [1, height, width, 3]. `image` is the video's first
    frame. `light` selects a light theme."""
    first = None if image is None else Image.fromarray(pixels(image[0]))
    return to_image(render_preview(path, first, frames, size, light))


def check_camera_fits() -> None:
    """Raise CameraError if the camera path of an Apply Camera node does not fit its latent's length. ComfyUI must be
    validating this node. Do nothing if path or length is unknown before the run."""
    try:
        prompt, node = validating_prompt()
        inputs, values = prompt[node]["inputs"], PromptValues(prompt)
        path, control = values.evaluate(inputs["camera"]), values.evaluate(inputs["control"])
        video = prompt[inputs["latent"][0]]
        if video["class_type"] not in VIDEO_LATENTS or not isinstance(path, CameraPath):
            return
        latent_frames = (values.evaluate(video["inputs"]["length"]) - 1) // 4 + 1
    except Exception:  # a value not known yet, or another node's error, which that node reports
        return
    fitting_actions(path, latent_frames, control)


def _roots() -> list[Path]:
    packages = folder_paths.get_folder_paths(PACKAGES) if PACKAGES in folder_paths.folder_names_and_paths else []
    return [Path(folder_paths.get_input_directory()), *map(Path, packages)]
