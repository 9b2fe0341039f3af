"""Readers of camera paths in numpy files, and a writer of LingBot-World's folders."""

from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from ...errors import CameraError
from ...fields import Field, notes_on_unknown
from ...outputs import written_whole
from ..conventions import CONVENTIONS, Convention, to_opencv
from ..path import CameraPath
from ..pose_folder import check_file, read_pose_folder
from ..poses import as_float64
from .frame_names import refuse_gaps
from .lens import refuse_model
from .matrices import array_direction
from .reading import CONVENTION_KEYS, CameraFile, Lens, lens_notes, lens_rows, read_text
from .sniff import array_header

LARGEST_UNPACKED = 512 * 2**20
LARGEST_ARCHIVE = 16 * 2**30  # most of a reconstruction is images and depths, and only their shapes are read
INTRINSICS = ("intrinsic", "intrinsics", "K")
IMAGE_ARRAYS = ("images", "image", "depth", "depths", "depth_map")
INDICES = ("inds", "frame_ids", "frame_idx", "frame_indices", "indices", "timestamps")
NUMERIC = ("b", "u", "i", "f")
PREDICTED = (
    *("conf", "depth_conf", "confidence", "mask", "masks", "motion_prob", "uncertainty", "disps", "points", "pts3d"),
    *("world_points", "world_points_conf", "world_points_from_depth", "pose_enc", "scale"),
)
LINGBOT_FIELDS = (
    Field(("poses.npy",), "applied", "Camera to world, OpenCV axes, 4x4 or 3x4; rounding counts as standing still."),
    Field(("intrinsics.npy",), "applied", "fx, fy, cx, cy at 832x480. The first row counts; others are reported."),
    Field(("action.npy",), "applied", "W, A, S, D of action checkpoints."),
)
VIPE_FIELDS = (
    Field(("data", "inds"), "applied", "Camera to world, OpenCV axes; the frames' numbers. Gaps in them are refused."),
    Field(("intrinsics/<video>.npz",), "applied", "In pixels of `--image_size`; more columns than 4 are reported."),
    Field(
        ("intrinsics/<video>_camera.txt",),
        "refused",
        "Camera types other than a pinhole; `--fov_deg` replaces the lens.",
    ),
)
_LENS_FIELD = Field(
    (*INTRINSICS, *IMAGE_ARRAYS),
    "applied",
    "The lens: 3x3 by row or by column, or fx, fy, cx, cy. Its size is the shape of the images, else twice cx, cy.",
)
_OTHER_FIELDS = (
    _LENS_FIELD,
    Field(INDICES, "applied", "The frames' numbers or times. Gaps and another order are refused; texts are not read."),
    Field(PREDICTED, "ignored", "Points, and how certain the values are."),
)
_BOTH = "any name that states it. If both directions are in the file, they must agree."
MEGASAM_FIELDS = (
    Field(("cam_c2w", "c2w", "cam2world", "T_wc", "camera_poses"), "applied", f"Camera to world, OpenCV axes; {_BOTH}"),
    *_OTHER_FIELDS,
)
VGGT_FIELDS = (
    Field(("extrinsic", "w2c", "world_to_cam", "T_cw"), "applied", f"World to camera, OpenCV axes; {_BOTH}"),
    *_OTHER_FIELDS,
)


def read_lingbot(path: Path, convention: Convention) -> CameraFile:
    """Read a LingBot-World folder: poses.npy, intrinsics.npy and, if it exists, action.npy."""
    folder = read_pose_folder(path)
    c2w = to_opencv(folder.c2w, convention, str(path))
    return CameraFile(c2w, folder.intrinsics, None, folder.notes, folder.actions)


