"""Reads an image, and a video or a folder of PNG files as frames, one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ...camera.formats.frame_names import words_and_numbers
from ...errors import CameraError, InputError, require
from ...options import FPS

LARGEST_IMAGE = 200_000_000  # pixels
BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises for a file that it cannot read."""


def read_image(image: str | Path | Image.Image | np.ndarray) -> np.ndarray:
    """Pixels uint8 [H, W, 3] of an image or its file, turned as its EXIF data says, or of an array that is that
    already. Raises InputError."""
    if isinstance(image, Image.Image):
        return upright(image)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise InputError(f"`image` {image.dtype} {list(image.shape)}: expected an array uint8 [height, width, 3]")
        return image
    if not isinstance(image, str | PathLike):
        raise InputError(f"`image` {image!r:.60}: expected a path, a Pillow image or an array uint8 [height, width, 3]")
    path = Path(image)
    if not path.is_file():
        raise InputError(f"`image` {path}: {'a folder; name a file in it' if path.is_dir() else 'no such file'}")
    try:
        with Image.open(path) as opened:
            if opened.width * opened.height > LARGEST_IMAGE:
                raise InputError(f"`image` {path}: {opened.width}x{opened.height} pixels are too many; scale it down")
            if opened.mode == "F":  # whose white may be 1, 255, or a distance
                raise InputError(f"`image` {path}: its pixels are floating-point numbers; save it in 8 or 16 bits")
            return upright(opened)
    except InputError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"`image` {path}: too many pixels; scale it down ({error})") from error
    except BROKEN as error:
        raise InputError(f"`image` {path}: not an image that can be read ({error})") from error


def upright(image: Image.Image) -> np.ndarray:
    """Pixels uint8 [H, W, 3] of a picture, turned as its EXIF data says. Sixteen bits become eight; Pillow
    would cut them."""
    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I"):
        grey = np.clip(np.array(turned, np.float32) / 257, 0, 255).round().astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    return np.array(turned.convert("RGB"))


def image_notes(image: object) -> tuple[str, ...]:
    """What of an image's file the video leaves out."""
    if not isinstance(image, str | PathLike):
        return ()
    with Image.open(image) as opened:
        frames, alpha = getattr(opened, "n_frames", 1), int(np.array(opened.convert("RGBA"))[..., 3].min())
    notes = [f"{image} has {frames} pictures; the video begins with the first."] if frames > 1 else []
    if alpha < 255:
        notes.append(f"{image} is see-through in places, which get the colours that are hidden there: fill them.")
    return tuple(notes)


def grey_frames(video: str | Path) -> Iterator[np.ndarray]:
    """`colour_frames` in grey, uint8 [H, W]."""
    return _frames(video, "L", "gray")


def colour_frames(video: str | Path) -> Iterator[np.ndarray]:
    """The frames uint8 [H, W, 3] of a video file, or of the PNG files of a folder in the order of their names, in which
    10 comes after 9.

    Raises InputError for what is not there, is no video or breaks off; DependencyError without PyAV.
    """
    return _frames(video, "RGB", "rgb24")


def frame_rate(video: str | Path) -> float:
    """Frames a second that a video file says it has; those of the models for a folder, and where it says nothing."""
    if not Path(video).is_file():
        return FPS
    av = require("av", '"lingbot-world[cli]"')
    try:
        with av.open(on_disk(video)) as container:
            rates = [stream.average_rate for stream in container.streams.video]
    except av.error.FFmpegError:
        return FPS  # who reads the frames says what is wrong
    return float(rates[0]) if rates and rates[0] else FPS


def on_disk(video: str | Path) -> str:
    """The file's absolute path: of a relative 12:30.mp4 FFmpeg takes "12" for a protocol."""
    return str(Path(video).absolute())


@contextmanager
def naming_video(video: str | Path) -> Iterator[None]:
    """In this block an error that says what is wrong with the frames of a video names it."""
    try:
        yield
    except (CameraError, InputError) as error:
        if str(video) in str(error):
            raise
        raise type(error)(f"{video}: {error}") from error


def _frames(video: str | Path, mode: str, pixels: str) -> Iterator[np.ndarray]:
    path = Path(video)
    if not path.exists():
        raise InputError(f"{path}: no such file; expected a video or a folder of PNG files")
    return _of_folder(path, mode) if path.is_dir() else _of_file(path, pixels)


def _of_folder(folder: Path, mode: str) -> Iterator[np.ndarray]:
    pictures = (file for file in folder.iterdir() if file.suffix.lower() == ".png")
    files = sorted(pictures, key=lambda file: words_and_numbers(file.name))
    if not files:
        raise InputError(f"{folder}: no PNG files in this folder; expected the frames of a video")
    size = None
    for file in files:
        try:
            with Image.open(file) as image:
                frame = np.array(image.convert(mode))
        except BROKEN as error:
            raise InputError(f"{file}: not an image ({error})") from error
        found = f"{frame.shape[1]}x{frame.shape[0]}"
        size = size or found
        if found != size:
            raise InputError(f"{file}: {found} pixels, {files[0].name} beside it has {size}; a video has one size")
        yield frame


def _of_file(path: Path, pixels: str) -> Iterator[np.ndarray]:
    av = require("av", '"lingbot-world[cli]"')
    count = 0
    try:
        with av.open(on_disk(path)) as container:
            if not container.streams.video:
                raise InputError(f"{path}: no video in this file; expected frames")
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format=pixels)
                count += 1
    except av.error.FFmpegError as error:
        raise InputError(f"{path}: not a video that can be read, after {count} frames ({error.strerror})") from error
