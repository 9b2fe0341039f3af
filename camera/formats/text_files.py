"""Camera paths in text files: RealEstate10K / CameraCtrl, and COLMAP's text model."""

from pathlib import Path

import numpy as np

from ...errors import CameraError
from ..poses import LENS_HEIGHT, LENS_WIDTH
from ..rotation import from_quaternions, rigid
from .conventions import CONVENTIONS, to_opencv
from .reading import Recording, float_fields, in_name_order, lens_notes, lens_rows, read_text, refuse_gaps

# COLMAP camera models: how many focal lengths; then cx, cy; the rest is distortion
COLMAP_FOCALS = {
    "SIMPLE_PINHOLE": 1,
    "PINHOLE": 2,
    "SIMPLE_RADIAL": 1,
    "RADIAL": 1,
    "OPENCV": 2,
    "OPENCV_FISHEYE": 2,
    "FULL_OPENCV": 2,
    "SIMPLE_RADIAL_FISHEYE": 1,
    "RADIAL_FISHEYE": 1,
    "THIN_PRISM_FISHEYE": 2,
}


def read_realestate10k(path: Path) -> Recording:
    """A line a frame: time, fx, fy, cx, cy as shares of the image, two zeros, world-to-camera 3x4 by row; OpenCV axes.

    The first line may hold the video's address.
    """
    lines = [(n, line.split()) for n, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    if lines and len(lines[0][1]) == 1:
        lines = lines[1:]
    if not lines:
        raise CameraError(f"{path}: no camera lines")
    for number, fields in lines:
        if len(fields) != 19:
            raise CameraError(f"{path}: line {number} has {len(fields)} columns, expected 19")
    rows = np.array([float_fields(fields, f"{path}: line {number}") for number, fields in lines])
    if (rows[:, 1:5] > 10).any():
        raise CameraError(f"{path}: focal length {rows[0, 1]:g} is in pixels, expected a share of the image's width")
    refuse_gaps(rows[:, 0], f"{path} (time stamps)")
    lens = rows[:, 1:5] * [LENS_WIDTH, LENS_HEIGHT, LENS_WIDTH, LENS_HEIGHT]
    c2w = to_opencv(rows[:, 7:].reshape(-1, 3, 4), CONVENTIONS["opencv_w2c"], str(path))
    return Recording(c2w, lens, None, lens_notes(lens, LENS_WIDTH, LENS_HEIGHT))


def read_colmap(path: Path) -> Recording:
    """A folder with COLMAP's images.txt and cameras.txt; images in the order of their names."""
    folder = path if path.is_dir() else path.parent
    cameras = _colmap_cameras(folder / "cameras.txt")
    images = _colmap_images(folder / "images.txt")
    used = [_used(cameras, camera, name, folder) for name, _, _, camera in images]
    lens = np.concatenate([lens_rows([row], width, height, str(folder)) for row, width, height, _ in used])
    _, quaternions, shifts, _ = zip(*images, strict=True)
    w2c = rigid(from_quaternions(quaternions), np.array(shifts))
    _, width, height, _ = used[0]
    notes = lens_notes(lens, width, height, [term for *_, terms in used for term in terms])
    return Recording(to_opencv(w2c, CONVENTIONS["opencv_w2c"], str(folder / "images.txt")), lens, None, notes)


def _used(cameras: dict, camera: str, image: str, folder: Path) -> tuple:
    if camera not in cameras:
        raise CameraError(f"{folder / 'images.txt'}: {image} was taken by camera {camera}, which cameras.txt lacks")
    return cameras[camera]


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
        w, x, y, z, *shift = float_fields(fields[1:8], f"{path}: line {number}")
        if not any((w, x, y, z)):
            raise CameraError(f"{path}: line {number} has a zero quaternion")
        images.append((fields[9].strip(), [x, y, z, w], shift, fields[8]))
    if not images:
        raise CameraError(f"{path}: no images")
    return in_name_order(images, lambda image: image[0], str(path))


def _lines(path: Path) -> list[tuple[int, str]]:
    return [(n, line) for n, line in enumerate(read_text(path).splitlines(), 1) if not line.startswith("#")]
