"""Reader and writer of COLMAP's camera files."""

import math
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from ...errors import CameraError
from ...fields import Field
from ...outputs import written_whole
from ..conventions import Convention, to_opencv
from ..path import CameraPath
from ..pose_folder import check_file
from ..poses import LENS_HEIGHT, LENS_WIDTH
from ..rotation import from_quaternions, inverse, rigid, to_quaternions
from .frame_names import sort_by_name
from .lens import COLMAP_MODELS, COLMAP_PINHOLES, MODELS, OTHER_LENSES, refuse_model
from .reading import CameraFile, Lens, float_fields, lens_notes, lens_rows, read_text

LARGEST_BINARY = 4 * 2**30  # most of images.bin is points, which the reader skips

COLMAP_FILES = ("images.bin", "images.txt", "cameras.bin", "cameras.txt")
SHORTEST = 1e-6
"""Quaternions must be longer than SHORTEST and shorter than 1 / SHORTEST; others are refused."""
POINT = struct.calcsize("<ddq")

FIELDS = (
    Field(("QW, QX, QY, QZ, TX, TY, TZ",), "applied", "World to camera; the digits decide what is a rounding error."),
    Field(("NAME",), "applied", "The frames' order; gaps in the numbers are refused."),
    Field(("POINTS2D[]",), "ignored", "Recognised by its triples of numbers; the line may be missing."),
    Field(("WIDTH, HEIGHT, fx, fy, cx, cy",), "applied", "The lens. `--fov_deg` replaces a missing cameras file."),
    Field(COLMAP_PINHOLES, "applied", "Pinholes; distortion terms are reported."),
    Field(OTHER_LENSES, "refused", "Not pinholes; `--fov_deg` replaces the lens."),
    Field(("0", "1"), "reported", "Models that COLMAP could not join: the first one, or the named one, is read."),
    Field(("rigs", "frames", "points3D"), "ignored", "images.txt and images.bin hold each image's own pose."),
)


class _Camera(NamedTuple):
    """A camera in COLMAP's cameras file.

    size: width and height of the images in pixels.
    lens: fx, fy, cx, cy in pixels; empty for a fisheye or panorama.
    terms: the distortion coefficients.
    """

    model: str
    size: tuple[float, float]
    lens: list[float]
    terms: list[float]


def read_colmap(path: Path, convention: Convention) -> CameraFile:
    """Read COLMAP's images and cameras files, .bin or .txt, in the order of image names. `path` is one of the files or
    a folder."""
    folder = model_folder(path) if path.is_dir() else path.parent
    binary = path.suffix.lower() == ".bin" if path.is_file() else (folder / "images.bin").is_file()
    suffix = ".bin" if binary else ".txt"
    images_file, cameras_file = folder / f"images{suffix}", folder / f"cameras{suffix}"
    images = _binary_images(images_file) if binary else _text_images(images_file)
    if not images:
        raise CameraError(f"{images_file}: no images")
    images = sort_by_name(images, lambda image: image[0], str(images_file))
    _, quaternions, shifts, cameras = zip(*images, strict=True)
    w2c = rigid(from_quaternions(quaternions), np.array(shifts))
    written = np.concatenate([quaternions, shifts], axis=1)
    c2w = to_opencv(w2c, convention, str(images_file), written)
    recording = CameraFile(c2w, notes=_other_models(folder))
    return recording.with_lens(lambda: _read_lens(cameras_file, cameras, images_file))


def model_folder(folder: Path) -> Path:
    """Return the folder with COLMAP's files: `folder` or a usual subfolder, such as sparse/0. Without such files,
    return `folder`."""
    below = (folder, *(folder / name for name in ("sparse/0", "sparse", "colmap/sparse/0", "colmap", "0")))
    return next((each for each in below if any((each / name).is_file() for name in COLMAP_FILES)), folder)


def _other_models(folder: Path) -> tuple[str, ...]:
    files = [file for name in COLMAP_FILES[:2] for file in folder.parent.glob(f"[0-9]*/{name}")]
    others = sorted({file.parent.name for file in files})
    if not folder.name.isdigit() or len(others) < 2:
        return ()
    return (f"COLMAP made {len(others)} separate models ({', '.join(others)}): {folder.name} is read.",)


def _read_lens(cameras_file: Path, used: Sequence[str], images_file: Path) -> Lens:
    """Return fx, fy, cx, cy for each image, [n, 4] in pixels of an 832x480 image, and notes for the user.

    used: the camera id of each image.
    images_file: named in error messages.
    """
    cameras = (_binary_cameras if cameras_file.suffix == ".bin" else _text_cameras)(cameras_file)
    if missing := next((camera for camera in used if camera not in cameras), None):
        raise CameraError(f"{images_file}: taken by camera {missing}, which {cameras_file.name} lacks")
    for camera in dict.fromkeys(used):
        refuse_model(cameras[camera].model, f"{cameras_file}: camera {camera}", "model")
    rows = [cameras[camera] for camera in used]
    lens = np.concatenate([lens_rows([row.lens], *row.size, str(cameras_file)) for row in rows])
    return lens, lens_notes(lens, *rows[0].size, [term for row in rows for term in row.terms])


def _text_cameras(path: Path) -> dict[str, _Camera]:
    cameras = {}
    for number, line in _lines(path):
        fields = line.split()
        if not fields:
            continue
        where = f"{path}: line {number}"
        if len(fields) < 4 or fields[1] not in MODELS:
            raise CameraError(f"{where}: {line[:60]!r}, expected id, model ({', '.join(MODELS)}), size, numbers")
        cameras[fields[0]] = _camera(fields[1], float_fields(fields[2:], where), where)
    return cameras


