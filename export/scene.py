"""Export of a scene folder in nerfstudio's or COLMAP's format: frames as PNG files, poses and lens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ..camera.formats.colmap import write_colmap
from ..camera.formats.json_files import write_transforms
from ..camera.path import CameraPath
from ..errors import InputError
from .choice import blurred, sharpest

FORMATS = ("nerfstudio", "colmap")
IMAGES, MODEL = "images", Path("sparse", "0")


@dataclass(frozen=True)
class Exported:
    """The result of an export: the numbers of the exported `frames` in the video, the counts of blurred frames
    (`left_out`) and of all frames `read`, and the `length` of the path through the exported poses, in its units."""

    frames: tuple[int, ...]
    left_out: int
    read: int
    length: float


def export_scene(
    frames: Iterable[np.ndarray],
    c2w: np.ndarray,
    lens: np.ndarray,
    folder: Path,
    format: str,
    *,
    every: int = 4,
    shorter: bool = False,
) -> Exported:
    """Write the sharpest frame of each `every` frames uint8 [H, W, 3], and their camera, into a folder.

    `c2w` [n, 4, 4] (OpenCV axes) and `lens` [n, 4] at 832x480 have a row for each frame. `shorter`: a video may have
    fewer frames than the path has poses. Raises InputError for other lengths, and for a format that is not known."""
    if format not in FORMATS:
        raise InputError(f"`format` {format!r:.40}: expected {' or '.join(FORMATS)}")
    if every < 1:
        raise InputError(f"`every` {every}: expected 1 frame or more")
    numbers, left_out, read, size = _write_frames(frames, folder / IMAGES, every, len(c2w))
    if read != len(c2w) and not shorter:
        raise InputError(
            f"the video has {read} frames, and its path {len(c2w)} poses; give the path that the video was made with"
        )
    path = CameraPath(c2w[numbers], lens[numbers])
    names = [f"{IMAGES}/{_name(at)}" for at in range(len(numbers))]
    if format == "nerfstudio":
        write_transforms(path, folder / "transforms.json", names=names, size=size)
    else:
        (folder / MODEL).mkdir(parents=True, exist_ok=True)
        write_colmap(path, folder / MODEL, [Path(name).name for name in names], size)
    steps = np.diff(path.c2w[:, :3, 3], axis=0)
    return Exported(tuple(numbers), left_out, read, float(np.linalg.norm(steps, axis=1).sum()))


def _write_frames(
    frames: Iterable[np.ndarray], folder: Path, every: int, most: int
) -> tuple[list[int], int, int, tuple[int, int]]:
    """Write the sharp frames as PNG files. Returns their numbers in the video, the count of blurred frames, the count
    of all frames, and their height and width. Raises InputError for more than `most` frames and for none."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen: list[tuple[int, float]] = []
    count, size = 0, (0, 0)

    def counted() -> Iterable[np.ndarray]:
        nonlocal count, size
        for pixels in frames:
            count, size = count + 1, pixels.shape[:2]
            if count > most:
                raise InputError(
                    f"the video has more than the {most} frames that its path has poses for; give the path that the "
                    "video was made with"
                )
            yield pixels

    for number, pixels, value in sharpest(counted(), every):
        Image.fromarray(pixels).save(folder / f"{number}.part.png", compress_level=1)
        chosen.append((number, value))
    if not chosen:
        raise InputError("the video has no frames; nothing can be exported")
    out = set(blurred([value for _, value in chosen]))
    kept = [number for at, (number, _) in enumerate(chosen) if at not in out]
    for at in out:
        (folder / f"{chosen[at][0]}.part.png").unlink()
    for at, number in enumerate(kept):
        (folder / f"{number}.part.png").replace(folder / _name(at))
    return kept, len(out), count, size


def _name(at: int) -> str:
    return f"frame_{at + 1:05d}.png"
