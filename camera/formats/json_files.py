"""Readers of nerfstudio's transforms.json and camera_path.json, and a writer of transforms.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...fields import Field
from ...outputs import written_whole
from ..conventions import Convention, to_opencv
from ..path import CameraPath
from ..poses import LENS_HEIGHT, LENS_WIDTH
from ..rotation import OPENGL_TO_OPENCV
from .frame_names import GAPS, ORDER, sort_frames
from .lens import (
    FLAG_FIELDS,
    LENSES,
    MODEL_FIELD,
    PARAMETER_KEYS,
    describes_image,
    focal_of,
    matrix_lens,
    refuse_flags,
    refuse_model,
    refuse_two_lenses,
)
from .matrices import unread_keys
from .reading import CameraFile, Lens, entries_of, field_of, lens_notes, lens_rows, number_of, read_object

DISTORTION = ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2")
FOVS = {"x_fov": np.pi / 180, "camera_angle_x": 1.0, "y_fov": np.pi / 180, "camera_angle_y": 1.0}
"""The keys of a field of view in transforms.json, each with the factor that converts it to radians."""
USUAL_NAMES = {other: usual for usual, *others in PARAMETER_KEYS.values() for other in others}
"""Other programs' keys for a lens and its image size, mapped to nerfstudio's keys."""
ACROSS, DOWN = ("x_fov", "fl_x", "camera_angle_x"), ("y_fov", "fl_y", "camera_angle_y")
"""The keys in transforms.json for the horizontal (ACROSS) and the vertical (DOWN) focal length or field of view, in
order of preference."""
WORLD = ("applied_transform", "applied_scale", "scale", "offset", "aabb", "aabb_scale", "orientation_override", "up")
IMAGES = ("depth_file_path", "mask_path", "sharpness", "exposure", "ply_file_path", "semantics_path", "normal_path")
SPLITS = ("train_filenames", "val_filenames", "test_filenames", "n_frames", "colmap_im_id", "camera_id")
TRAINING = ("n_extra_learnable_dims", "enable_depth_loading", "integer_depth_scale", "white_transparent")
SCENE = ("black_transparent", "render_aabb", "light_dir", "near", "far", "from_na", "panoptic_classes")
TRANSFORMS_FIELDS = (
    MODEL_FIELD,
    FLAG_FIELDS,
    Field((*ACROSS, *DOWN, "cx", "cy"), "applied", "The lens. A frame's own field takes precedence over the file's."),
    Field(("w", "h"), "applied", "The image's size. Without it twice cx, cy; for an angle alone 832x480. Reported."),
    Field((*USUAL_NAMES, *LENSES), "applied", "The same under other programs' names; a 3x3 matrix is the lens."),
    Field(DISTORTION, "reported", "Distortion: the model's camera is a pinhole."),
    Field(("rolling_shutter", "transform_matrix_start", "transform_matrix_end"), "reported", "The shutter's time."),
    Field(("frames", "transform_matrix"), "applied", "Camera to world, OpenGL axes, 4x4 or 3x4 by row."),
    Field(ORDER, "applied", f"The frames' order. {GAPS}"),
    Field(("from_mitsuba",), "applied", "Mitsuba's axes: x left, y up, z forward."),
    Field(WORLD, "ignored", "They move or scale the whole world, which the model does not see."),
    Field((*IMAGES, *SPLITS, *TRAINING, *SCENE), "ignored", "They describe images and training."),
    Field(("rotation",), "ignored", "Blender's synthetic scenes: the turntable's step, already in the matrices."),
)
PATH_FIELDS = (
    Field(("camera_type",), "refused", "Every type except perspective; `--fov_deg` replaces the lens."),
    Field(("camera_path", "camera_to_world"), "applied", "Camera to world, OpenGL axes, by row."),
    Field(("fov",), "applied", "Degrees from top to bottom, one for each pose."),
    Field(("render_width", "render_height", "fps"), "applied", "The image size of the lens, and the frame rate."),
    Field(("aspect",), "ignored", "It follows from render_width and render_height."),
    Field(("keyframes", "seconds", "smoothness_value", "is_cycle", "crop", "matrix"), "ignored", "Of the editor."),
    Field(("default_fov", "default_transition_sec", "render_time", "timestamp"), "ignored", "Of the editor."),
)
MITSUBA = np.diag([-1.0, 1.0, -1.0, 1.0])
"""The transform from Mitsuba's camera axes (x left, y up, z forward) to OpenGL's."""
LENS_SIDES = np.array([LENS_WIDTH, LENS_HEIGHT, LENS_WIDTH, LENS_HEIGHT])


def read_transforms(path: Path, convention: Convention) -> CameraFile:
    """Read transforms.json of nerfstudio or instant-ngp. `path` is the file or its folder."""
    path = path / "transforms.json" if path.is_dir() else path
    data = read_object(path)
    frames, order_notes = sort_frames(entries_of(data, "frames", path), path)
    matrices = [field_of(frame, "transform_matrix", f"{path}: frame {i}") for i, frame in enumerate(frames)]
    c2w = to_opencv(matrices, convention, str(path))
    c2w = c2w @ MITSUBA if data.get("from_mitsuba") else c2w
    notes = [*order_notes, *unread_keys((data, *frames), TRANSFORMS_FIELDS)]
    if any(np.any(frame.get("rolling_shutter") or 0) for frame in (data, *frames)):
        notes.append("rolling_shutter is ignored: the model's camera exposes the whole image at once.")
    return CameraFile(c2w, None, None, tuple(notes)).with_lens(lambda: _read_lens(data, frames, str(path)))


def _merge(data: Mapping, frame: Mapping, where: str) -> dict[str, Any]:
    """Return a frame's fields under nerfstudio's names, completed by `data`, the fields common to all frames."""
    refuse_two_lenses(data, where)
    refuse_two_lenses(frame, where)
    data, frame = _by_usual_names(data), _by_usual_names(frame)
    own = {*frame}
    for group in (ACROSS, DOWN):
        own |= {*group} if own & {*group} else set()  # no mixture of two lenses
    return {key: value for key, value in data.items() if key not in own} | frame


def _by_usual_names(fields: Mapping) -> dict[str, Any]:
    """Return the fields that are not null, with the lens and image size also under nerfstudio's keys."""
    found = {key: value for key, value in fields.items() if value is not None}
    lens = {}
    if any(isinstance(found.get(name), list | Mapping) for name in LENSES):
        lens = dict(zip(("fl_x", "fl_y", "cx", "cy"), matrix_lens(found, "intrinsics"), strict=True))
    other = {
        ours: found[theirs]
        for theirs, ours in USUAL_NAMES.items()
        if theirs in found and describes_image(theirs, found)
    }
    return {key: value for key, value in lens.items() if value is not None} | other | found


