"""Reads a video, or a folder of PNG files, as grey frames, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import InputError, require


def grey_frames(video: str | Path) -> Iterator[np.ndarray]:
    """The frames uint8 [H, W] of a video file, or of the PNG files of a folder in the order of their names.

    Raises InputError for what is not there, is no video or breaks off; DependencyError without PyAV.
    """
    path = Path(video)
    if not path.exists():
        raise InputError(f"{path}: no such file; expected a video or a folder of PNG files")
    return _of_folder(path) if path.is_dir() else _of_file(path)


def _of_folder(folder: Path) -> Iterator[np.ndarray]:
    from PIL import Image

    files = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".png")
    if not files:
        raise InputError(f"{folder}: no PNG files in this folder; expected the frames of a video")
    for file in files:
        try:
            yield np.asarray(Image.open(file).convert("L"))
        except (OSError, SyntaxError) as error:  # Pillow's words for a broken PNG
            raise InputError(f"{file}: not an image ({error})") from error


def _of_file(path: Path) -> Iterator[np.ndarray]:
    av = require("av", '"lingbot-world[cli]"')
    count = 0
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise InputError(f"{path}: no video in this file; expected frames")
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format="gray")
                count += 1
    except av.error.FFmpegError as error:
        raise InputError(f"{path}: not a video that can be read, after {count} frames ({error.strerror})") from error
