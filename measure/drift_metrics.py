"""Metrics of each frame of a video, and changes of the scene content that optical flow tracks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .tracks import opencv

LONGER_SIDE = 480
"""The maximum length of a frame's longer side, in pixels. Larger frames are downscaled."""
THUMBNAIL = (32, 18)
"""The width and height of the thumbnails that show whether a frame repeats an earlier one."""
STRIDE = 4
"""The interval, in frames, over which changes of sharpness and colour of tracked content are measured."""
LEAST_OVERLAP = 0.05
"""The minimum fraction of the image that must be visible in both frames for a comparison."""


@dataclass(frozen=True)
class FrameMetrics:
    """The metrics of a video's f frames, arrays [f]. Grey values and colours are 0 to 255.

    sharpness: var(Laplacian) / (var(grey) + 1) of the grey values.
    colourfulness: as defined by Hasler and Suesstrunk (2003).
    brightness: the mean grey value.
    tint: the mean of red minus blue.
    change: the mean absolute grey difference from the previous frame.
    thumbnails: float32 [f, 18, 32], the grey values.
    sharpness_change, colourfulness_change: the log ratios to the first frame, accumulated over pairs of frames. Each
    pair compares only the content visible in both frames.
    tint_change, brightness_change: the differences from the first frame, accumulated in the same way.
    motion: [f, 2], the median motion from the previous frame, in pixels along x and y.
    residual: the mean absolute difference after motion compensation.
    fps: the frame rate, a number.
    """

    sharpness: np.ndarray
    colourfulness: np.ndarray
    brightness: np.ndarray
    tint: np.ndarray
    change: np.ndarray
    thumbnails: np.ndarray
    sharpness_change: np.ndarray
    colourfulness_change: np.ndarray
    tint_change: np.ndarray
    brightness_change: np.ndarray
    motion: np.ndarray
    residual: np.ndarray
    fps: float

    def __len__(self) -> int:
        return len(self.brightness)


