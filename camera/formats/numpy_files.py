"""Camera paths in numpy files: LingBot-World's own folders, and ViPE's archives."""

from pathlib import Path

import numpy as np

from ...errors import CameraError
from ..conventions import CONVENTIONS, to_opencv
from ..path import CameraPath
from ..pose_folder import check_file, read_pose_folder
from ..poses import as_float64
from .reading import Recording, lens_notes, lens_rows, refuse_gaps
from .writing import written_whole

LARGEST_UNPACKED = 512 * 2**20


def read_lingbot(path: Path) -> Recording:
    """poses.npy and intrinsics.npy at 832x480, with the action.npy of action checkpoints if it is there."""
    folder = read_pose_folder(path)
    return Recording(folder.c2w, folder.intrinsics, None, folder.notes, folder.actions)


def write_lingbot(path: CameraPath, folder: str | Path) -> None:
    """poses.npy and intrinsics.npy (float64), and action.npy if there are actions, as the official code reads them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"poses.npy": path.c2w, "intrinsics.npy": path.intrinsics}
    if path.actions is not None:
        arrays["action.npy"] = path.actions
    with written_whole(*(folder / name for name in arrays)) as parts:
        for part, array in zip(parts, arrays.values(), strict=True):
            with part.open("wb") as file:
                np.save(file, array)
    if path.actions is None:  # those of an older path
        (folder / "action.npy").unlink(missing_ok=True)


NOT_NEEDED = (0, 0)
"""An image size for `read_vipe`: the lens in the file is not asked for."""


def read_vipe(path: Path, image_size: tuple[int, int] | None) -> Recording:
    """ViPE: `data` [n, 4, 4] camera-to-world in OpenCV axes and `inds` [n]; intrinsics in the sister folder's .npz."""
    data, frames = _vipe_arrays(path)
    refuse_gaps(frames, f"{path} (inds)")
    c2w = to_opencv(data, CONVENTIONS["opencv_c2w"], str(path))
    lens_file = path.parent.parent / "intrinsics" / path.name
    if image_size == NOT_NEEDED or not lens_file.is_file():
        return Recording(c2w, None)
    if image_size is None:
        raise CameraError(
            f"{lens_file}: focal lengths in pixels; give the width and height of the video they refer to, or a field "
            "of view to put in their place"
        )
    pixels, lens_frames = _vipe_arrays(lens_file)
    if pixels.ndim != 2 or pixels.shape[1] < 4 or len(lens_frames) != len(frames) or (lens_frames != frames).any():
        raise CameraError(f"{lens_file}: {list(pixels.shape)}, expected [{len(frames)}, 4] for the frames of the poses")
    lens = lens_rows(pixels[:, :4], *image_size, str(lens_file))
    return Recording(c2w, lens, None, lens_notes(lens, *image_size))


def _vipe_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    check_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            unpacked = sum(entry.file_size for entry in archive.zip.infolist())
            if unpacked > LARGEST_UNPACKED:
                raise CameraError(f"{path}: unpacks to {unpacked} bytes, expected at most {LARGEST_UNPACKED}")
            data, frames = (as_float64(archive[key], f"{path}: {key}") for key in ("data", "inds"))
    except CameraError:
        raise
    except Exception as error:  # of zipfile, zlib and numpy's parser of headers
        raise CameraError(f"{path}: not a ViPE .npz with data and inds ({error})") from error
    if frames.shape != data.shape[:1] or not frames.size:
        raise CameraError(f"{path}: data {list(data.shape)} and inds {list(frames.shape)}, expected one each a frame")
    return data, frames
