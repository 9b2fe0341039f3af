"""Detection of rounding errors in pose files, so that these errors do not count as camera motion."""

import numpy as np

from .poses import RIGID_TOLERANCE
from .rotation import nearest_rotation

SINGLE = 2.0**-24
"""The relative rounding error of float32."""
HALF = 2.0**-11
"""The relative rounding error of float16."""
MOST_DIGITS = 9
SAMPLE = 200
"""The rounding is estimated from a sample of a path's frames, evenly spaced: at least SAMPLE, fewer than 2 * SAMPLE. If
the path has fewer than 2 * SAMPLE frames, all of them are used."""
EXACT = 1e-9
"""A rotation R counts as exact if the absolute value of each element of R^T R - I is below this limit."""


class Rounding:
    """The rounding error of a file's numbers [n, k], estimated from their decimal digits or `dtype`.

    decimals: the number of decimal places, at least 2; MOST_DIGITS + 1 if there are more than MOST_DIGITS.
    absolute: half a unit of the last decimal place; 0 if there are more than MOST_DIGITS decimal places.
    relative: the larger of two relative errors, that of the dtype and that of the written digits. The first is the
    error of float16 or float32, or 0 for float64 (numbers that float32 represents exactly count as float32). The second
    is the error of a number with as many significant digits, 4 to MOST_DIGITS, or 0 for more digits.
    """

    def __init__(self, numbers: np.ndarray, dtype: np.dtype | None = None) -> None:
        values = np.unique(numbers[:: max(1, len(numbers) // SAMPLE)])
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
    """Return whether the format `form`, such as ".4f", loses no digits: each of the values, written in this format and
    read back as the dtype `kind`, is unchanged."""
    with np.errstate(over="ignore"):
        return all(kind(format(value, form)) == kind(value) for value in values.tolist())


def position_error(away: float, rounding: Rounding, exact_turns: bool, inverted: bool) -> float:
    """Return the largest distance between two positions of a still camera that can come from rounding alone, in the
    file's units.

    away: the largest distance of a position from the origin, in the file's units.
    exact_turns: whether the file's rotations are exact (see EXACT).
    inverted: whether the matrices are world-to-camera. Their position is -R^T t, so an error in R grows with `away`.
    """
    shift = rounding.at(away)
    if inverted and not exact_turns:
        return 2 * (3 * rounding.at(1) * away + np.sqrt(3) * shift)
    if not rounding.relative and not rounding.absolute:
        return 0.0
    written = 2 * np.sqrt(3) * shift if rounding.decimals >= 4 else 0.0
    return written + 8 * SINGLE * away


def remove_rounding(
    c2w: np.ndarray, numbers: np.ndarray, *, inverted: bool = False, dtype: np.dtype | None = None
) -> np.ndarray:
    """Return the poses `c2w` [n, 4, 4]. If their positions differ only by rounding errors, the result is a copy in
    which every position is the median position.

    numbers: [n, ...], the file's matrices, or its quaternions and translations. The rounding error is estimated from
    them.
    inverted: whether the file has world-to-camera matrices.
    dtype: the dtype of the file's numbers, if known.
    """
    places = c2w[:, :3, 3]
    spread = np.ptp(places, axis=0).max(initial=0.0)
    away = float(np.linalg.norm(places, axis=1).max(initial=0.0))
    if not spread or spread > 0.05 * away:
        return c2w
    numbers = np.asarray(numbers, dtype=np.float64)
    exact = numbers.ndim == 3 and _skew(numbers).max() < EXACT
    if spread > position_error(away, Rounding(numbers, dtype), exact, inverted):
        return c2w
    still = c2w.copy()
    still[:, :3, 3] = np.median(places, axis=0)
    return still


def make_rigid(matrices: np.ndarray) -> np.ndarray:
    """Return the matrices [n, 4, 4] with each 3x3 part replaced by the nearest rotation, if they fail the rigid test of
    `check_poses` only because of rounded decimals. Otherwise return them unchanged: if they pass the test, if rounding
    does not explain the error, or if a number is not finite. Mirrored matrices always stay unchanged."""
    if not np.isfinite(matrices).all():
        return matrices
    skew = _skew(matrices).max(initial=0.0)
    if skew <= RIGID_TOLERANCE or skew > RIGID_TOLERANCE + 4 * Rounding(matrices).absolute:
        return matrices
    rigid = matrices.copy()
    mirrored = np.linalg.det(matrices[:, :3, :3]) < 0
    rigid[~mirrored, :3, :3] = nearest_rotation(matrices[~mirrored, :3, :3])
    return rigid


def _skew(matrices: np.ndarray) -> np.ndarray:
    """Return the largest absolute element of R^T R - I for the 3x3 part R of each matrix, as an array [n]."""
    turns = matrices[:, :3, :3]
    return np.abs(np.swapaxes(turns, 1, 2) @ turns - np.eye(3)).max((1, 2), initial=0.0)
