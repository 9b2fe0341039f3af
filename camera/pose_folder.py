"""The reader of poses.npy, intrinsics.npy and action.npy in a folder."""

from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import numpy as np

from ..errors import CameraError
from .poses import FEWEST_POSES, check_actions, check_intrinsics, check_poses, lens_change
from .rounding import remove_rounding

LARGEST_FILE = 64 * 2**20
FILES = ("poses.npy", "intrinsics.npy", "action.npy")


@dataclass(frozen=True)
class PoseFolder:
    """The content of a pose folder, in float64.

    c2w: [n, 4, 4], camera-to-world in OpenCV axes, with rotations as stored.
    intrinsics: [n, 4] or [1, 4], fx, fy, cx, cy in pixels of 832x480.
    actions: [n, 4], W, A, S, D flags.
    """

    c2w: np.ndarray
    intrinsics: np.ndarray
    actions: np.ndarray | None
    notes: tuple[str, ...]


def load_poses(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Return a pose folder's poses [n, 4, 4] and lens [n, 4] or [1, 4], both float64."""
    folder = read_pose_folder(path, actions=False)
    return folder.c2w, folder.intrinsics


def read_pose_folder(
    path: str | Path, *, lens: Path | np.ndarray | None = None, actions: bool | None = None
) -> PoseFolder:
    """Read a pose folder, its zip file, or a pose file. `lens` replaces intrinsics.npy. action.npy is required if
    `actions` is True, ignored if False, and optional if None. Raise CameraError for fewer than five poses."""
    path = Path(path)
    if path.suffix.lower() == ".zip":
        return _read_zipped(path, lens, actions)
    file = path / "poses.npy" if path.is_dir() else path
    stored = load_array(file)
    c2w = check_poses(stored, str(file))
    c2w = remove_rounding(c2w, c2w, dtype=stored.dtype)
    notes: list[str] = []
    if len(c2w) < FEWEST_POSES:
        raise CameraError(f"{file}: {len(c2w)} poses; at least {FEWEST_POSES} are needed (two latent frames)")
    rows = _lens_rows(file.with_name("intrinsics.npy") if lens is None else lens, len(c2w), notes)
    action_file = file.with_name("action.npy")
    if actions is False or (actions is None and not action_file.is_file()):
        return PoseFolder(c2w, rows, None, tuple(notes))
    flags = check_actions(load_array(action_file), str(action_file))
    used = min(len(flags), len(c2w))
    if len(flags) != len(c2w):
        notes.append(f"{action_file} has {len(flags)} rows for {len(c2w)} poses: the first {used} of both are used.")
    return PoseFolder(c2w[:used], rows[:used], flags[:used], tuple(notes))


def _read_zipped(path: Path, lens: Path | np.ndarray | None, actions: bool | None) -> PoseFolder:
    check_file(path)
    with TemporaryDirectory() as folder:
        try:
            _unzip(path, Path(folder))
            read = read_pose_folder(folder, lens=lens, actions=actions)
        except CameraError as error:
            raise CameraError(str(error).replace(folder, str(path))) from error
        return replace(read, notes=tuple(note.replace(folder, str(path)) for note in read.notes))


def _unzip(path: Path, folder: Path) -> None:
    try:
        with ZipFile(path) as archive:
            members = [(info, PureWindowsPath(info.filename).name) for info in archive.infolist()]
            for info, name in members:
                if name in FILES and info.file_size <= LARGEST_FILE:
                    (folder / name).write_bytes(archive.read(info))
    except Exception as error:  # zipfile raises errors of many types
        raise CameraError(f"{path}: not a zip file that can be read ({error})") from error


def _lens_rows(lens: Path | np.ndarray, n_poses: int, notes: list[str]) -> np.ndarray:
    rows = check_intrinsics(lens) if isinstance(lens, np.ndarray) else check_intrinsics(load_array(lens), str(lens))
    notes += lens_change(rows)
    if len(rows) in (1, n_poses):
        return rows
    notes.append(f"{lens} has {len(rows)} rows for {n_poses} poses: the first row is used for all of them.")
    return rows[:1]


def load_array(path: str | Path) -> np.ndarray:
    """Return the array in an .npy file of at most 64 MiB. Raise CameraError for other files and pickled objects."""
    path = Path(path)
    check_file(path)
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except Exception as error:  # numpy parses the header as Python, so any error of its tokenizer and parser can occur
        raise CameraError(f"{path}: not a plain .npy array ({error})") from error


def check_file(path: Path, largest: int = LARGEST_FILE) -> None:
    """Raise CameraError for a file that is missing, empty, or has more than `largest` bytes."""
    if not path.is_file():
        raise CameraError(f"{path}: no such file")
    size = path.stat().st_size
    if not 0 < size <= largest:
        expected = f"at most {largest // 2**20} MiB" if size else "a camera path"
        raise CameraError(f"{path}: {size} bytes, expected {expected}")
