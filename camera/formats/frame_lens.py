"""Readers of the lens and the image size that a frame in a JSON file states."""

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import CameraError
from ..poses import as_float64
from .lens import focal_of
from .reading import Lens, field_of, lens_notes, lens_rows, number_of

LENSES = ("intrinsics", "intrinsic", "cameraIntrinsics", "camera_intrinsics", "K")
RESOLUTIONS = ("imageResolution", "image_resolution", "resolution", "camera_resolution")
PARAMETER_KEYS = {
    "fx": ("fl_x", "fx", "focal_x"),
    "fy": ("fl_y", "fy", "focal_y"),
    "cx": ("cx",),
    "cy": ("cy",),
    "width": ("w", "width", "image_width", "imageWidth"),
    "height": ("h", "height", "image_height", "imageHeight"),
}
"""The keys in JSON files for a lens and for the size of its images, all in pixels. The first key of each is
nerfstudio's."""
SIZES = tuple(zip(PARAMETER_KEYS["width"], PARAMETER_KEYS["height"], strict=True))
PAIRED = dict((*SIZES, *((height, width) for width, height in SIZES)))
"""For each key of a width the key of the height, and for each key of a height that of the width. A width or a height
alone, such as a camera's height, is not an image size."""
LEAST_SIDE = 16
"""The least side of an image, in pixels, if width and height have keys that do not belong together."""
HORIZONTAL_FOVS = {"x_fov": np.pi / 180, "camera_angle_x": 1.0, "fov_deg": np.pi / 180, "angle_x": 1.0}
"""The keys of a horizontal field of view in JSON files, each with the factor that converts its value to radians."""
SAME_LENS = 1.02
"""The largest ratio at which two values of one lens parameter agree."""


def pixel_lens(frames: Sequence[Mapping], where: str) -> Lens:
    """Return the lens [n, 4] from each frame's fx, fy, cx, cy or 3x3 matrix, in pixels of an 832x480 image, and notes
    for the user. `where`: the beginning of error messages."""
    rows, sizes, notes = [], [], []
    for index, frame in enumerate(frames):
        refuse_two_lenses(frame, f"{where}: frame {index}")
        fx, fy, cx, cy = matrix_lens(frame, f"{where}: frame {index}")
        size = _size(frame, f"{where}: frame {index}")
        if size is None:
            if cx is None or cy is None:
                raise CameraError(f"{where}: no size of the images that the focal length refers to")
            size = 2 * cx, 2 * cy
            notes.append("No image size in the file: taken for twice cx, cy.")
        refuse_other_angle(frame, fx, size[0], f"{where}: frame {index}")
        rows.append([fx, fy, size[0] / 2 if cx is None else cx, size[1] / 2 if cy is None else cy])
        sizes.append(size)
    lens = np.concatenate([lens_rows([row], *size, where) for row, size in zip(rows, sizes, strict=True)])
    return lens, (*dict.fromkeys(notes), *lens_notes(lens, *sizes[0]))


def refuse_two_lenses(fields: Mapping, where: str) -> None:
    """Raise CameraError, which begins with `where`, if a frame's `fields` state two different lenses or image sizes
    under the keys in PARAMETER_KEYS and LENSES."""
    lenses = {name: matrix_lens({name: fields[name]}, where) for name in LENSES if _is_lens(fields.get(name))}
    for at, (quantity, names) in enumerate(PARAMETER_KEYS.items()):
        stated = [name for name in names if fields.get(name) is not None and PAIRED.get(name, name) in fields]
        values = {name: number_of(fields[name], f"{where} {name}") for name in stated}
        values |= {name: value for name, each in lenses.items() if at < 4 and (value := each[at]) is not None}
        _refuse_different(values, quantity, where)


def describes_image(key: str, fields: Mapping) -> bool:
    """Return whether a key in PARAMETER_KEYS describes an image. A width or height without its pair in `fields` does so
    only if it and a side in the other direction are integers of at least LEAST_SIDE."""
    if key not in PAIRED or PAIRED[key] in fields:
        return True
    others = PARAMETER_KEYS["height" if key in PARAMETER_KEYS["width"] else "width"]
    return _is_side(fields[key]) and any(_is_side(fields.get(other)) for other in others)


def _is_side(value: object) -> bool:
    return isinstance(value, int | float) and value >= LEAST_SIDE and value % 1 == 0


def refuse_other_angle(fields: Mapping, fx: float, width: float, where: str) -> None:
    """Raise CameraError, which begins with `where`, if a field of view in a frame's `fields` contradicts the focal
    length `fx` of an image of `width` pixels."""
    for name, factor in HORIZONTAL_FOVS.items():
        if isinstance(fields.get(name), int | float) and 0 < fields[name] * factor < np.pi:
            angle = focal_of(fields[name] * factor, width, f"{where} {name}")
            _refuse_different({"the lens in pixels": fx, name: angle}, "focal length", where)


def _is_lens(value: object) -> bool:
    return isinstance(value, list | Mapping)


def _refuse_different(values: Mapping[str, float], quantity: str, where: str) -> None:
    if len(values) > 1 and max(values.values()) > SAME_LENS * min(values.values()):
        found = " and ".join(f"{name} ({value:.6g})" for name, value in values.items())
        raise CameraError(f"{where}: {found} state a different {quantity}; remove the wrong one")


def matrix_lens(frame: Mapping, where: str) -> tuple[float, float, float | None, float | None]:
    """Return a frame's fx, fy, cx, cy in pixels. A missing fy equals fx; a missing cx or cy is None. The numbers come
    from a 3x3 matrix, four numbers or an object under a key in LENSES, or else from the frame's own fields. Raises
    CameraError, which begins with `where`, for a missing fx and for other shapes."""
    name = next((name for name in LENSES if _is_lens(frame.get(name))), None)
    values = frame if name is None else frame[name]
    if isinstance(values, Mapping) and "intrinsic_matrix" in values:  # Open3D's
        values = values["intrinsic_matrix"]
    if isinstance(values, Mapping):
        fx = number_of(field_of(values, "fx", where), f"{where} fx")
        fy = number_of(values.get("fy", fx), f"{where} fy")
        cx, cy = (number_of(values[key], f"{where} {key}") if key in values else None for key in ("cx", "cy"))
        return fx, fy, cx, cy
    matrix = as_float64(values, f"{where} {name}")
    if matrix.size == 4:
        fx, fy, cx, cy = map(float, matrix.ravel())
        return fx, fy, cx, cy
    if matrix.size != 9:
        raise CameraError(f"{where} {name}: {list(matrix.shape)}, expected 9 numbers, or fx, fy, cx, cy")
    matrix = matrix.reshape(3, 3)
    matrix = matrix.T if not matrix[:2, 2].any() else matrix
    return float(matrix[0, 0]), float(matrix[1, 1]), float(matrix[0, 2]), float(matrix[1, 2])


def _size(frame: Mapping, where: str) -> tuple[float, float] | None:
    for name in (*RESOLUTIONS, *LENSES):
        value = frame.get(name)
        if isinstance(value, Mapping) and (name in RESOLUTIONS or _size(value, where)):
            return _size(value, f"{where} {name}")
        if value is not None and name in RESOLUTIONS:
            sides = as_float64(value, f"{where} {name}")
            if sides.shape != (2,):
                raise CameraError(f"{where} {name}: {list(sides.shape)}, expected width and height")
            return float(sides[0]), float(sides[1])
    for pair in SIZES:
        if all(frame.get(key) is not None for key in pair):
            width, height = (number_of(frame[key], f"{where} {key}") for key in pair)
            return width, height
    return None
