"""Detection of rounding errors in pose files, so that they do not count as camera motion."""

import numpy as np

from .poses import RIGID_TOLERANCE
from .rotation import nearest_rotation, orthogonality_error

SINGLE = 2.0**-24
"""The relative rounding error of float32."""
HALF = 2.0**-11
"""The relative rounding error of float16."""
MOST_DIGITS = 9
MIN_SAMPLE = 200
"""The minimum number of frames in the subsample of a long path from which the rounding of its stored numbers is
estimated."""
EXACT = 1e-9
"""The maximum `orthogonality_error` of an exact rotation matrix."""


class Rounding:
    """The rounding error of a file's numbers, estimated from their decimal digits or dtype.

    decimals: the decimal places of the numbers, 2 to 9; 10 if 9 do not suffice.
    absolute: half a unit of the last decimal place; 0 if `decimals` is 10.
    relative: the larger relative error of significant digits and dtype.
    """

    def __init__(self, numbers: np.ndarray, dtype: np.dtype | None = None) -> None:
        values = np.unique(numbers[:: max(1, len(numbers) // MIN_SAMPLE)])
        values = values[np.isfinite(values)]
        with np.errstate(over="ignore"):
            single = dtype == np.float32 or bool((values.astype(np.float32) == values).all())
        kind = np.float32 if single else np.float64
        decimals, digits = (
            next((d for d in range(least, MOST_DIGITS + 1) if _fits_format(values, f".{d}{form}", kind)), None)
            for form, least in (("f", 2), ("g", 4))
        )
        self.decimals = decimals or MOST_DIGITS + 1
        self.absolute = 0.5 * 10.0**-decimals if decimals else 0.0
        known = HALF if dtype == np.float16 else SINGLE if single else 0.0
        self.relative = max(known, 0.5 * 10.0 ** (1 - digits) if digits else 0.0)

    def at(self, size: float) -> float:
        """Return the largest rounding error of a number with the absolute value `size`."""
        return max(self.absolute, self.relative * size)


def _fits_format(values: np.ndarray, form: str, kind: type[np.floating]) -> bool:
    """Whether every value is unchanged after printing in the format `form`, such as ".4f", and parsing as `kind`."""
    with np.errstate(over="ignore"):
        return all(kind(format(value, form)) == kind(value) for value in values.tolist())


def position_error(away: float, rounding: Rounding, exact_rotations: bool, inverted: bool) -> float:
    """Return the maximum apparent movement of a still camera that a file's rounded numbers can cause, in world units.

    away: the camera's distance from the origin.
    exact_rotations: whether the file's rotations are orthogonal.
    inverted: whether the file's poses are world-to-camera.
    """
    shift = rounding.at(away)
    if inverted and not exact_rotations:
        return 2 * (3 * rounding.at(1) * away + np.sqrt(3) * shift)
    if not rounding.relative and not rounding.absolute:
        return 0.0
    written = 2 * np.sqrt(3) * shift if rounding.decimals >= 4 else 0.0
    return written + 8 * SINGLE * away


def remove_rounding(
    c2w: np.ndarray, numbers: np.ndarray, *, inverted: bool = False, dtype: np.dtype | None = None
) -> np.ndarray:
    """Remove the apparent movement that a file's rounded numbers give to a still camera. Return `c2w` itself if the
    camera moves, else a copy in which all positions are the median position.

    numbers: the file's numbers before conversion, 3D for pose matrices.
    inverted: whether the file's poses are world-to-camera.
    dtype: the numbers' dtype in a binary file.
    """
    places = c2w[:, :3, 3]
    spread = np.ptp(places, axis=0).max(initial=0.0)
    away = float(np.linalg.norm(places, axis=1).max(initial=0.0))
    if not spread or spread > 0.05 * away:
        return c2w
    numbers = np.asarray(numbers, dtype=np.float64)
    exact = numbers.ndim == 3 and orthogonality_error(numbers[:, :3, :3]).max() < EXACT
    if spread > position_error(away, Rounding(numbers, dtype), exact, inverted):
        return c2w
    still = c2w.copy()
    still[:, :3, 3] = np.median(places, axis=0)
    return still


def make_rigid(matrices: np.ndarray) -> np.ndarray:
    """Return a copy of `matrices` [n, 4, 4] with orthogonal rotations if decimal rounding explains the largest
    deviation in the array. Otherwise return the whole array unchanged."""
    if not np.isfinite(matrices).all():
        return matrices
    skew = orthogonality_error(matrices[:, :3, :3]).max(initial=0.0)
    if skew <= RIGID_TOLERANCE or skew > RIGID_TOLERANCE + 4 * Rounding(matrices).absolute:
        return matrices
    rigid = matrices.copy()
    mirrored = np.linalg.det(matrices[:, :3, :3]) < 0
    rigid[~mirrored, :3, :3] = nearest_rotation(matrices[~mirrored, :3, :3])
    return rigid
