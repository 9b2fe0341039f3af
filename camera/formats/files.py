"""Camera paths from and to files. The format, and for bare matrices the convention, is always the user's word."""

from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ...errors import CameraError
from ..path import DEFAULT_FOV_DEG, DEFAULT_FPS, CameraPath, lens_from_fov
from ..poses import LENS_HEIGHT, LENS_WIDTH, check_file, load_array, load_poses, numbers
from .conventions import CONVENTIONS, Recording, lens_notes, lens_rows, refuse_gaps, to_opencv
from .json_files import read_camera_path, read_matrices, read_transforms, write_transforms
from .text_files import read_colmap, read_realestate10k

LARGEST_UNPACKED = 512 * 2**20

FORMATS: dict[str, str] = {
    "lingbot": "folder with poses.npy and intrinsics.npy",
    "vipe": "ViPE's pose/<video>.npz (intrinsics/<video>.npz is found beside it)",
    "realestate10k": "RealEstate10K or CameraCtrl .txt, 19 columns",
    "colmap": "folder with COLMAP's images.txt and cameras.txt",
    "transforms": "nerfstudio or instant-ngp transforms.json",
    "camera_path": "nerfstudio viewer camera_path.json",
    "matrices": "JSON list of matrices (Blender, three.js), convention to be chosen",
}


def read_camera(
    path: str | Path,
    format: str,
    *,
    convention: str | None = None,
    image_size: tuple[int, int] | None = None,
    fov_deg: float | None = None,
) -> tuple[CameraPath, list[str]]:
    """The camera path in a file, and remarks on what of it the model cannot use (distortion, a varying lens).

    `convention` (see CONVENTIONS) for "matrices" only; `image_size` (width, height) that a "vipe" file's focal lengths
    refer to; `fov_deg` across puts another lens in place of the file's, or of the missing one. Raises CameraError.
    """
    path = Path(path)
    if format not in FORMATS:
        raise CameraError(f"camera format {format!r}: expected one of {', '.join(FORMATS)}")
    if (convention is not None) != (format == "matrices") or (convention and convention not in CONVENTIONS):
        needed = f"one of {', '.join(CONVENTIONS)}" if format == "matrices" else "none, the format settles it"
        raise CameraError(f"{path}: convention {convention!r} for {format}, expected {needed}")
    recording = _read(path, format, convention, image_size)
    notes = list(recording.notes)
    lens = recording.intrinsics
    if fov_deg is not None or lens is None:
        lens = lens_from_fov(DEFAULT_FOV_DEG if fov_deg is None else fov_deg)
        if fov_deg is None:
            notes.append(f"No lens in the file: {DEFAULT_FOV_DEG:g} degrees across, that of the official examples.")
    return CameraPath(recording.c2w, lens, recording.fps or DEFAULT_FPS, recording.actions), notes


def write_lingbot(path: CameraPath, folder: str | Path) -> None:
    """poses.npy and intrinsics.npy (float64), and action.npy if there are actions, as the official code reads them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "poses.npy", path.c2w)
    np.save(folder / "intrinsics.npy", path.intrinsics)
    if path.actions is not None:
        np.save(folder / "action.npy", path.actions)


def write_camera(path: CameraPath, target: str | Path) -> None:
    """A .json target as transforms.json, anything else as a folder with poses.npy and intrinsics.npy."""
    target = Path(target)
    if target.suffix.lower() == ".json":
        target.parent.mkdir(parents=True, exist_ok=True)
        write_transforms(path, target)
    else:
        write_lingbot(path, target)


def _read(path: Path, format: str, convention: str | None, image_size: tuple[int, int] | None) -> Recording:
    if format == "vipe":
        return read_vipe(path, image_size)
    if format == "matrices":
        return read_matrices(path, CONVENTIONS[convention])
    return READERS[format](path)


def read_lingbot(path: Path) -> Recording:
    """poses.npy and intrinsics.npy at 832x480, with the action.npy of action checkpoints if it is there."""
    c2w, lens = load_poses(path)
    beside = (path if path.is_dir() else path.parent) / "action.npy"
    actions = load_array(beside) if beside.is_file() else None
    if len(lens) not in (1, len(c2w)):
        raise CameraError(f"{path}: {len(lens)} rows of intrinsics for {len(c2w)} poses")
    return Recording(c2w, lens, None, lens_notes(lens, LENS_WIDTH, LENS_HEIGHT), actions)


def read_vipe(path: Path, image_size: tuple[int, int] | None) -> Recording:
    """ViPE: `data` [n, 4, 4] camera-to-world in OpenCV axes and `inds` [n]; intrinsics in the sister folder's .npz."""
    data, frames = _vipe_arrays(path)
    refuse_gaps(frames, f"{path} (inds)")
    c2w = to_opencv(data, CONVENTIONS["opencv_c2w"], str(path))
    lens_file = path.parent.parent / "intrinsics" / path.name
    if not lens_file.is_file():
        return Recording(c2w, None)
    if image_size is None:
        raise CameraError(f"{lens_file}: focal lengths in pixels; give the width and height of the video they refer to")
    pixels, lens_frames = _vipe_arrays(lens_file)
    if pixels.ndim != 2 or pixels.shape[1] < 4 or len(lens_frames) != len(frames) or (lens_frames != frames).any():
        raise CameraError(f"{lens_file}: {list(pixels.shape)}, expected [{len(frames)}, 4] for the frames of the poses")
    lens = lens_rows(pixels[:, :4], *image_size, str(lens_file))
    return Recording(c2w, lens, None, lens_notes(lens, *image_size))


def _vipe_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    check_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            _refuse_bomb(archive, path)
            data, frames = (numbers(archive[key], f"{path}: {key}") for key in ("data", "inds"))
    except CameraError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OSError, EOFError, BadZipFile) as error:
        raise CameraError(f"{path}: not a ViPE .npz with data and inds ({error})") from error
    if frames.shape != data.shape[:1] or not frames.size:
        raise CameraError(f"{path}: data {list(data.shape)} and inds {list(frames.shape)}, expected one each a frame")
    return data, frames


def _refuse_bomb(archive, path: Path) -> None:
    unpacked = sum(entry.file_size for entry in archive.zip.infolist())
    if unpacked > LARGEST_UNPACKED:
        raise CameraError(f"{path}: unpacks to {unpacked} bytes, expected at most {LARGEST_UNPACKED}")


READERS: dict[str, Callable[[Path], Recording]] = {
    "lingbot": read_lingbot,
    "realestate10k": read_realestate10k,
    "colmap": read_colmap,
    "transforms": read_transforms,
    "camera_path": read_camera_path,
}
