"""A reader of JSON files with pose matrices under a name such as c2w."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import CameraError
from ...fields import Field, notes_on_unknown
from ..conventions import Convention, to_opencv
from ..poses import LENS_HEIGHT, LENS_WIDTH, as_float64
from .frame_names import GAPS, ORDER, sort_by_name, sort_frames
from .lens import LENSES, PINHOLES, RESOLUTIONS, SIZES, focal_of, pixel_lens, refuse_model, refuse_other_angle
from .reading import CONVENTION_KEYS, CameraFile, Lens, field_of, lens_notes, lens_rows, number_of, read_json

_CAMS = r"cam(era)?s?"
DIRECTIONS = {
    "c2w": rf"c2w|{_CAMS}(2|to)world|^matrixworld(?!inverse|autoupdate|needsupdate)|^worldmatrix$|worldfrom{_CAMS}|"
    rf"worldt{_CAMS}$|twc$",
    "w2c": rf"w2c|world(2|to)({_CAMS}|view)|{_CAMS}fromworld|{_CAMS}tworld|tcw$|^viewmat|^matrixworldinverse|"
    r"^extrinsics?(mat\w*)?$",
}
"""Patterns for a matrix's name, by direction; the first match decides. Names are first reduced to lower-case letters
and digits."""

AXES = {"opencv": r"open_?cv|colmap|\brdf\b", "opengl": r"open_?gl|blender|nerf|arkit|\brub\b"}


def axes_of(text: str) -> str:
    """Return "opencv" or "opengl", the axes that a text names, also by a program such as Blender; else ""."""
    return next((name for name, pattern in AXES.items() if re.search(pattern, text, re.IGNORECASE)), "")


def direction_of(name: str) -> str:
    """Return "c2w" or "w2c" if a matrix's name, such as cam_to_world or T_cw, states the direction; else ""."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((direction for direction, pattern in DIRECTIONS.items() if re.search(pattern, plain)), "")


def array_direction(name: str) -> str:
    """Return "c2w" or "w2c" if the name of an .npz array states a direction, else "". The names camera_pose and
    camera_poses mean "c2w"."""
    return direction_of(name) or ("c2w" if name in ("camera_poses", "camera_pose") else "")


def unread_keys(objects: Iterable[Mapping], fields: Sequence[Field]) -> list[str]:
    """Return one note for the user, in a list, on the keys of the JSON objects `objects` that `fields` does not cover.
    Keys that state a matrix convention count as covered. Return an empty list if all are covered."""
    keys = {key: value for each in objects for key, value in each.items()}
    texts = {key: value for key, value in keys.items() if isinstance(value, str) and CONVENTION_KEYS.search(key)}
    silent = [key for key in keys if not (axes_of(text := texts.get(key, "")) or direction_of(text))]
    return notes_on_unknown(silent, fields)


SIDES = *RESOLUTIONS, *(name for pair in SIZES for name in pair)
BLENDER_KINDS = ("type", "camera_type")
MATRIX_FIELDS = (
    Field(("matrices", "fps"), "applied", "A list of 4x4 or 3x4 matrices or of 16 numbers each; the frame rate."),
    Field(("c2w", "w2c", "extrinsics"), "applied", "Any name that states the direction, of a list or in each frame."),
    Field((*LENSES, "fx", "fy", "cx", "cy", *SIDES), "applied", "The lens in pixels, and the size of its images."),
    Field(ORDER, "applied", f"The frames' order. {GAPS}"),
    Field(("convention",), "applied", "A value of `--convention`. The option takes precedence."),
    Field(("fov_deg", "angle_x", "angle_y"), "applied", "Degrees or radians across, radians down; one or many."),
    Field(("lens", "sensor_width"), "applied", "Blender's millimetres: one number each, or one a frame."),
    Field(("sensor_fit", "sensor_height"), "applied", "VERTICAL: the lens is measured from top to bottom."),
    Field(("resolution_x", "resolution_y", "shift_x", "shift_y"), "applied", "The image's size and the lens's centre."),
    Field(("pixel_aspect_x", "pixel_aspect_y"), "applied", "Pixels that are not square."),
    Field(BLENDER_KINDS, "refused", "Blender's ORTHO and PANO; `--fov_deg` replaces the lens."),
    Field(("resolution_percentage",), "ignored", "It scales the image and the lens alike."),
)
SENSOR_MM = 36.0
"""The default width of Blender's sensor, in millimetres."""


class Matrices(NamedTuple):
    """Pose matrices in a JSON file.

    key: the matrices' key, which states their direction, such as "w2c".
    matrices: the matrices as in the file.
    frames: objects with further fields, such as the lens: one object per frame, or one for all frames.
    notes: notes for the user on the frames' order.
    """

    key: str
    matrices: Any
    frames: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


def named_matrices(data: Any, path: Path, direction: str = "") -> Matrices | None:
    """Return the pose matrices in the JSON content `data`, found by a key that states a direction, such as "w2c".
    Return None without such a key. `path`: the file, for messages. `direction`: "c2w" or "w2c", preferred if both
    occur, or ""."""
    whole = _flatten(data) if isinstance(data, Mapping) else {}
    if key := _directed(whole, direction):
        return Matrices(key, whole[key], [{name: value for name, value in whole.items() if name != key}])
    listed = [data, *whole.values()] if isinstance(data, Mapping | list) else []
    frames = next((each for each in listed if isinstance(each, list) and are_frames(each)), None)
    if frames is None and isinstance(data, Mapping) and are_frames([*data.values()]):
        whole = {}
        frames = [data[name] for name in sort_by_name([*data], str, str(path))]
    if frames is None:
        return None
    ordered, notes = sort_frames(frames, path)
    flat = [_flatten(frame, inner_names=True) for frame in ordered]
    key = _directed((name for name in flat[0] if all(name in each for each in flat)), direction)
    common = {name: value for name, value in whole.items() if not are_frames(value)}
    shared = [{**common, **each} for each in flat]
    return None if key is None else Matrices(key, [frame[key] for frame in flat], shared, notes)