def _camera(name: str, values: list[float], where: str) -> _Camera:
    (width, height, *terms), model = values, MODELS[name]
    if len(terms) != model.numbers:
        raise CameraError(f"{where}: {len(terms)} numbers after the size of {name}, expected {model.numbers}")
    if not model.pinhole:
        return _Camera(name, (width, height), [], [])
    centre = terms[model.focals : model.focals + 2]
    return _Camera(name, (width, height), [terms[0], terms[model.focals - 1], *centre], terms[model.focals + 2 :])


def _text_images(path: Path) -> list[tuple[str, list[float], list[float], str]]:
    """Return the name, quaternion xyzw, translation and camera id of each image in images.txt."""
    images: list[tuple[str, list[float], list[float], str]] = []
    after_image = False
    for number, line in _lines(path):
        fields = line.split(maxsplit=9)
        after_image, was_image = False, after_image
        if not fields or (was_image and _is_points(line.split())):
            continue
        if len(fields) != 10:
            raise CameraError(
                f"{path}: line {number} has {len(fields)} columns, expected 10 of an image, or points of 3 numbers each"
            )
        where = f"{path}: line {number}"
        images.append(_image(fields[9].strip(), float_fields(fields[1:8], where), fields[8], where))
        after_image = True
    return images


def _is_points(fields: Sequence[str]) -> bool:
    if len(fields) % 3:
        return False
    try:
        float_fields(fields, "")
        return all(re.fullmatch(r"-?\d+", field) for field in fields[2::3])
    except CameraError:
        return False


def _image(name: str, pose: Sequence[float], camera: str, where: str) -> tuple[str, list[float], list[float], str]:
    """Check a `pose` (quaternion wxyz, translation) and return name, quaternion xyzw, translation and camera id."""
    w, x, y, z, *shift = pose
    length = math.hypot(w, x, y, z)
    if not SHORTEST < length < 1 / SHORTEST:
        raise CameraError(f"{where} has a {'zero quaternion' if length < 1 else f'quaternion of length {length:g}'}")
    return name, [x, y, z, w], shift, camera


def _lines(path: Path) -> list[tuple[int, str]]:
    lines = enumerate(read_text(path).splitlines(), 1)
    return [(number, line) for number, line in lines if not line.lstrip().startswith("#")]


def _binary_cameras(path: Path) -> dict[str, _Camera]:
    cameras = {}
    check_file(path)
    with path.open("rb") as file:
        for _ in range(_read_numbers(file, "Q", path)[0]):
            camera, number, width, height = _read_numbers(file, "iiQQ", path)
            if number not in COLMAP_MODELS:
                raise CameraError(f"{path}: camera {camera} is of model {number}, expected {', '.join(MODELS)}")
            name, model = COLMAP_MODELS[number]
            values = [float(width), float(height), *_read_numbers(file, f"{model.numbers}d", path)]
            cameras[str(camera)] = _camera(name, values, f"{path}: camera {camera}")
    return cameras


def _binary_images(path: Path) -> list[tuple[str, list[float], list[float], str]]:
    images = []
    check_file(path, LARGEST_BINARY)
    with path.open("rb") as file:
        for _ in range(_read_numbers(file, "Q", path)[0]):
            number, *pose, camera = _read_numbers(file, "i7di", path)
            name = b"".join(iter(lambda: _read_numbers(file, "c", path)[0], b"\0")).decode("utf-8", "replace")
            images.append(_image(name, pose, str(camera), f"{path}: image {number}"))
            (points,) = _read_numbers(file, "Q", path)
            if points * POINT > path.stat().st_size - file.tell():
                raise CameraError(f"{path}: breaks off in image {number}; copy it again")
            file.seek(points * POINT, 1)
    return images


def _read_numbers(file: IO[bytes], form: str, path: Path) -> tuple:
    data = file.read(struct.calcsize(f"<{form}"))
    try:
        return struct.unpack(f"<{form}", data)
    except struct.error as error:
        raise CameraError(f"{path}: breaks off after {file.tell()} bytes; copy it again") from error


def write_colmap(path: CameraPath, folder: Path, names: Sequence[str], size: tuple[int, int]) -> None:
    """Write a path as COLMAP's text model without points. `names`: the frames' file names. `size`: (height, width) in
    pixels."""
    height, width = size
    sides = np.array([width / LENS_WIDTH, height / LENS_HEIGHT] * 2)
    lenses, numbers = np.unique(path.intrinsics * sides, axis=0, return_inverse=True)
    w2c = inverse(path.c2w)
    quaternions = to_quaternions(w2c[:, :3, :3])[:, [3, 0, 1, 2]]
    cameras = [f"{index} PINHOLE {width} {height} {_numbers(lens)}" for index, lens in enumerate(lenses, 1)]
    rows = zip(quaternions, w2c[:, :3, 3], numbers.ravel(), names, strict=True)
    images = [
        f"{index} {_numbers(quaternion)} {_numbers(shift)} {number + 1} {name}\n"
        for index, (quaternion, shift, number, name) in enumerate(rows, 1)
    ]
    files = [folder / name for name in ("cameras.txt", "images.txt", "points3D.txt")]
    with written_whole(*files) as parts:
        for part, lines in zip(parts, (cameras, images, []), strict=True):
            part.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _numbers(values: np.ndarray) -> str:
    return " ".join(repr(float(value)) for value in values)
