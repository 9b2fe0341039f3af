"""The camera models of other programs. Models close to a pinhole are accepted, other models are refused."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...errors import CameraError
from ...fields import Field


class Model(NamedTuple):
    """A camera model. `numbers`: how many parameters the model has. They are `focals` focal lengths, cx, cy, and
    distortion terms. `pinhole`: whether the model equals a pinhole near the image centre."""

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
"""Fields in instant-ngp's and nerfstudio's JSON that mark a lens other than a pinhole."""
MODEL_FIELD = Field(
    ("camera_model",),
    "applied",
    f"{', '.join(PINHOLES)} are read as a pinhole, with a note on distortion. Any other model is refused; `--fov_deg` "
    "replaces its lens.",
)
FLAG_FIELDS = Field(FLAGS, "refused", "A lens that is not a pinhole is refused; `--fov_deg` replaces it.")


def refuse_model(model: Any, where: str, field: str = "camera_model") -> None:
    """Raise CameraError unless the camera model named `model` is a pinhole, possibly with distortion. The message
    begins with `where` and the file's field name `field`."""
    if str(model).upper() not in PINHOLES:
        raise CameraError(f"{where}: {field} {model!r:.60} is no pinhole camera, and the model takes no other")


def refuse_flags(data: Mapping[str, Any], where: str) -> None:
    """Raise CameraError, which begins with `where`, if a frame's fields `data` set one of FLAGS, which mark a lens
    other than a pinhole."""
    for flag in FLAGS:
        value = data.get(flag)
        if value is not None and value is not False and value != 0 and str(value).lower() not in ("false", "none"):
            raise CameraError(f"{where}: {flag} {value!r:.60} is no pinhole camera, and the model takes no other")


def focal_of(angle: float, side: float, where: str) -> float:
    """Return the focal length in pixels for a field of view of `angle` radians over `side` pixels. Raises CameraError,
    which begins with `where`, unless the angle is between 0 and pi."""
    if not 0 < angle < np.pi:
        raise CameraError(f"{where}: expected a field of view between 0 and 180 degrees")
    return float(side / 2 / np.tan(angle / 2))
