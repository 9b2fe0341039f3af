"""Readers of camera paths from phone scanners (ARKit) and from 3D Gaussian splatting."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CameraError
from ...fields import Field, Reported
from ..conventions import Convention, to_opencv
from ..poses import as_float64, with_last_row
from ..rotation import from_quaternions, rigid
from .frame_names import BY_TIME, GAPS, ORDER, refuse_gaps, sort_by_name, sort_frames
from .lens import LENSES, RESOLUTIONS, SIZES, pixel_lens
from .matrices import unread_keys
from .reading import CameraFile, entries_of, field_of, number_of, read_json

POSES = (
    *("cameraTransform", "camera_transform", "cameraPoseARFrame", "cameraPose", "camera_pose"),
    *("transform", "transformMatrix", "pose"),
)
"""The keys of a pose in a scan's frame, in order of preference."""
AMBIGUOUS_POSES = "transform", "transformMatrix", "pose"
"""The keys in POSES that do not prove an ARKit file, because other programs use them too."""
ARKIT_ONLY = {
    "imageResolution",
    "trackingState",
    "projectionMatrix",
    "eulerAngles",
    "exposureDuration",
    "motionQuality",
}
UNSTATED_AXES = (
    "{} states no axes: ARKit's are taken, x right, y up, z back. If these are not, name them with `convention`."
)
PARTS = tuple(f"t_{row}{column}" for row in range(3) for column in range(4))
"""Polycam's keys of a matrix's 12 numbers, by row."""
ARKIT_FIELDS = (
    Field((*POSES, *PARTS, "frames"), "applied", "Camera to world, ARKit's axes, by row or by column."),
    Field(("poses", "initPose"), "applied", "Record3D: x, y, z, w of a quaternion, then the position."),
    Field((*LENSES, "perFrameIntrinsicCoeffs", "fx", "fy", "cx", "cy"), "applied", "The lens, by row or by column."),
    Field((*RESOLUTIONS, *(name for pair in SIZES for name in pair)), "applied", "Else twice cx, cy; reported."),
    Field((*BY_TIME, "frameTimestamps"), "applied", f"A list's order. {GAPS}"),
    Field(("fps",), "applied", "The speed."),
    Field(("projectionMatrix", "viewMatrix", "eulerAngles", "trackingState"), "ignored", "They follow from the rest."),
    Field(("exposureDuration", "averageAngularVelocity", "averageVelocity", "motionQuality"), "ignored", "Quality."),
    Field(("blur_score", "angular_velocity", "center_depth", "neighbors", "manual_keyframe"), "ignored", "Quality."),
    Field(("dw", "dh", "cameraType", "rangeX"), "ignored", "The depth images."),
)
SPLAT_FIELDS = (
    Field(("position", "rotation"), "applied", "Camera to world, x right, y down, z forward."),
    Field(("fx", "fy", "cx", "cy", "width", "height"), "applied", "The lens; without cx, cy its centre is the middle."),
    Field(ORDER, "applied", f"The frames' order. {GAPS}"),
    Field(("is_test",), "ignored", "Whether the image is for tests."),
)


def read_splat_cameras(path: Path, convention: Convention) -> CameraFile:
    """Read cameras.json of 3D Gaussian splatting. `path` is the file or the folder with the file."""
    path = path / "cameras.json" if path.is_dir() else path
    cameras, order_notes = sort_frames(entries_of({"cameras": read_json(path)}, "cameras", path), path)
    turns, places = (_stack(cameras, key, shape, path) for key, shape in (("rotation", (3, 3)), ("position", (3,))))
    c2w = to_opencv(rigid(turns, places), convention, str(path))
    notes = unread_keys(cameras, SPLAT_FIELDS)
    recording = CameraFile(c2w, None, None, (*order_notes, *notes))
    return recording.with_lens(lambda: pixel_lens(cameras, str(path)))


