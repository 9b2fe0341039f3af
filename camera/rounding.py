"""How far rounded numbers may move a camera that stands still."""

import numpy as np

from .poses import RIGID_TOLERANCE
from .rotation import nearest_rotation

SINGLE = 2.0**-24
"""The relative rounding error of float32."""
MOST_DIGITS = 9
SAMPLE = 200
"""Frames whose numbers are looked at."""
EXACT = 1e-9
"""Rotations orthonormal to within this were not rounded."""


class Rounding:
    """The precision that numbers [n, k] were written with: `absolute`, half of the last decimal place, and `relative`,
    for float32 or significant digits; 0 where the numbers show no rounding. `decimals` is the count of decimal
    places, MOST_DIGITS + 1 if there is no such count."""

    def __init__(self, numbers: np.ndarray, dtype: np.dtype | None = None) -> None:
        values = np.unique(numbers[:: max(1, len(numbers) // SAMPLE)])
        values = values[np.isfinite(values)]
        self.decimals = next((d for d in range(2, MOST_DIGITS + 1) if _written(values, f".{d}f")), MOST_DIGITS + 1)
        self.absolute = 0.5 * 10.0**-self.decimals if self.decimals <= MOST_DIGITS else 0.0
        with np.errstate(over="ignore"):
            single = dtype == np.float32 or bool((values.astype(np.float32) == values).all())
        self.relative = SINGLE if single else 0.0
        digits = next((d for d in range(4, MOST_DIGITS + 1) if _written(values, f".{d}g")), MOST_DIGITS + 1)
        if not self.relative and digits <= MOST_DIGITS:
            self.relative = 0.5 * 10.0 ** (1 - digits)

    def at(self, size: float) -> float:
        """Return the largest rounding error of a number of this size."""
        return max(self.absolute, self.relative * size)


def _written(values: np.ndarray, form: str) -> bool:
    return all(float(format(value, form)) == value for value in values.tolist())


def place_error(away: float, rounding: Rounding, exact_turns: bool, inverted: bool) -> float:
    """Return how far apart rounding may put two places of one camera.

    `away` is the largest translation in the file. A world-to-camera matrix (`inverted`) gives the place -R^T t, which
    rounded rotations move by a share of the distance from the origin.
    """
    shift = rounding.at(away)
    if inverted and not exact_turns:
        return 2 * (3 * rounding.at(1) * away + np.sqrt(3) * shift)
    if not rounding.relative and not rounding.absolute:
        return 0.0
    written = 2 * np.sqrt(3) * shift if rounding.decimals >= 4 else 0.0
    return written + 8 * SINGLE * away


def settled(
    c2w: np.ndarray, numbers: np.ndarray, *, inverted: bool = False, dtype: np.dtype | None = None
) -> np.ndarray:
    """Return poses c2w [n, 4, 4] with one place for all, if the places [n, 3] differ by rounding errors only.

    `numbers` [n, ...] are the file's own: matrices, or quaternions and translations. Their digits or their `dtype`, and
    the distance from the origin, decide how far apart places of one camera may be.
    """
    places = c2w[:, :3, 3]
    spread = np.ptp(places, axis=0).max(initial=0.0)
    away = float(np.linalg.norm(places, axis=1).max(initial=0.0))
    if not spread or spread > 0.05 * away:
        return c2w
    numbers = np.asarray(numbers, dtype=np.float64)
    exact = numbers.ndim == 3 and _skew(numbers).max() < EXACT
    if spread > place_error(away, Rounding(numbers, dtype), exact, inverted):
        return c2w
    still = c2w.copy()
    still[:, :3, 3] = np.median(places, axis=0)
    return still


def made_rigid(matrices: np.ndarray) -> np.ndarray:
    """Return matrices [n, 4, 4] with the nearest rotations, if their own are no rotations for want of digits only."""
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
    """How far the 3x3 parts of [n, 4, 4] are from rotations: the largest error of their products [n]."""
    turns = matrices[:, :3, :3]
    return np.abs(np.swapaxes(turns, 1, 2) @ turns - np.eye(3)).max((1, 2), initial=0.0)
