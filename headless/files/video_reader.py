"""Read video frames as a player shows them: upright, opaque, with square pixels, at a constant rate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import InputError, require
from ...fields import Field
from ...pipeline.images.colours import HDR, assume_bt709
from ...pipeline.images.files import over_background

FIELDS = (
    Field(
        ("display matrix",),
        "applied",
        "Quarter turns and mirrors. Another angle is rounded to the nearest of these, and reported.",
    ),
    Field(("sample aspect ratio",), "applied", "Frames are widened to square pixels; reported."),
    Field(("time stamps",), "applied", "A variable frame rate is resampled to a constant one; reported."),
    Field(
        ("colour range", "colour matrix"),
        "applied",
        "By FFmpeg, according to the stream's tags. Without tags BT.709 from 1280x720 on, else BT.601.",
    ),
    Field(("edit list", "cropping of the codec"), "applied", "By FFmpeg, as players do."),
    Field(("alpha",), "applied", "Frames are put on white; reported."),
    Field(("alpha_mode",), "reported", "WebM keeps alpha in a stream that FFmpeg's decoders leave out."),
    Field(("transfer PQ, HLG",), "reported", "HDR is not mapped: frames look pale."),
    Field(("spherical", "stereo3d"), "reported", "A panorama is measured as if it were flat, two views as one."),
    Field(("interlaced",), "reported", "Both fields stay in a frame."),
    Field(("cover picture", "further video streams"), "ignored", "The best video stream is read."),
)
PROJECTIONS = {"SPHERICAL": "a panorama or a fisheye", "STEREO3D": "in 3D, with a view for each eye"}
"""FFmpeg's types of side data for panoramas and stereo videos, each with a description."""
UNEVEN_RATIO = 1.6
"""The factor that defines a variable frame rate: some interval between frames is longer or shorter than the median
interval by more than this factor."""

MAX_REPEATS = 100_000
"""The maximum number of repeats of a frame in resampling to a constant frame rate. More repeats indicate a broken time
stamp."""


class Layout(NamedTuple):
    """The conversion of a stored frame for display: widened, then transposed, then mirrored.

    wider: the factor on the width that makes pixels square.
    mirrored: two flags, horizontal and vertical.
    exact: whether the display matrix is a multiple of a quarter turn.
    """

    wider: float = 1.0
    transposed: bool = False
    mirrored: tuple[bool, bool] = (False, False)
    exact: bool = True

    def show(self, frame: np.ndarray) -> np.ndarray:
        """Return a frame, [H, W] or [H, W, 3], transposed and mirrored for display. The frame must have square pixels
        already."""
        frame = frame.swapaxes(0, 1) if self.transposed else frame
        across, down = self.mirrored
        frame = frame[:, ::-1] if across else frame
        return np.ascontiguousarray(frame[::-1] if down else frame)


def video_frames(path: Path, pixels: str) -> Iterator[np.ndarray]:
    """Yield the frames of a video: uint8 [H, W, 3] for the pixel format `pixels` "rgb24", [H, W] for "gray". Raises
    InputError for a broken video."""
    av = require("av", '"lingbot-world[cli]"')
    count, size = 0, None
    try:
        step = _even_step(path)
        with open_video(path) as container:
            stream = _stream(container, path)
            stream.thread_type = "AUTO"  # frames are decoded in threads, next to the caller's work
            for frame, repeated in _at_even_times(container.decode(stream), step):
                shown = _converted(frame, stream, pixels)
                found = f"{shown.shape[1]}x{shown.shape[0]}"
                size = size or found
                if found != size:
                    raise InputError(f"{path}: {size} pixels, and {found} after {count} frames; split the video there")
                for _ in range(repeated):
                    yield shown
                    count += 1
    except av.error.FFmpegError as error:
        raise InputError(f"{path}: not a video that can be read, after {count} frames ({error.strerror})") from error


def even_rate(path: Path) -> float | None:
    """Return the frame rate at which `video_frames` yields a video's frames. A video with a variable rate is resampled
    to a constant one. Return None if the rate is unknown or the video cannot be read."""
    av = require("av", '"lingbot-world[cli]"')
    try:
        step = _even_step(path)
        if step is not None:
            return 1 / step
        with open_video(path) as container:
            rate = _stream(container, path).average_rate
            return float(rate) if rate else None
    except (av.error.FFmpegError, InputError):
        return None  # `video_frames` reports the error


def video_notes(video: str | Path) -> list[str]:
    """Return notes on how a video is read, such as a rotation. Return an empty list for a folder or a broken video."""
    path = Path(video)
    if not path.is_file():
        return []
    av = require("av", '"lingbot-world[cli]"')
    try:
        step = _even_step(path)
        with open_video(path) as container:
            stream = _stream(container, path)
            frame = next(iter(container.decode(stream)), None)
            return [] if frame is None else _notes(frame, stream, step)
    except (av.error.FFmpegError, InputError):
        return []  # `video_frames` reports the error