def _read_lens(data: Mapping, own: list[Mapping], where: str) -> Lens:
    frames = [_merge(data, frame, where) for frame in own]
    lens = np.concatenate([_transforms_lens(frame, f"{where}: frame {i}") for i, frame in enumerate(frames)])
    terms = [number_of(frame[key], f"{where}: {key}") for frame in frames for key in DISTORTION if key in frame]
    notes = [*_contradiction(frames[0], where), *lens_notes(lens, *_image_size(frames[0], where), terms)]
    if not {"w", "h"} & frames[0].keys():
        size = "{:g}x{:g}".format(*_image_size(frames[0], where))
        centred = {"cx", "cy"} <= frames[0].keys()
        taken = f"twice cx, cy is taken, {size}" if centred else f"camera_angle_x is taken across {size}"
        notes.append(f"No image size in the file: {taken}.")
    return lens, tuple(notes)


def _transforms_lens(frame: Mapping, where: str) -> np.ndarray:
    refuse_model(frame.get("camera_model", "PINHOLE"), where)
    refuse_flags(frame, where)
    width, height = _image_size(frame, where)
    fx, fy = (_focal(frame, names, side, where) for names, side in ((ACROSS, width), (DOWN, height)))
    if fx is None:
        fx = field_of(frame, "camera_angle_x", where) if fy is None else fy
    values = [frame.get("cx", width / 2), frame.get("cy", height / 2)]
    return lens_rows(
        [[fx, fx if fy is None else fy, *(number_of(value, where) for value in values)]], width, height, where
    )


