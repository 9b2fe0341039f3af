"""Read images, and the frames of a video or of a folder of images."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from ...camera.formats.frame_names import sort_by_name
from ...errors import CameraError, InputError
from ...options import FPS
from ...pipeline.images.files import Picture, open_picture, picture_of, read_opened
from .video_reader import even_rate, video_frames, video_notes

FRAME_SUFFIXES = ((".png",), (".jpg", ".jpeg"), (".webp",), (".tif", ".tiff"), (".bmp",), (".jp2",), (".avif",))
"""The suffixes of frames' image files, by format. In a folder, only files of the most frequent format are read."""
MAX_IMAGE_PIXELS = 200_000_000  # pixels
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    RuntimeError,
    EOFError,
    ArithmeticError,
    LookupError,
    struct.error,
)
"""The exceptions that Pillow and its plug-ins raise for a broken file, besides DecompressionBombError."""


def read_image(image: str | Path | Image.Image | np.ndarray) -> np.ndarray:
    """Return a file's or Pillow image's pixels, uint8 [H, W, 3], rotated according to EXIF. Return an array unchanged.
    Raises InputError for a broken file, another type, or an array of another form."""
    if isinstance(image, Image.Image):
        return _read(image).pixels
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise InputError(f"`image` {image.dtype} {list(image.shape)}: expected an array uint8 [height, width, 3]")
        return image
    if not isinstance(image, str | PathLike):
        raise InputError(f"`image` {image!r:.60}: expected a path, a Pillow image or an array uint8 [height, width, 3]")
    path = Path(image)
    if not path.is_file():
        there = "a folder; name a file in it" if path.is_dir() else "a pipe or a device; expected an image file"
        raise InputError(f"`image` {path}: {there if path.exists() else 'no such file'}")
    return _read(path).pixels


def _read(path: Path | Image.Image) -> Picture:
    try:
        if isinstance(path, Image.Image):
            return read_opened(path)
        with open_picture(path) as opened:
            if opened.width * opened.height > MAX_IMAGE_PIXELS:
                raise InputError(f"{path}: {opened.width}x{opened.height} pixels are too many; scale it down")
        return picture_of(path)
    except InputError as error:
        raise InputError(f"`image` {error}") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"`image` {path}: too many pixels; scale it down ({error})") from error
    except BROKEN as error:
        raise InputError(f"`image` {path}: not an image that can be read ({reason(error)})") from error


def reason(error: Exception) -> str:
    """Return a short text for the user that says why an image cannot be read. `error`: the exception that the image
    library raised."""
    if isinstance(error, UnidentifiedImageError):
        return "it begins like no format that is known here"
    return str(error).partition("\n")[0][:100] or type(error).__name__


def image_notes(image: object) -> tuple[str, ...]:
    """Return notes on what reading an image loses or changes, such as transparency. Return () for an array or None."""
    if isinstance(image, Image.Image):
        return _read(image).notes
    return _read(Path(image)).notes if isinstance(image, str | PathLike) else ()


def grey_frames(video: str | Path) -> Iterator[np.ndarray]:
    """Yield the frames of a video or a folder of numbered images in grey, uint8 [H, W]. Raises InputError for a broken
    video and frames of different sizes."""
    return _frames(video, "L", "gray")


def colour_frames(video: str | Path) -> Iterator[np.ndarray]:
    """Yield the frames, uint8 [H, W, 3], of a video or of a folder of numbered images. Raises InputError for a broken
    video and frames of different sizes."""
    return _frames(video, "RGB", "rgb24")


def frame_rate(video: str | Path) -> float:
    """Return a video file's frames per second, or FPS for a folder of images and for an unknown rate."""
    return (even_rate(Path(video)) if Path(video).is_file() else None) or FPS


@contextmanager
def naming_video(video: str | Path) -> Iterator[None]:
    """Add the video's name to the message of a CameraError or InputError that is raised within this context."""
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
    return _of_folder(path, mode) if path.is_dir() else video_frames(path, pixels)


def frame_notes(video: str | Path) -> list[str]:
    """Return notes on how frames are read, such as a rotation. Return an empty list for a broken file."""
    path = Path(video)
    if not path.is_dir():
        return video_notes(path)
    try:
        return [*picture_of(_frame_files(path)[0]).notes]
    except (*BROKEN, Image.DecompressionBombError):
        return []  # `colour_frames` reports the error


def _of_folder(folder: Path, mode: str) -> Iterator[np.ndarray]:
    size = None
    files = _frame_files(folder)
    for file in files:
        try:
            frame = picture_of(file).pixels
        except InputError:
            raise
        except (*BROKEN, Image.DecompressionBombError) as error:
            raise InputError(f"{file}: not an image that can be read ({reason(error)})") from error
        found = f"{frame.shape[1]}x{frame.shape[0]}"
        size = size or found
        if found != size:
            raise InputError(f"{file}: {found} pixels, but {files[0].name} has {size}; a video has one size")
        yield np.array(Image.fromarray(frame).convert(mode)) if mode != "RGB" else frame


def _frame_files(folder: Path) -> list[Path]:
    files = [file for file in folder.iterdir() if not file.name.startswith(".") and file.is_file()]
    groups = [[file for file in files if file.suffix.lower() in suffixes] for suffixes in FRAME_SUFFIXES]
    found, other = sorted(groups, key=len, reverse=True)[:2]
    if not found:
        raise InputError(f"{folder}: no PNG files in this folder; expected the frames of a video")
    if len(found) == len(other):
        raise InputError(
            f"{folder}: as many {other[0].suffix} as {found[0].suffix} files ({len(found)}), and one kind is the "
            "video's frames; move the other one, such as depth maps, elsewhere"
        )
    try:
        return sort_by_name(found, lambda file: file.name, str(folder))
    except CameraError as error:
        raise InputError(str(error)) from error
