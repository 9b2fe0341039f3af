"""The camera models of other programs, and readers of the lens and image size in a JSON frame."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import CameraError
from ...fields import Field
from ..poses import as_float64
from .reading import Lens, field_of, lens_notes, lens_rows, number_of


class Model(NamedTuple):
    """A camera model.

    numbers: the number of parameters, including distortion.
    focals: the number of focal lengths; 0 for a panorama.
    pinhole: whether the model is a pinhole camera, apart from distortion.
    """

    numbers: int
    focals: int
    pinhole: bool = True


COLMAP_MODELS: dict[int, tuple[str, Model]] = {
    0: ("SIMPLE_PINHOLE", Model(3, 1)),
    1: ("PINHOLE", Model(4, 2)),
    2: ("SIMPLE_RADIAL", Model(4, 1)),
    3: ("RADIAL", Model(5, 1)),
    4: ("OPENCV", Model(8, 2)),
    5: ("OPENCV_FISHEYE", Model(8, 2, False)),
    6: ("FULL_OPENCV", Model(12, 2)),
    7: ("FOV", Model(5, 2, False)),
    8: ("SIMPLE_RADIAL_FISHEYE", Model(4, 1, False)),
    9: ("RADIAL_FISHEYE", Model(5, 1, False)),
    10: ("THIN_PRISM_FISHEYE", Model(12, 2, False)),
    11: ("RAD_TAN_THIN_PRISM_FISHEYE", Model(16, 2, False)),
    12: ("SIMPLE_DIVISION", Model(4, 1)),
    13: ("DIVISION", Model(5, 2)),
    14: ("SIMPLE_FISHEYE", Model(3, 1, False)),
    15: ("FISHEYE", Model(4, 2, False)),
    16: ("EUCM", Model(6, 2, False)),
    17: ("EQUIRECTANGULAR", Model(2, 0, False)),
}
"""COLMAP's camera models, by their ids in COLMAP's binary files (sensor/models.h)."""
MODELS = dict(COLMAP_MODELS.values())
COLMAP_PINHOLES = tuple(name for name, model in MODELS.items() if model.pinhole)
PINHOLES = (*COLMAP_PINHOLES, "PERSPECTIVE", "PERSP")
OTHER_LENSES = tuple(name for name, model in MODELS.items() if not model.pinhole)
FTHETA = tuple(f"ftheta_p{n}" for n in range(5))
FLAGS: tuple[str, ...] = ("is_fisheye", "latlong", "equirectangular", "orthographic", "fisheye_crop_radius", *FTHETA)
"""The JSON fields of instant-ngp and nerfstudio that mark a lens other than a pinhole."""
MODEL_FIELD = Field(
    ("camera_model",),
    "applied",
    f"{', '.join(PINHOLES)} are read as a pinhole, with a note on distortion. Any other model is refused; `--fov_deg` "
    "replaces its lens.",
)
FLAG_FIELDS = Field(FLAGS, "refused", "A lens that is not a pinhole is refused; `--fov_deg` replaces it.")


def refuse_model(model: Any, where: str, field: str = "camera_model") -> None:
    """Raise CameraError if the camera model `model` is not one of PINHOLES. `where`: the prefix of the message.
    `field`: the key of the model's name."""
    if str(model).upper() not in PINHOLES:
        raise CameraError(f"{where}: {field} {model!r:.60} is no pinhole camera, and the model takes no other")


def refuse_flags(data: Mapping[str, Any], where: str) -> None:
    """Raise CameraError if a field in FLAGS is not None, False or 0. `data`: a frame's fields. `where`: the beginning
    of the message."""
    for flag in FLAGS:
        value = data.get(flag)
        if value is not None and value is not False and value != 0 and str(value).lower() not in ("false", "none"):
            raise CameraError(f"{where}: {flag} {value!r:.60} is no pinhole camera, and the model takes no other")


def focal_of(angle: float, side: float, where: str) -> float:
    """Return the focal length in pixels for a field of view of `angle` radians over `side` pixels. Raise CameraError
    for an impossible angle."""
    if not 0 < angle < np.pi:
        raise CameraError(f"{where}: expected a field of view between 0 and 180 degrees")
    return float(side / 2 / np.tan(angle / 2))


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
"""The JSON keys of the lens and image size, all in pixels, with nerfstudio's first."""
SIZES = tuple(zip(PARAMETER_KEYS["width"], PARAMETER_KEYS["height"], strict=True))
PAIRED = dict((*SIZES, *((height, width) for width, height in SIZES)))
"""The key of the height for each key of an image's width, and the key of the width for each key of a height."""
MIN_SIDE = 16
"""The minimum width and height, in pixels, that count as an image size if their keys do not usually occur together,
such as "w" and "height"."""
HORIZONTAL_FOVS = {"x_fov": np.pi / 180, "camera_angle_x": 1.0, "fov_deg": np.pi / 180, "angle_x": 1.0}
"""The JSON keys of a horizontal field of view, each with the factor that converts it to radians."""
SAME_LENS = 1.02
"""The maximum ratio of two values that count as the same lens parameter."""


def pixel_lens(frames: Sequence[Mapping], where: str) -> Lens:
    """Return each frame's fx, fy, cx, cy, [n, 4] in pixels of an 832x480 image, and notes for the user. Raise
    CameraError if a lens or image size is missing or contradictory. `where`: the message's prefix."""
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
    """Raise CameraError if a frame's `fields` state two different lenses or image sizes under alternative keys. The
    message begins with `where`."""
    lenses = {name: matrix_lens({name: fields[name]}, where) for name in LENSES if _is_lens(fields.get(name))}
    for at, (quantity, names) in enumerate(PARAMETER_KEYS.items()):
        stated = [name for name in names if fields.get(name) is not None and PAIRED.get(name, name) in fields]
        values = {name: number_of(fields[name], f"{where} {name}") for name in stated}
        values |= {name: value for name, each in lenses.items() if at < 4 and (value := each[at]) is not None}
        _refuse_different(values, quantity, where)


def describes_image(key: str, fields: Mapping) -> bool:
    """Whether `key` of the JSON object `fields` describes the image. Return False only for a width without a height, or
    a height without a width: "height" alone may be the camera's height above ground."""
    if key not in PAIRED or PAIRED[key] in fields:
        return True
    others = PARAMETER_KEYS["height" if key in PARAMETER_KEYS["width"] else "width"]
    return _is_side(fields[key]) and any(_is_side(fields.get(other)) for other in others)


def _is_side(value: object) -> bool:
    return isinstance(value, int | float) and value >= MIN_SIDE and value % 1 == 0


def refuse_other_angle(fields: Mapping, fx: float, width: float, where: str) -> None:
    """Raise CameraError if a frame's horizontal field of view contradicts `fx`, the focal length in an image of `width`
    pixels."""
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
    """Return a frame's fx, fy, cx, cy in pixels, from an intrinsic matrix or from single fields. A missing fy equals
    fx; a missing cx or cy is None."""
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
