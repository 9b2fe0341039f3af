"""Camera paths of COLMAP's models, in text and in its binary files (scene/reconstruction_io_*.cc)."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import CameraError
from ..conventions import CONVENTIONS, to_opencv
from ..pose_folder import check_file
from ..rotation import from_quaternions, rigid
from .reading import Recording, float_fields, in_name_order, lens_notes, lens_rows, read_text

LARGEST_BINARY = 4 * 2**30  # most of images.bin is points, which are passed over

# camera models by their number in binary files: name, how many numbers, and how many of these are focal lengths, which
# come first; then cx, cy; the rest is distortion
COLMAP_MODELS = {
    0: ("SIMPLE_PINHOLE", 3, 1),
    1: ("PINHOLE", 4, 2),
    2: ("SIMPLE_RADIAL", 4, 1),
    3: ("RADIAL", 5, 1),
    4: ("OPENCV", 8, 2),
    5: ("OPENCV_FISHEYE", 8, 2),
    6: ("FULL_OPENCV", 12, 2),
    8: ("SIMPLE_RADIAL_FISHEYE", 4, 1),
    9: ("RADIAL_FISHEYE", 5, 1),
    10: ("THIN_PRISM_FISHEYE", 12, 2),
}
COLMAP_FOCALS = {name: focals for name, _, focals in COLMAP_MODELS.values()}
POINT = struct.calcsize("<ddq")


def read_colmap(path: Path) -> Recording:
    """A folder with COLMAP's images and cameras, .bin or .txt; images in the order of their names."""
    folder = path if path.is_dir() else path.parent
    binary = path.suffix.lower() == ".bin" if path.is_file() else (folder / "images.bin").is_file()
    suffix = ".bin" if binary else ".txt"
    images_file, cameras_file = folder / f"images{suffix}", folder / f"cameras{suffix}"
    cameras = _binary_cameras(cameras_file) if binary else _colmap_cameras(cameras_file)
    images = _binary_images(images_file) if binary else _colmap_images(images_file)
    if not images:
        raise CameraError(f"{images_file}: no images")
    images = in_name_order(images, lambda image: image[0], str(images_file))
    for name, _, _, camera in images:
        if camera not in cameras:
            raise CameraError(f"{images_file}: {name} was taken by camera {camera}, which cameras{suffix} lacks")
    used = [cameras[camera] for *_, camera in images]
    lens = np.concatenate([lens_rows([row], width, height, str(folder)) for row, width, height, _ in used])
    _, quaternions, shifts, _ = zip(*images, strict=True)
    w2c = rigid(from_quaternions(quaternions), np.array(shifts))
    _, width, height, _ = used[0]
    notes = lens_notes(lens, width, height, [term for *_, terms in used for term in terms])
    return Recording(to_opencv(w2c, CONVENTIONS["opencv_w2c"], str(images_file)), lens, None, notes)


def _colmap_cameras(path: Path) -> dict[str, tuple]:
    cameras = {}
    for number, line in _lines(path):
        fields = line.split()
        if not fields:
            continue
        where = f"{path}: line {number}"
        if len(fields) < 5 or fields[1] not in COLMAP_FOCALS:
            raise CameraError(f"{where}: {line[:60]!r}, expected id, model ({', '.join(COLMAP_FOCALS)}), size, numbers")
        cameras[fields[0]] = _colmap_lens(fields[1], float_fields(fields[2:], where), where)
    return cameras


def _colmap_lens(model: str, values: list[float], where: str) -> tuple[list[float], float, float, list[float]]:
    (width, height, *terms), focals = values, COLMAP_FOCALS[model]
    if len(terms) < focals + 2:
        raise CameraError(f"{where}: {len(terms)} numbers for {model}, expected at least {focals + 2}")
    fx, fy = terms[0], terms[focals - 1]
    return [fx, fy, *terms[focals : focals + 2]], width, height, terms[focals + 2 :]


def _colmap_images(path: Path) -> list[tuple[str, list[float], list[float], str]]:
    """Name, quaternion xyzw, translation, camera id of each image; every second line lists points: passed over."""
    images = []
    for number, line in _lines(path)[::2]:
        fields = line.split(maxsplit=9)
        if not fields:
            continue
        if len(fields) != 10:
            raise CameraError(f"{path}: line {number} has {len(fields)} columns, expected 10, then a line of points")
        where = f"{path}: line {number}"
        images.append(_image(fields[9].strip(), float_fields(fields[1:8], where), fields[8], where))
    return images


def _image(name: str, pose: Sequence[float], camera: str, where: str) -> tuple[str, list[float], list[float], str]:
    """`pose` is the quaternion wxyz and the translation."""
    w, x, y, z, *shift = pose
    if not any((w, x, y, z)):
        raise CameraError(f"{where} has a zero quaternion")
    return name, [x, y, z, w], shift, camera


def _lines(path: Path) -> list[tuple[int, str]]:
    return [(n, line) for n, line in enumerate(read_text(path).splitlines(), 1) if not line.startswith("#")]


def _binary_cameras(path: Path) -> dict[str, tuple]:
    cameras = {}
    check_file(path)
    with path.open("rb") as file:
        for _ in range(_take(file, "Q", path)[0]):
            camera, model, width, height = _take(file, "iiQQ", path)
            if model not in COLMAP_MODELS:
                raise CameraError(f"{path}: camera {camera} is of model {model}, expected {', '.join(COLMAP_FOCALS)}")
            name, count, _ = COLMAP_MODELS[model]
            values = [float(width), float(height), *_take(file, f"{count}d", path)]
            cameras[str(camera)] = _colmap_lens(name, values, f"{path}: camera {camera}")
    return cameras


def _binary_images(path: Path) -> list[tuple[str, list[float], list[float], str]]:
    images = []
    check_file(path, LARGEST_BINARY)
    with path.open("rb") as file:
        for _ in range(_take(file, "Q", path)[0]):
            number, *pose, camera = _take(file, "i7di", path)
            name = b"".join(iter(lambda: _take(file, "c", path)[0], b"\0")).decode("utf-8", "replace")
            images.append(_image(name, pose, str(camera), f"{path}: image {number}"))
            (points,) = _take(file, "Q", path)
            if points * POINT > path.stat().st_size - file.tell():
                raise CameraError(f"{path}: breaks off in image {number}; copy it again")
            file.seek(points * POINT, 1)
    return images


def _take(file: IO[bytes], form: str, path: Path) -> tuple:
    """The next numbers of a file, little-endian."""
    data = file.read(struct.calcsize(f"<{form}"))
    try:
        return struct.unpack(f"<{form}", data)
    except struct.error as error:
        raise CameraError(f"{path}: breaks off after {file.tell()} bytes; copy it again") from error