def read_arkit(path: Path, convention: Convention) -> CameraFile:
    """Read a phone scanner's ARKit path: a JSON list of frames, Record3D's metadata, or a folder with a JSON file per
    frame."""
    if path.is_dir():
        return _read_frames(_frame_files(path), path, convention)
    data = read_json(path)
    if isinstance(data, Mapping) and "poses" in data:
        return _read_record3d(data, path, convention)
    if isinstance(data, Mapping) and "frames" in data:
        common = {key: value for key, value in data.items() if key != "frames"}
        frames: list[Mapping] = [{**common, **frame} for frame in entries_of(data, "frames", path)]
        return _read_frames(frames, path, convention)
    if isinstance(data, Mapping) and data and all(isinstance(each, Mapping) for each in data.values()):  # ScanNet++
        return _read_frames([data[name] for name in sort_by_name([*data], str, str(path))], path, convention)
    if isinstance(data, Mapping) and {PARTS[0], *POSES} & data.keys():  # one frame of a folder
        return _read_frames(_frame_files(path.parent), path.parent, convention)
    return _read_frames(entries_of({"frames": data}, "frames", path), path, convention)


def scan_folder(folder: Path) -> Path | None:
    """Return the folder with a scanner's JSON files, one per frame: `folder` or a subfolder such as keyframes/cameras.
    Return None if none has such files."""
    below = (folder, *(folder / name for name in ("keyframes/corrected_cameras", "keyframes/cameras", "cameras")))
    return next((each for each in below if len(_frame_names(each)) > 1), None)