def _notes(frame: Any, stream: Any, step: float | None) -> list[str]:
    layout, notes = _layout(frame, stream), []
    if layout.transposed or any(layout.mirrored):
        notes.append("The video's frames are rotated by its display matrix.")
    if not layout.exact:
        notes.append("The video's display matrix is not a quarter turn: the nearest one is used.")
    if layout.wider != 1:
        notes.append(f"The video's pixels are not square: frames are made {layout.wider:.4g} times as wide.")
    if step is not None:
        notes.append(f"The video's frame rate varies: frames are taken every {step:.4g} s.")
    if frame.color_trc in HDR:
        notes.append(f"The video is HDR ({HDR[frame.color_trc]}), which is not mapped: its frames look pale.")
    if frame.interlaced_frame:
        notes.append("The video is interlaced: moving edges have teeth; deinterlace it for a better measurement.")
    for name, kind in PROJECTIONS.items():
        if any(each.type.name == name for each in frame.side_data):
            notes.append(f"The video is {kind}, which is not read: its frames are taken as one flat picture each.")
    if _has_alpha(frame):
        notes.append("The video is transparent in places: its frames are put on white.")
    elif stream.metadata.get("alpha_mode") == "1":
        notes.append("The video is transparent in places, which is not read: hidden colours show; export it as ProRes.")
    return notes


def _stream(container: Any, path: Path) -> Any:
    stream = container.streams.best("video")
    if stream is None:
        raise InputError(f"{path}: no video in this file; expected frames")
    return stream


def _even_step(path: Path) -> float | None:
    """Return the interval to which a video with a variable frame rate is resampled: the median interval between frames,
    in seconds. Return None if the rate is constant or unknown."""
    with open_video(path) as container:
        stream = _stream(container, path)
        if stream.time_base is None:
            return None
        packets = (packet for packet in container.demux(stream) if packet.pts is not None and not packet.is_discard)
        times, tick = np.unique([float(packet.pts * stream.time_base) for packet in packets]), float(stream.time_base)
    steps = np.diff(times)
    if len(steps) < 2:
        return None
    usual, slack = float(np.median(steps)), 1.5 * tick  # times are multiples of a tick
    even = steps.max() <= UNEVEN_RATIO * usual + slack and steps.min() >= usual / UNEVEN_RATIO - slack
    return None if even else usual


def _at_even_times(frames: Iterator[Any], step: float | None) -> Iterator[tuple[Any, int]]:
    """Resample frames to one every `step` seconds; None changes nothing. Yield pairs (frame, number of times that the
    frame is shown). Raises InputError for a number above MAX_REPEATS."""
    if step is None:
        yield from ((frame, 1) for frame in frames)
        return
    before, start, shown = None, 0.0, 0
    for frame in frames:
        time = frame.time
        if before is None:
            start = time or 0.0
        elif time is not None:
            until = int(np.floor((time - start) / step + 0.5))  # the first time that is closer to this frame
            if until - shown > MAX_REPEATS:
                last = start + shown * step if before.time is None else before.time
                raise InputError(f"its time stamps jump from {last:.6g} to {time:.6g} s; write the video again")
            if until > shown:
                yield before, until - shown
                shown = until
        before = frame
    if before is not None:
        yield before, 1


def _converted(frame: Any, stream: Any, pixels: str) -> np.ndarray:
    assume_bt709(frame)
    layout = _layout(frame, stream)
    width = max(1, round(frame.width * layout.wider))
    size = {"width": width, "height": frame.height}
    if not _has_alpha(frame):
        return layout.show(frame.to_ndarray(format=pixels, **size))
    rgba = frame.to_ndarray(format="rgba", **size)
    shown = over_background(rgba[..., :3], rgba[..., 3])
    return layout.show(shown if pixels == "rgb24" else _grey(shown))


def _grey(frame: np.ndarray) -> np.ndarray:
    """Return a frame in grey, uint8 [H, W], with Pillow's weights."""
    weighted = frame.astype(np.uint32) @ np.array([19595, 38470, 7471], np.uint32)
    return ((weighted + 0x8000) >> 16).astype(np.uint8)


def _layout(frame: Any, stream: Any) -> Layout:
    ratio = stream.sample_aspect_ratio
    wider = float(ratio) if ratio and 0.1 < float(ratio) < 10 else 1.0
    matrix = _display_matrix(frame)
    if matrix is None:
        return Layout(wider)
    a, b, c, d = matrix
    transposed = abs(b) + abs(c) > abs(a) + abs(d)
    across, down = (c < 0, b < 0) if transposed else (a < 0, d < 0)
    off = (abs(a) + abs(d)) if transposed else (abs(b) + abs(c))
    return Layout(wider, transposed, (across, down), off < 0.01 * (abs(a) + abs(b) + abs(c) + abs(d)))


def _display_matrix(frame: Any) -> tuple[int, int, int, int] | None:
    """Return a frame's display matrix (a, b, c, d), which maps (x, y) to (a x + c y, b x + d y). Return None if the
    frame has no matrix."""
    data = next((each for each in frame.side_data if each.type.name == "DISPLAYMATRIX"), None)
    if data is None:
        return None
    a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5].tolist()
    return (a, b, c, d) if any((a, b, c, d)) else None


def _has_alpha(frame: Any) -> bool:
    return any(component.is_alpha for component in frame.format.components)


def open_video(video: str | Path) -> Any:
    """Return a video as a PyAV container for reading. Invalid UTF-8 in metadata is replaced."""
    av = require("av", '"lingbot-world[cli]"')
    return av.open(absolute_path(video), metadata_errors="replace")


def absolute_path(video: str | Path) -> str:
    """Return the absolute path of a video file, because FFmpeg reads a relative path such as "12:30.mp4" as a URL.
    Raises InputError for folders, pipes and devices."""
    path = Path(video).absolute()
    if path.exists() and not path.is_file():
        raise InputError(f"{video}: a folder, a pipe or a device, expected a video's file")
    return str(path)