def write_lingbot(path: CameraPath, folder: str | Path) -> None:
    """Write poses.npy and intrinsics.npy, float64, and the actions as action.npy, float32. Without actions, delete an
    existing action.npy."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"poses.npy": path.c2w, "intrinsics.npy": path.intrinsics}
    if path.actions is not None:
        arrays["action.npy"] = path.actions
    with written_whole(*(folder / name for name in arrays)) as parts:
        for part, array in zip(parts, arrays.values(), strict=True):
            with part.open("wb") as file:
                np.save(file, array)
    if path.actions is None:  # an older path's actions
        (folder / "action.npy").unlink(missing_ok=True)


def read_vipe(path: Path, convention: Convention, image_size: tuple[int, int] | None) -> CameraFile:
    """Read ViPE's .npz, and the lens from ../intrinsics/<same name> if this file exists. `image_size`: the video's
    width and height. If it is None, the lens file is not read, and the result has a `lens_fault`."""
    data, frames = _vipe_arrays(path)
    refuse_gaps(frames, f"{path} (inds)")
    recording = CameraFile(to_opencv(data, convention, str(path)))
    lens_file = path.parent.parent / "intrinsics" / path.name
    if not lens_file.is_file():
        return recording
    return recording.with_lens(lambda: _vipe_lens(lens_file, frames, image_size))


def _vipe_lens(lens_file: Path, frames: np.ndarray, image_size: tuple[int, int] | None) -> Lens:
    if image_size is None:
        raise CameraError(f"{lens_file}: focal lengths in pixels; give the width and height of the video they refer to")
    camera_types = lens_file.with_name(f"{lens_file.stem}_camera.txt")
    if camera_types.is_file():
        types = {line.split(":")[-1].strip() for line in read_text(camera_types).splitlines() if line.strip()}
        for each in sorted(types):
            refuse_model(each, str(camera_types), "camera type")
    pixels, lens_frames = _vipe_arrays(lens_file)
    if pixels.ndim != 2 or pixels.shape[1] < 4 or len(lens_frames) != len(frames) or (lens_frames != frames).any():
        raise CameraError(f"{lens_file}: {list(pixels.shape)}, expected [{len(frames)}, 4] for the frames of the poses")
    lens = lens_rows(pixels[:, :4].astype(np.float64), *image_size, str(lens_file))
    return lens, lens_notes(lens, *image_size, pixels[:, 4:].ravel().tolist())


def _vipe_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    check_file(path)
    arrays, _ = _archive(path, "ViPE .npz with data", ("data", "inds").__contains__)
    if arrays.keys() != {"data", "inds"}:
        raise CameraError(f"{path}: not a ViPE .npz with data and inds (found {', '.join(arrays) or 'neither'})")
    data, frames = arrays["data"], arrays["inds"]
    if not data.ndim or frames.shape != data.shape[:1] or not frames.size:
        raise CameraError(f"{path}: data {list(data.shape)} and inds {list(frames.shape)}, expected one each a frame")
    return data, frames


def read_predictions(path: Path, convention: Convention, *, direction: str) -> CameraFile:
    """Read the .npz of MegaSaM, VGGT or Depth Anything 3. `direction`: "c2w" or "w2c", the array to read. Raise
    CameraError if the c2w and w2c arrays are different camera paths."""
    arrays, shapes = _archive(
        path, ".npz of a reconstruction", lambda name: bool(array_direction(name)) or name in (*INTRINSICS, *INDICES)
    )
    named = [name for name in arrays if array_direction(name)]
    fitting = [name for name in named if arrays[name].shape[-2:] in ((3, 4), (4, 4))] or named
    keys = {array_direction(name): name for name in reversed(fitting)}
    if direction not in keys:
        raise CameraError(f"{path}: no {'cam_c2w' if direction == 'c2w' else 'extrinsic'} in this .npz")
    both = {each: _poses(arrays[key], CONVENTIONS[f"opencv_{each}"], f"{path}: {key}") for each, key in keys.items()}
    apart = 1e-3 * max(1.0, abs(both[direction]).max())
    if any(len(each) != len(both[direction]) or abs(each - both[direction]).max() > apart for each in both.values()):
        raise CameraError(f"{path}: {keys['c2w']} and {keys['w2c']} are different paths; remove the wrong one")
    for name in INDICES:
        if name in arrays and arrays[name].shape == (len(both[direction]),):
            refuse_gaps(arrays[name], f"{path} ({name})")
    others = (name for name in shapes if not array_direction(name) and not CONVENTION_KEYS.search(name))
    c2w = _poses(arrays[keys[direction]], convention, f"{path}: {keys[direction]}")
    recording = CameraFile(c2w, notes=tuple(notes_on_unknown(others, _OTHER_FIELDS)))
    matrices = next((arrays[name] for name in INTRINSICS if name in arrays), None)
    if matrices is None:
        return recording
    return recording.with_lens(lambda: _predicted_lens(matrices, shapes, len(both[direction]), path))


def _poses(array: np.ndarray, convention: Convention, where: str) -> np.ndarray:
    batch_of_one = array.ndim == 4 and len(array) == 1
    return to_opencv(array[0] if batch_of_one else array, convention, where)


def _predicted_lens(matrices: np.ndarray, shapes: dict[str, tuple[int, ...]], frames: int, path: Path) -> Lens:
    matrices = as_float64(matrices, f"{path}: intrinsic")
    if matrices.shape[-2:] == (3, 3) and matrices.size in (9, 9 * frames):
        matrices = matrices.reshape(-1, 3, 3)
        matrices = matrices if matrices[:, :2, 2].any() else matrices.swapaxes(1, 2)
        pixels = matrices[:, (0, 1, 0, 1), (0, 1, 2, 2)]
    elif matrices.shape[-1:] == (4,) and matrices.size in (4, 4 * frames):
        pixels = matrices.reshape(-1, 4)
    else:
        raise CameraError(f"{path}: intrinsic {list(matrices.shape)}, expected [3, 3] or [{frames}, 3, 3]")
    sides = next((_sides(shapes[name]) for name in IMAGE_ARRAYS if len(shapes.get(name, ())) > 2), None)
    notes = [] if sides else ["No images in the file: their size is taken for twice cx, cy."]
    width, height = sides or 2 * pixels[0, 2:]
    lens = lens_rows(pixels, width, height, str(path))
    return lens, (*notes, *lens_notes(lens, width, height))


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the width and height of images [..., h, w], [..., h, w, channels] or [..., 3, h, w]."""
    height, width = shape[-3:-1] if shape[-1] in (1, 3, 4) else shape[-2:]
    return width, height


