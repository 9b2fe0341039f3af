"""Export of a scene into a folder: PNG files of the frames, and the cameras for nerfstudio or COLMAP."""

import os
import shutil
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ..camera.formats.colmap import write_colmap
from ..camera.formats.json_files import write_transforms
from ..camera.path import CameraPath
from ..camera.poses import check_intrinsics, check_poses
from ..errors import InputError, describe_os_error
from ..typed import check_types
from .choice import find_blurred, pick_sharpest

FORMATS = ("nerfstudio", "colmap", "ply")
IMAGES, MODEL, PLY = "images", Path("sparse", "0"), "points.ply"


@dataclass(frozen=True)
class Exported:
    """An exported scene.

    frames: the index in the video of each exported frame.
    blurred: the number of frames left out because they are blurred.
    read: the number of frames in the video.
    length: the sum of the distances between successive exported cameras, in the poses' unit.
    size: the height and width of the frames in pixels.
    """

    frames: tuple[int, ...]
    blurred: int
    read: int
    length: float
    folder: Path
    format: str
    path: CameraPath
    size: tuple[int, int]

    @property
    def files(self) -> list[str]:
        """The exported frames' PNG files, relative to `folder`."""
        return [f"{IMAGES}/{_name(at)}" for at in range(len(self.frames))]


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
    """Write frames and cameras of a scene into a folder. Of each `every` successive frames only the sharpest is
    written, or none if even the sharpest is blurred.

    frames: uint8 [H, W, 3] each, all of one size.
    c2w: [n, 4, 4], camera-to-world poses in OpenCV axes.
    lens: [n, 4], fx, fy, cx, cy of each frame at 832x480.
    format: "nerfstudio", "colmap" or "ply". For "ply" only frames are written; `add_points` must then replace them by
    points.
    shorter: whether the video may have fewer than n frames.

    Raises InputError for invalid arguments, CameraError for invalid poses or intrinsics.
    """
    found = {"every": every, "folder": folder, "shorter": shorter, "frames": frames}
    check_types(found, {"every": int, "folder": str | Path, "shorter": bool, "frames": Iterable})
    if format not in FORMATS:
        raise InputError(f"`format` {format!r:.40}: expected {' or '.join(FORMATS)}")
    if every < 1:
        raise InputError(f"`every` {every}: expected 1 frame or more")
    folder, c2w, lens = Path(folder), check_poses(c2w), check_intrinsics(lens)
    if len(lens) != len(c2w):
        raise InputError(f"`lens` has {len(lens)} rows, and `c2w` {len(c2w)} poses; expected a row for each pose")
    if os.path.lexists(folder / IMAGES):
        raise InputError(f"{folder / IMAGES} exists; name a folder without it")
    try:
        (folder / IMAGES).mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{folder / IMAGES}: the folder cannot be made: {describe_os_error(error)}") from error
    try:
        numbers, left_out, read, size = _write_frames(frames, folder / IMAGES, every, len(c2w), shorter)
    except BaseException:
        shutil.rmtree(folder / IMAGES, ignore_errors=True)  # so that the next try finds an empty folder
        raise
    path = CameraPath(c2w[numbers], lens[numbers])
    steps = np.diff(path.c2w[:, :3, 3], axis=0)
    length = float(np.linalg.norm(steps, axis=1).sum())
    made = Exported(tuple(numbers), left_out, read, length, folder, format, path, size)
    if format == "nerfstudio":
        write_transforms(path, folder / "transforms.json", names=made.files, size=size)
    elif format == "colmap":
        (folder / MODEL).mkdir(parents=True, exist_ok=True)
        write_colmap(path, folder / MODEL, [Path(name).name for name in made.files], size)
    return made


def _write_frames(
    frames: Iterable[np.ndarray], folder: Path, every: int, poses: int, shorter: bool
) -> tuple[list[int], int, int, tuple[int, int]]:
    """Write the sharpest of each `every` successive frames as a PNG file, then delete blurred ones. A video may have
    fewer than `poses` frames only if `shorter`. Return the remaining frames' indices in the video, the number of
    deleted frames, the number of read frames, and (height, width)."""
    chosen: list[tuple[int, float]] = []
    count, size = 0, (0, 0)

    def counted() -> Iterable[np.ndarray]:
        nonlocal count, size
        for pixels in frames:
            fits = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[2:] == (3,)
            if not fits or not pixels.size:
                found = getattr(pixels, "dtype", type(pixels).__name__), *getattr(pixels, "shape", ())
                raise InputError(f"frame {count} is {found}; expected an array uint8 [H, W, 3]")
            if count and pixels.shape[:2] != size:
                raise InputError(
                    f"frame {count} has the size {pixels.shape[:2]}, and the first {size}; expected one size"
                )
            count, size = count + 1, pixels.shape[:2]
            if count > poses:
                raise InputError(
                    f"the video has more than the {poses} frames that its path has poses for; give the path that the "
                    "video was made with"
                )
            yield pixels

    def save(number: int, pixels: np.ndarray) -> None:
        try:
            # Z_RLE takes three quarters of the usual strategy's time, for a smaller file
            Image.fromarray(pixels).save(folder / f"{number}.part.png", compress_level=1, compress_type=zlib.Z_RLE)
        except OSError as error:
            raise InputError(f"{folder}: the frames cannot be written: {describe_os_error(error)}") from error

    with ThreadPoolExecutor(1) as writer:  # a frame is encoded while the next ones are read
        saved: Future[None] | None = None
        for number, pixels, value in pick_sharpest(counted(), every):
            if saved is not None:
                saved.result()
            saved = writer.submit(save, number, pixels)
            chosen.append((number, value))
        if saved is not None:
            saved.result()
    if not chosen:
        raise InputError("the video has no frames; nothing can be exported")
    if count != poses and not shorter:
        raise InputError(
            f"the video has {count} frames, and its path {poses} poses; give the path that the video was made with"
        )
    kept = _keep_sharp(folder, chosen)
    return kept, len(chosen) - len(kept), count, size


def _keep_sharp(folder: Path, chosen: list[tuple[int, float]]) -> list[int]:
    out = set(find_blurred([value for _, value in chosen]))
    for at in out:
        (folder / f"{chosen[at][0]}.part.png").unlink()
    kept = [number for at, (number, _) in enumerate(chosen) if at not in out]
    for at, number in enumerate(kept):
        (folder / f"{number}.part.png").replace(folder / _name(at))
    return kept


def _name(at: int) -> str:
    return f"frame_{at + 1:05d}.png"