class _Frame(NamedTuple):
    """A video frame, downscaled so that its longer side has at most LONGER_SIDE pixels.

    colours: float32 [h, w, 3], RGB.
    grey: float32 [h, w], slightly blurred.
    small_colours: float32 RGB at half size.
    small_grey: uint8 grey values at half size, not blurred.
    """

    colours: np.ndarray
    grey: np.ndarray
    small_colours: np.ndarray
    small_grey: np.ndarray

    @classmethod
    def of(cls, pixels: np.ndarray) -> "_Frame":
        cv2 = opencv()
        scale = LONGER_SIDE / max(pixels.shape[:2])
        if scale < 1:
            size = [round(side * scale) for side in pixels.shape[1::-1]]
            pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        half = cv2.resize(pixels, [max(1, side // 2) for side in pixels.shape[1::-1]], interpolation=cv2.INTER_AREA)
        grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.float32)
        return cls(
            pixels.astype(np.float32),
            cv2.GaussianBlur(grey, (0, 0), 0.7),
            half.astype(np.float32),
            cv2.cvtColor(half, cv2.COLOR_RGB2GRAY),
        )


def measure_frames(frames: Iterable[np.ndarray], fps: float) -> FrameMetrics:
    """Return the metrics of RGB frames, uint8 [H, W, 3]. Raises InputError for fewer than two frames or an invalid
    `fps`, DependencyError without OpenCV."""
    cv2 = opencv()
    if not 0.001 <= fps < 1000:
        raise InputError(f"`fps` {fps}: expected 0.001 or more and less than 1000 frames a second")
    rows, small, steps, shares = [], [], [], []
    for number, (frame, before, earlier) in enumerate(_with_previous(map(_Frame.of, frames))):
        change = 0.0 if before is None else float(np.abs(frame.grey - before.grey).mean())
        sharpness = float(cv2.Laplacian(frame.grey, cv2.CV_32F).var() / (frame.grey.var() + 1))
        red, _, blue = (float(frame.colours[..., channel].mean()) for channel in range(3))
        rows.append((sharpness, colourfulness(frame.colours), float(frame.grey.mean()), red - blue, change))
        small.append(cv2.resize(frame.grey, THUMBNAIL, interpolation=cv2.INTER_AREA))
        steps.append((0.0,) * 4 if before is None else _step(before, frame))
        if number % STRIDE == 0:
            shares.append(np.zeros(3) if earlier is None else _content_changes(earlier, frame))
    if len(rows) < 2:
        raise InputError(f"a video of {len(rows)} frames: expected at least 2")
    sharpness_change, colourfulness_change, tint_change = (
        np.interp(np.arange(len(rows)), STRIDE * np.arange(len(shares)), sums) for sums in np.cumsum(shares, 0).T
    )
    brightness_change, across, down, residual = np.array(steps).T
    looks = dict(zip(("sharpness", "colourfulness", "brightness", "tint", "change"), np.array(rows).T, strict=True))
    return FrameMetrics(
        **looks,
        thumbnails=np.stack(small),
        sharpness_change=sharpness_change,
        colourfulness_change=colourfulness_change,
        tint_change=tint_change,
        brightness_change=brightness_change.cumsum(),
        motion=np.stack([across, down], 1),
        residual=residual,
        fps=fps,
    )


def _with_previous(frames: Iterable[_Frame]) -> Iterator[tuple[_Frame, _Frame | None, _Frame | None]]:
    """Yield each frame, its predecessor, and the latest earlier frame with an index divisible by STRIDE. Missing frames
    and frames of another size are None."""
    before: _Frame | None = None
    earlier: _Frame | None = None
    for number, frame in enumerate(frames):
        before, earlier = (each if each and each.grey.shape == frame.grey.shape else None for each in (before, earlier))
        yield frame, before, earlier
        before = frame
        if number % STRIDE == 0:
            earlier = frame


def colourfulness(colours: np.ndarray) -> float:
    """Return the colourfulness (Hasler and Suesstrunk, 2003) of RGB pixels, float32 [..., 3] from 0 to 255."""
    red, green, blue = (colours[..., channel] for channel in range(3))
    one, two = red - green, (red + green) / 2 - blue
    return float(np.hypot(one.std(), two.std()) + 0.3 * np.hypot(one.mean(), two.mean()))


def _step(before: _Frame, frame: _Frame) -> tuple[float, float, float, float]:
    """Return the changes from `before` to `frame`: the brightness difference, the motion along x and along y in pixels,
    and the residual after motion compensation."""
    flow = _flow(frame.small_grey, before.small_grey)
    moved, inside = _warp(before.small_colours, flow)
    if inside.mean() < LEAST_OVERLAP:
        return 0.0, 0.0, 0.0, float(np.abs(frame.grey - before.grey).mean())
    grey = (frame.small_colours - moved)[inside].mean(1)
    across, down = -2 * np.median(flow.reshape(-1, 2), axis=0)
    return float(np.median(grey)), float(across), float(down), float(np.abs(grey).mean())


def _content_changes(one: _Frame, two: _Frame) -> np.ndarray:
    """Return the changes [3], from `one` to `two`, of the content visible in both: log ratios of sharpness and
    colourfulness, difference of tint."""
    there, back = _flow(one.small_grey, two.small_grey), _flow(two.small_grey, one.small_grey)
    return (_warped_changes(one, two, there, back) - _warped_changes(two, one, back, there)) / 2


def _warped_changes(onto: _Frame, other: _Frame, there: np.ndarray, back: np.ndarray) -> np.ndarray:
    """Return the changes [3] from `onto` to `other`: the log ratios of sharpness and colourfulness, and the difference
    of tint. Only content visible in both frames counts.

    there, back: the optical flows from `onto` to `other` and from `other` to `onto`.
    """
    cv2 = opencv()
    returned, inside = _warp(back, there)
    alike = inside & (np.hypot(*np.moveaxis(there + returned, 2, 0)) < 0.5)
    alike = cv2.erode(alike.astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool)
    if alike.mean() < LEAST_OVERLAP:
        return np.zeros(3)
    size = onto.grey.shape[::-1]
    places = cv2.resize(alike.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST).astype(bool)
    moved, _ = _warp(other.grey, 2 * cv2.resize(there, size))
    sharp = [(cv2.Laplacian(grey, cv2.CV_32F)[places] ** 2).mean() + 0.02 for grey in (moved, onto.grey)]
    colours = _warp(other.small_colours, there)[0][alike], onto.small_colours[alike]
    lively = [colourfulness(each) + 1 for each in colours]
    red, _, blue = np.median(colours[0] - colours[1], axis=0)
    return np.array([np.log(sharp[0] / sharp[1]), np.log(lively[0] / lively[1]), red - blue])


def _flow(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Return the optical flow from `one` to `two`, float32 [h, w, 2]: (dx, dy) in pixels. The flow of images smaller
    than 16 pixels is zero."""
    cv2 = opencv()
    if min(one.shape) < 16:
        return np.zeros((*one.shape, 2), np.float32)
    return cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_FAST).calc(one, two, None)


def _warp(picture: np.ndarray, flow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an image warped by a flow [h, w, 2], and a mask [h, w] of the pixels with a source inside the image."""
    cv2 = opencv()
    rows, columns = np.mgrid[: flow.shape[0], : flow.shape[1]].astype(np.float32)
    x, y = columns + flow[..., 0], rows + flow[..., 1]
    inside = (x >= 0) & (y >= 0) & (x <= flow.shape[1] - 1) & (y <= flow.shape[0] - 1)
    return cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE), inside
