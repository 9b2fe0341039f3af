"""Camera paths in JSON: nerfstudio's transforms.json and camera_path.json, and plain lists of matrices."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CameraError
from ..conventions import CONVENTIONS, Convention, to_opencv
from ..path import CameraPath
from ..poses import LENS_HEIGHT, LENS_WIDTH, as_float64
from ..rotation import OPENGL_TO_OPENCV
from .reading import Recording, in_name_order, lens_notes, lens_rows, read_json
from .writing import written_whole

DISTORTION = ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2")


def read_transforms(path: Path) -> Recording:
    """nerfstudio's or instant-ngp's transforms.json: camera-to-world, OpenGL axes; frames in the order of their names.

    A lens for all frames or one a frame, from fl_x or camera_angle_x, in pixels of a w x h image.
    """
    data = _object(read_json(path), str(path))
    frames = _entries(data, "frames", path)
    if all("file_path" in frame for frame in frames):
        frames = in_name_order(frames, lambda frame: str(frame["file_path"]), str(path))
    matrices = [_field(frame, "transform_matrix", f"{path}: frame {i}") for i, frame in enumerate(frames)]
    merged = [{**data, **frame} for frame in frames]
    lens = np.concatenate([_transforms_lens(frame, f"{path}: frame {i}") for i, frame in enumerate(merged)])
    terms = [_float(frame[key], f"{path}: {key}") for frame in merged for key in DISTORTION if key in frame]
    notes = [*lens_notes(lens, *_image_size(merged[0], str(path)), terms)]
    if not {"w", "h"} & merged[0].keys():
        notes.append(f"No image size in the file: camera_angle_x is taken across {LENS_WIDTH}x{LENS_HEIGHT}.")
    return Recording(to_opencv(matrices, CONVENTIONS["opengl_c2w"], str(path)), lens, None, tuple(notes))


def read_camera_path(path: Path) -> Recording:
    """nerfstudio's camera_path.json: camera-to-world by row in OpenGL axes, field of view in degrees top to bottom."""
    data = _object(read_json(path), str(path))
    if data.get("camera_type", "perspective") != "perspective":
        raise CameraError(f"{path}: camera_type {data['camera_type']!r}, expected perspective")
    entries = _entries(data, "camera_path", path)
    matrices = [_field(entry, "camera_to_world", f"{path}: pose {i}") for i, entry in enumerate(entries)]
    size = ("render_width", "render_height")
    width, height = (_float(_field(data, key, str(path)), f"{path}: {key}") for key in size)
    fov_deg = np.array([_float(_field(e, "fov", f"{path}: pose {i}"), f"{path}: fov") for i, e in enumerate(entries)])
    if not ((fov_deg > 0) & (fov_deg < 180)).all():
        raise CameraError(f"{path}: fov outside 0 to 180 degrees")
    focal = height / 2 / np.tan(np.deg2rad(fov_deg) / 2)
    pixels = np.stack([focal, focal, np.full_like(focal, width / 2), np.full_like(focal, height / 2)], 1)
    lens = lens_rows(pixels, width, height, str(path))
    fps = _float(data["fps"], f"{path}: fps") if data.get("fps") else None
    c2w = to_opencv(matrices, CONVENTIONS["opengl_c2w"], str(path))
    return Recording(c2w, lens, fps, lens_notes(lens, width, height))


def read_matrices(path: Path, convention: Convention) -> Recording:
    """A list of 4x4 or 3x4 matrices or of 16 numbers each, or {"matrices": [...], "fps": ...}; no lens inside."""
    data = read_json(path)
    entries = _field(data, "matrices", str(path)) if isinstance(data, Mapping) else data
    fps = _float(data["fps"], f"{path}: fps") if isinstance(data, Mapping) and data.get("fps") else None
    return Recording(to_opencv(entries, convention, str(path)), None, fps)


def write_transforms(path: CameraPath, file: Path) -> None:
    """The path as nerfstudio's transforms.json for 832x480 frames frame_00001.png and on."""
    fx, fy, cx, cy = path.intrinsics[0]
    frames = [
        {"file_path": f"frame_{index:05d}.png", "transform_matrix": matrix.tolist()}
        for index, matrix in enumerate(path.c2w @ OPENGL_TO_OPENCV, 1)
    ]
    lens = {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": LENS_WIDTH, "h": LENS_HEIGHT}
    with written_whole(file) as (part,):
        part.write_text(json.dumps({"camera_model": "PINHOLE", **lens, "frames": frames}, indent=1), "utf-8")


def _image_size(frame: Mapping, where: str) -> tuple[float, float]:
    """Width and height; where Blender's exports leave both out, and give no more than an angle, the lens's own."""
    if "camera_angle_x" in frame and not {"w", "h", "fl_x"} & frame.keys():
        return LENS_WIDTH, LENS_HEIGHT
    width, height = (_float(_field(frame, key, where), f"{where} {key}") for key in ("w", "h"))
    return width, height


def _transforms_lens(frame: Mapping, where: str) -> np.ndarray:
    width, height = _image_size(frame, where)
    if "fl_x" in frame:
        fx = _float(frame["fl_x"], f"{where} fl_x")
    else:
        fx = width / 2 / np.tan(_float(_field(frame, "camera_angle_x", where), f"{where} camera_angle_x") / 2)
    values = [frame.get("fl_y", fx), frame.get("cx", width / 2), frame.get("cy", height / 2)]
    return lens_rows([[fx, *(_float(value, where) for value in values)]], width, height, where)


def _object(data: Any, where: str) -> Mapping:
    if not isinstance(data, Mapping):
        raise CameraError(f"{where}: {type(data).__name__}, expected an object")
    return data


def _entries(data: Mapping, key: str, path: Path) -> list[Mapping]:
    entries = _field(data, key, str(path))
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise CameraError(f"{path}: {key} is not a list of frames with something in it")
    return entries


def _field(data: Mapping, key: str, where: str) -> Any:
    if key not in data:
        raise CameraError(f"{where}: no {key}; found {', '.join(map(str, list(data)[:8])) or 'nothing'}")
    return data[key]


def _float(value: Any, where: str) -> float:
    array = as_float64(value, where)
    if array.ndim or not np.isfinite(array):
        raise CameraError(f"{where}: {value!r}, expected a finite number")
    return float(array)