def _contradiction(frame: Mapping, where: str) -> list[str]:
    for names, side in zip((ACROSS, DOWN), _image_size(frame, where), strict=True):
        stated = [name for name in names if name in frame]
        focals = [_focal(frame, (name,), side, where) or 0.0 for name in stated]
        if stated and max(focals) > 1.02 * min(focals):
            return [f"{' and '.join(stated)} state different lenses: {stated[0]} is taken."]
    return []


def _focal(frame: Mapping, names: tuple[str, ...], side: float, where: str) -> float | None:
    """Return the focal length in pixels from the first of the keys `names` in the frame, or None without such a key.
    `side`: the image's width or height in pixels, to convert a field of view."""
    name = next((name for name in names if name in frame), None)
    if name is None:
        return None
    value = number_of(frame[name], f"{where} {name}")
    return value if name not in FOVS else focal_of(value * FOVS[name], side, f"{where} {name} {value:g}")


def _image_size(frame: Mapping, where: str) -> tuple[float, float]:
    """Return the image's width and height in pixels, as stated or as implied by the lens."""
    if not {"w", "h"} & frame.keys():
        if {"cx", "cy"} <= frame.keys():
            width, height = (2 * number_of(frame[key], f"{where} {key}") for key in ("cx", "cy"))
            return width, height
        if frame.keys() & FOVS.keys() and "fl_x" not in frame:
            return LENS_WIDTH, LENS_HEIGHT
    width, height = (number_of(field_of(frame, key, where), f"{where} {key}") for key in ("w", "h"))
    return width, height


def read_camera_path(path: Path, convention: Convention) -> CameraFile:
    """Read nerfstudio's camera_path.json with matrices of the given `convention`."""
    data = read_object(path)
    entries = entries_of(data, "camera_path", path)
    matrices = [field_of(entry, "camera_to_world", f"{path}: pose {i}") for i, entry in enumerate(entries)]
    fps = number_of(data["fps"], f"{path}: fps") if data.get("fps") else None
    c2w = to_opencv(matrices, convention, str(path))
    notes = unread_keys((data, *entries), PATH_FIELDS)
    return CameraFile(c2w, None, fps, tuple(notes)).with_lens(lambda: _path_lens(data, entries, path))


def _path_lens(data: Mapping, entries: list[Mapping], path: Path) -> Lens:
    for entry in (data, *entries):
        refuse_model(entry.get("camera_type", "perspective"), str(path), "camera_type")
    size = ("render_width", "render_height")
    width, height = (number_of(field_of(data, key, str(path)), f"{path}: {key}") for key in size)
    angles = [field_of(entry, "fov", f"{path}: pose {i}") for i, entry in enumerate(entries)]
    focal = [focal_of(np.deg2rad(number_of(fov, f"{path}: fov")), height, f"{path}: fov {fov}") for fov in angles]
    lens = lens_rows([[each, each, width / 2, height / 2] for each in focal], width, height, str(path))
    return lens, lens_notes(lens, width, height)


def write_transforms(
    path: CameraPath,
    file: Path,
    *,
    names: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    points: str | None = None,
) -> None:
    """Write nerfstudio's transforms.json. `names`: the frames' files, by default frame_00001.png and so on. `size`: the
    images' (height, width) in pixels. `points`: a PLY file in the same folder."""
    height, width = size or (LENS_HEIGHT, LENS_WIDTH)
    lenses = [
        dict(zip(("fl_x", "fl_y", "cx", "cy"), map(float, row), strict=True))
        for row in path.intrinsics * (np.array([width, height, width, height]) / LENS_SIDES)
    ]
    varies = any(lens != lenses[0] for lens in lenses)
    named = names or [f"frame_{index:05d}.png" for index in range(1, len(path) + 1)]
    frames = [
        {"file_path": name, **(lens if varies else {}), "transform_matrix": matrix.tolist()}
        for name, lens, matrix in zip(named, lenses, path.c2w @ OPENGL_TO_OPENCV, strict=True)
    ]
    head = {"camera_model": "PINHOLE", **({} if varies else lenses[0]), "w": width, "h": height}
    head |= {} if points is None else {"ply_file_path": points}
    with written_whole(file) as (part,):
        part.write_text(json.dumps({**head, "frames": frames}, indent=1), "utf-8")