def _archive(
    path: Path, kind: str, wanted: Callable[[str], bool]
) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, ...]]]:
    check_file(path, LARGEST_ARCHIVE)
    try:
        with np.load(path, allow_pickle=False) as archive:
            members = {*archive.zip.namelist()}
            headers = {name: _header(archive.zip, name) for name in archive.files if f"{name}.npy" in members}
            names = [
                name for name, (_, kind) in headers.items() if wanted(name) and (name not in INDICES or kind in NUMERIC)
            ]
            unpacked = sum(archive.zip.getinfo(f"{name}.npy").file_size for name in names)
            if unpacked > LARGEST_UNPACKED:
                raise CameraError(f"{path}: unpacks to {unpacked} bytes, expected at most {LARGEST_UNPACKED}")
            arrays = {name: archive[name] for name in names}
            shapes = {name: shape for name, (shape, _) in headers.items()}
    except CameraError:
        raise
    except Exception as error:  # zipfile, zlib and numpy's header parser raise errors of many types
        raise CameraError(f"{path}: not a {kind} ({error})") from error
    for name, array in arrays.items():
        as_float64(array, f"{path}: {name}")
    return arrays, shapes


def _header(archive: ZipFile, name: str) -> tuple[tuple[int, ...], str]:
    with archive.open(f"{name}.npy") as file:
        return array_header(file)