def _frame_names(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.json") if re.fullmatch(r"(frame_?)?\d+", file.stem)]


def _frame_files(folder: Path) -> list[Mapping]:
    found = scan_folder(folder)
    if found is None:
        raise CameraError(f"{folder}: no such file or folder as a scanner's numbered .json files, one for each frame")
    files = sorted(_frame_names(found), key=lambda file: int(re.sub(r"\D", "", file.stem)))
    frames = [read_json(file) for file in files]
    return entries_of({"frames": frames}, "frames", found)


def _read_frames(frames: list[Mapping], path: Path, convention: Convention) -> CameraFile:
    order = () if path.is_dir() else BY_TIME  # a folder's frames are in the order of their files
    frames, order_notes = sort_frames(frames, path, order)
    matrices = np.stack([_matrix(frame, f"{path}: frame {i}") for i, frame in enumerate(frames)])
    matrices, notes = _to_row_order(matrices, _stated_order(frames))
    key = next((name for name in POSES if name in frames[0]), "")
    if key in AMBIGUOUS_POSES and not ARKIT_ONLY & frames[0].keys():
        notes = [*notes, Reported(UNSTATED_AXES.format(key))]
    c2w = to_opencv(matrices, convention, str(path))
    notes += [*order_notes, *unread_keys(frames, ARKIT_FIELDS)]
    recording = CameraFile(c2w, None, None, tuple(notes))
    if not any({*LENSES, "fx"} & frame.keys() for frame in frames):
        return recording
    return recording.with_lens(lambda: pixel_lens(frames, str(path)))


def _read_record3d(data: Mapping, path: Path, convention: Convention) -> CameraFile:
    rows = as_float64(data["poses"], f"{path}: poses")
    if rows.ndim != 2 or rows.shape[1] != 7 or not len(rows):
        raise CameraError(f"{path}: poses {list(rows.shape)}, expected [n, 7], a quaternion and a place each")
    check_quaternions(rows[:, :4], f"{path}: poses")
    if isinstance(data.get("frameTimestamps"), list) and len(data["frameTimestamps"]) == len(rows):
        refuse_gaps(as_float64(data["frameTimestamps"], f"{path}: frameTimestamps"), f"{path} (frameTimestamps)")
    poses = rigid(from_quaternions(rows[:, :4]), rows[:, 4:])
    c2w = to_opencv(poses, convention, str(path), rows)
    fps = number_of(data["fps"], f"{path}: fps") if data.get("fps") else None
    coefficients: Any = data.get("perFrameIntrinsicCoeffs")
    size = {key: value for key, value in data.items() if key in ("w", "h")}
    one_a_frame = isinstance(coefficients, list) and len(coefficients) == len(rows)
    lenses = [{"K": row} for row in coefficients] if one_a_frame else [data]
    recording = CameraFile(c2w, None, fps, tuple(unread_keys([data], ARKIT_FIELDS)))
    return recording.with_lens(lambda: pixel_lens([{**size, **lens} for lens in lenses], str(path)))


def check_quaternions(quaternions: np.ndarray, where: str) -> None:
    """Raise CameraError if the length of a quaternion in `quaternions` [n, 4] differs from 1 by 0.02 or more."""
    lengths = np.linalg.norm(quaternions, axis=1)
    bad = np.flatnonzero(~(np.abs(lengths - 1) < 0.02))
    if len(bad):
        raise CameraError(f"{where}: pose {bad[0]} has a quaternion of length {lengths[bad[0]]:.3g}, expected 1")


def _matrix(frame: Mapping, where: str) -> np.ndarray:
    """Return a frame's pose matrix [4, 4] as stored: transposed if the file stores matrices by column."""
    if PARTS[0] in frame:
        values = [number_of(field_of(frame, part, where), f"{where} {part}") for part in PARTS]
        return np.array([*values, 0, 0, 0, 1]).reshape(4, 4)
    name = next((name for name in POSES if name in frame), POSES[0])
    found = as_float64(field_of(frame, name, where), f"{where} {name}")
    found = with_last_row(found[None])[0]
    if found.size != 16:
        raise CameraError(f"{where} {name}: {list(found.shape)}, expected 16 numbers, or 3 rows of 4")
    return found.reshape(4, 4)


def _stated_order(frames: list[Mapping]) -> str:
    """Return how the frames' pose matrices are stored: "row" or "column" (transposed), or "" if unknown. Polycam's keys
    mean "row". Otherwise the place of cx and cy in a 3x3 intrinsic matrix shows the order."""
    if any(PARTS[0] in frame for frame in frames):
        return "row"
    found = next((frame[name] for frame in frames for name in LENSES if name in frame), None)
    lens = np.zeros(0)
    with suppress(ValueError):  # of lists of unequal length, which `matrix_lens` reports
        lens = np.ravel(found) if isinstance(found, list) else lens
    if lens.size != 9 or lens.dtype.kind not in "fi" or not (lens[[2, 5]].any() or lens[[6, 7]].any()):
        return ""
    return "row" if lens[[2, 5]].any() else "column"


def _to_row_order(matrices: np.ndarray, order: str) -> tuple[np.ndarray, list[str]]:
    """Return the poses [n, 4, 4] in row-major order, and notes. Transpose poses with translations in the last row. If
    all translations are 0, `order` decides: "row", "column" or "" (unknown)."""
    last_column, last_row = (np.abs(each).max() for each in (matrices[:, :3, 3], matrices[:, 3, :3]))
    if last_row > 0 or last_column > 0:
        return (matrices.swapaxes(1, 2) if last_row > 0 and last_column < 1e-6 else matrices), []
    if order or np.allclose(matrices, matrices.swapaxes(1, 2)):
        return (matrices if order == "row" else matrices.swapaxes(1, 2)), []
    return matrices.swapaxes(1, 2), [
        "All poses are at the origin, so the file does not show whether its matrices are by row or by column: they "
        "are taken by column, as ARKit stores them."
    ]


def _stack(frames: list[Mapping], key: str, shape: tuple[int, ...], path: Path) -> np.ndarray:
    arrays = [as_float64(field_of(frame, key, f"{path}: {i}"), f"{path}: {i} {key}") for i, frame in enumerate(frames)]
    for index, array in enumerate(arrays):
        if array.shape != shape:
            raise CameraError(f"{path}: {index} {key} {list(array.shape)}, expected {list(shape)}")
    return np.stack(arrays)
