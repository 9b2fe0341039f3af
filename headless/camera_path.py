"""The camera path of a run, from the options `action_path`, `preset` and `keys`."""

from dataclasses import replace
from pathlib import Path

from ..camera import read_pose_folder
from ..camera.formats import FORMATS
from ..camera.moves import path_from_keys, preset_path
from ..camera.origin_report import convention_warnings
from ..camera.path import CameraPath, Origin
from ..camera.pose_folder import PoseFolder
from ..errors import CameraError, InputError
from ..loaders import Checkpoint
from .options import CAMERAS, GenerateOptions


def camera_of(options: GenerateOptions, checkpoint: Checkpoint) -> PoseFolder | None:
    """Return the options' camera path as a pose folder's contents, or None. Raises InputError for several paths,
    CameraError for an unsuitable path."""
    given = [name for name in CAMERAS if getattr(options, name) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InputError(f"{' and '.join(f'`{name}`' for name in given)} exclude each other: a video has one camera")
    name, control = given[0], checkpoint.config.control
    if control is None:
        raise CameraError(
            f"`{name}` {getattr(options, name)}: {checkpoint.path} has no camera layers (plain Wan) and would ignore "
            f"the camera; use a LingBot-World checkpoint, or leave `{name}` out"
        )
    if options.action_path is not None:
        return _pose_folder(Path(options.action_path), actions=control == 7)
    path = make_path(name, getattr(options, name), options.frame_num)
    if control == 7 and path.actions is None:
        raise CameraError(f"`preset` {options.preset}: this checkpoint takes held keys besides; give `keys`")
    return PoseFolder(path.c2w, path.intrinsics, path.actions if control == 7 else None, ())


def _pose_folder(path: Path, actions: bool) -> PoseFolder:
    try:
        folder = read_pose_folder(path, actions=actions)
        origin = Origin("lingbot", FORMATS["lingbot"].convention)
        doubted = convention_warnings(CameraPath(folder.c2w, folder.intrinsics[:1], origin=origin))
        return replace(folder, notes=(*folder.notes, *doubted))
    except CameraError as error:
        file = path / "poses.npy" if path.is_dir() else path
        if not path.exists() or (file.is_file() and file.suffix == ".npy"):
            raise
        raise CameraError(
            f"{error}; `action_path` is a folder with poses.npy and intrinsics.npy, which `lingbot-world "
            "camera convert` makes of other programs' paths"
        ) from error


def make_path(kind: str, text: str, frames: int) -> CameraPath:
    """Return the path of a key script or a preset move. `kind`: "keys" or "preset". `text`: the script, such as
    "w-10,iw-15", or the preset's name. `frames`: the length of a preset move, rounded up to 4n+1."""
    return path_from_keys(text) if kind == "keys" else preset_path(text, frames=frames + 3)
