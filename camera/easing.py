"""Easing curves of camera moves: from time, 0 to 1, to progress, 0 to 1."""

from collections.abc import Callable

import numpy as np

from ..errors import CameraError

Curve = Callable[[np.ndarray], np.ndarray]


def _in_out(power: int) -> Curve:
    return lambda u: np.where(u < 0.5, (2 * u) ** power / 2, 1 - (2 - 2 * u) ** power / 2)


EASINGS: dict[str, Curve] = {
    "linear": lambda u: u,
    "ease_in": lambda u: u**2,
    "ease_out": lambda u: 1 - (1 - u) ** 2,
    "ease_in_out": lambda u: u * u * (3 - 2 * u),
    "cubic_in": lambda u: u**3,
    "cubic_out": lambda u: 1 - (1 - u) ** 3,
    "cubic_in_out": _in_out(3),
    "quint_in_out": _in_out(5),
    "sine_in_out": lambda u: (1 - np.cos(np.pi * u)) / 2,
    "smootherstep": lambda u: u**3 * (u * (6 * u - 15) + 10),
}


def apply_easing(name: str, time: np.ndarray) -> np.ndarray:
    """Return a move's progress [n] at each `time` [n]. Raise CameraError unless `name` is in EASINGS."""
    if not isinstance(name, str) or name not in EASINGS:
        raise CameraError(f"easing {name!r}: expected one of {', '.join(EASINGS)}")
    return EASINGS[name](np.asarray(time, dtype=np.float64))