def _directed(names: Iterable[str], direction: str) -> str | None:
    return max(filter(direction_of, names), key=lambda name: direction_of(name) == direction, default=None)


def are_frames(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _flatten(data: Mapping, inner_names: bool = False) -> dict[str, Any]:
    """Return a copy of a JSON object, in which nested objects whose key states a pose direction are flattened: {"w2c":
    {"cam0": m}} becomes {"w2c_cam0": m}. `inner_names`: also flatten nested objects with such a key inside."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        inner = isinstance(value, Mapping) and (direction_of(key) or inner_names and any(map(direction_of, value)))
        flat |= {f"{key}_{name}": each for name, each in value.items()} if inner else {key: value}
    return flat


def read_matrices(path: Path, convention: Convention) -> CameraFile:
    """Read a JSON file: a list of matrices, or an object with "matrices" or a key that states a pose direction, such as
    "w2c". The lens is optional. The direction in `convention` overrides the key's."""
    data = read_json(path)
    direction = "c2w" if convention.camera_to_world else "w2c"
    named = None if isinstance(data, Mapping) and "matrices" in data else named_matrices(data, path, direction)
    if named is not None:
        return _read_named(named, convention, str(path))
    if not isinstance(data, Mapping):
        return CameraFile(to_opencv(data, convention, str(path)))
    c2w = to_opencv(field_of(data, "matrices", str(path)), convention, str(path))
    fps = number_of(data["fps"], f"{path}: fps") if data.get("fps") else None
    recording = CameraFile(c2w, None, fps, tuple(unread_keys([data], MATRIX_FIELDS)))
    kinds = {str(data.get(key) or "PERSP").upper() for key in BLENDER_KINDS}
    if {*LENSES} & data.keys():
        return recording.with_lens(lambda: pixel_lens([dict(data)], str(path)))
    if not {"lens", "angle_x", "angle_y", "fov_deg"} & data.keys() and kinds <= {*PINHOLES}:
        return recording
    return recording.with_lens(lambda: _blender_lens(data, len(c2w), str(path)))


def _read_named(named: Matrices, convention: Convention, where: str) -> CameraFile:
    c2w, frames = to_opencv(named.matrices, convention, f"{where}: {named.key}"), named.frames
    name = next((name for name in LENSES if name in frames[0]), "fx")
    of_each = frames[0].get(name) if len(frames) < len(c2w) else None
    if isinstance(of_each, list) and len(of_each) == len(c2w) and isinstance(of_each[0], list | Mapping):
        rest = {key: value for key, value in frames[0].items() if key not in LENSES}
        frames = [{**rest, name: lens} for lens in of_each]
    strange = unread_keys(frames, (*MATRIX_FIELDS, Field((named.key,), "applied", "The matrices.")))
    fps = number_of(frames[0]["fps"], f"{where}: fps") if frames[0].get("fps") else None
    recording = CameraFile(c2w, None, fps, (*named.notes, *strange))
    if name not in frames[0]:
        return recording
    return recording.with_lens(lambda: pixel_lens(frames * (len(c2w) // len(frames)), where))


def _blender_lens(data: Mapping, frames: int, where: str) -> Lens:
    def row(key: str, default: float) -> np.ndarray:
        values = as_float64(data.get(key, default), f"{where}: {key}")
        if values.shape not in ((), (frames,)) or not np.isfinite(values).all():
            raise CameraError(f"{where}: {key} {list(values.shape)}, expected a number, or one for each pose")
        return np.broadcast_to(values, frames)

    for key in BLENDER_KINDS:
        refuse_model(data.get(key) or "PERSP", where, key)
    width, height = (
        float(row(f"resolution_{axis}", side)[0] * row(f"pixel_aspect_{axis}", 1)[0])
        for axis, side in (("x", LENS_WIDTH), ("y", LENS_HEIGHT))
    )
    if not (width >= 1 and height >= 1):
        raise CameraError(f"{where}: resolution {width:g}x{height:g}, expected pixels")
    fit = data.get("sensor_fit", "AUTO")
    if fit not in ("AUTO", "HORIZONTAL", "VERTICAL"):
        raise CameraError(f"{where}: sensor_fit {fit!r:.40}, expected AUTO, HORIZONTAL or VERTICAL")
    vertical = fit == "VERTICAL" or (fit == "AUTO" and height > width)
    side, sensor = (
        (height if vertical else width),
        row("sensor_height" if fit == "VERTICAL" else "sensor_width", SENSOR_MM),
    )
    if "lens" in data:
        focal = side * row("lens", 0) / sensor
        refuse_other_angle({} if vertical or np.ptp(focal) else data, float(focal[0]), width, where)
    else:
        key = next(name for name in ("fov_deg", "angle_x", "angle_y") if name in data)
        across, angle = height if key == "angle_y" else width, row(key, 0)
        angle = np.deg2rad(angle) if key == "fov_deg" else angle
        focal = np.array([focal_of(each, across, f"{where}: {key}") for each in angle])
    longest = max(width, height)
    cx, cy = width / 2 - row("shift_x", 0) * longest, height / 2 + row("shift_y", 0) * longest
    lens = lens_rows(np.stack([focal, focal, cx, cy], 1), width, height, where)
    return lens, lens_notes(lens, width, height)
