"""The list of camera file formats, and functions that read and write camera files."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...errors import CameraError
from ...fields import Field
from ...options import FPS
from ..conventions import CONVENTIONS
from ..path import DEFAULT_FOV_DEG, CameraPath, Origin, lens_from_fov
from .colmap import FIELDS as COLMAP_FIELDS
from .colmap import read_colmap
from .json_files import PATH_FIELDS, TRANSFORMS_FIELDS, read_camera_path, read_transforms, write_transforms
from .matrices import MATRIX_FIELDS, direction_of, read_matrices
from .numpy_files import (
    LINGBOT_FIELDS,
    MEGASAM_FIELDS,
    VGGT_FIELDS,
    VIPE_FIELDS,
    read_lingbot,
    read_predictions,
    read_vipe,
    write_lingbot,
)
from .reading import CameraFile, read_text
from .scans import ARKIT_FIELDS, SPLAT_FIELDS, read_arkit, read_splat_cameras
from .sniff import MATRIX_NAME, format_of, lens_fault, stated_convention, stated_texts
from .tables import KITTI_FIELDS, RE10K_FIELDS, TUM_FIELDS, read_kitti, read_realestate10k, read_tum


@dataclass(frozen=True)
class Format:
    """A camera file format.

    convention: a name in CONVENTIONS, or "" if the user must choose.
    fields: the files' fields; each Field states how the reader uses it.
    sized: whether `read` also takes the images' width and height.
    """

    description: str
    suffixes: tuple[str, ...]
    read: Callable[..., CameraFile]
    convention: str
    fields: tuple[Field, ...]
    sized: bool = False


FORMATS: dict[str, Format] = {
    "lingbot": Format(
        "folder or zip with poses.npy and intrinsics.npy", (".npy", ".zip"), read_lingbot, "opencv_c2w", LINGBOT_FIELDS
    ),
    "vipe": Format(
        "ViPE's pose/<video>.npz (intrinsics/<video>.npz is found next to it)",
        (".npz",),
        read_vipe,
        "opencv_c2w",
        VIPE_FIELDS,
        sized=True,
    ),
    "realestate10k": Format(
        "RealEstate10K or CameraCtrl .txt, 19 columns", (".txt", ".csv"), read_realestate10k, "opencv_w2c", RE10K_FIELDS
    ),
    "colmap": Format(
        "folder with COLMAP's images and cameras, .bin or .txt",
        (".bin", ".txt"),
        read_colmap,
        "opencv_w2c",
        COLMAP_FIELDS,
    ),
    "kitti": Format(
        "KITTI's poses .txt, 12 columns, or Replica's, 16", (".txt", ".csv"), read_kitti, "opencv_c2w", KITTI_FIELDS
    ),
    "transforms": Format(
        "nerfstudio, instant-ngp or Blender-NeRF transforms.json, or its folder",
        (".json",),
        read_transforms,
        "opengl_c2w",
        TRANSFORMS_FIELDS,
    ),
    "camera_path": Format(
        "nerfstudio viewer camera_path.json", (".json",), read_camera_path, "opengl_c2w", PATH_FIELDS
    ),
    "matrices": Format(
        "JSON list of matrices (Blender, three.js), convention to be chosen",
        (".json",),
        read_matrices,
        "",
        MATRIX_FIELDS,
    ),
    "tum": Format(
        "TUM's trajectory .txt or EuRoC's .csv, 8 columns", (".txt", ".csv", ".tum"), read_tum, "opencv_c2w", TUM_FIELDS
    ),
    "megasam": Format(
        "MegaSaM's .npz with cam_c2w",
        (".npz",),
        partial(read_predictions, direction="c2w"),
        "opencv_c2w",
        MEGASAM_FIELDS,
    ),
    "vggt": Format(
        "VGGT's or Depth Anything 3's .npz with extrinsic",
        (".npz",),
        partial(read_predictions, direction="w2c"),
        "opencv_w2c",
        VGGT_FIELDS,
    ),
    "arkit": Format(
        "ARKit's poses .json (Record3D, lists of frames), or a folder of them (Polycam)",
        (".json",),
        read_arkit,
        "opengl_c2w",
        ARKIT_FIELDS,
    ),
    "gaussian_splatting": Format(
        "3D Gaussian splatting's cameras.json, or its folder",
        (".json",),
        read_splat_cameras,
        "opencv_c2w",
        SPLAT_FIELDS,
    ),
}


def read_camera(
    path: str | Path,
    format: str | None = None,
    *,
    convention: str | None = None,
    image_size: tuple[int, int] | None = None,
    fov_deg: float | None = None,
) -> tuple[CameraPath, list[str]]:
    """Return the camera path of a file or folder, and notes on content that the model cannot use. Raise CameraError for
    an invalid file or a missing argument.

    format: a name in FORMATS, by default detected.
    convention: a name in CONVENTIONS that replaces the format's.
    image_size: width and height in pixels, for a "vipe" file.
    fov_deg: a horizontal field of view that replaces the file's lens.

    Without a lens, the field of view is 79 degrees.
    """
    path = Path(path)
    if format is None:
        return _detect_and_read(path, convention, image_size, fov_deg)
    if format not in FORMATS:
        raise CameraError(f"camera format {format!r}: expected one of {', '.join(FORMATS)}")
    own = FORMATS[format].convention
    suffix = path.suffix.lower()
    fitting = [name for name, other in FORMATS.items() if suffix in other.suffixes]
    if fitting and format not in fitting:
        raise CameraError(f"{path}: the `format` is {format}; a {suffix} file is {' or '.join(fitting)}: choose that")
    texts = stated_texts(path, matrix_name=not own)
    taken = convention or stated_convention(texts, own, str(path))
    if taken not in CONVENTIONS or (own and CONVENTIONS[taken].by_column):
        direction = direction_of(texts.get(MATRIX_NAME, "")) if convention is None else ""
        fitting = [name for name, each in CONVENTIONS.items() if not (own and each.by_column) and direction in name]
        axes = f"{texts[MATRIX_NAME]} states no axes: " if direction else ""
        raise CameraError(f"{path}: {axes}`convention` {convention} for {format}, expected one of {', '.join(fitting)}")
    sizes = [image_size] if FORMATS[format].sized else []
    recording = FORMATS[format].read(path, CONVENTIONS[taken], *sizes)
    notes, lens = list(recording.notes), recording.intrinsics
    fault = recording.lens_fault or lens_fault(texts, str(path))
    if fault and fov_deg is None:
        raise CameraError(f"{fault}; or give a field of view (`fov_deg`), which replaces the lens")
    if fault:
        notes.append(f"{fault}: a lens that sees {fov_deg:g} degrees across stands in for it.")
    if fov_deg is not None or lens is None:
        lens = lens_from_fov(DEFAULT_FOV_DEG if fov_deg is None else fov_deg)
        if fov_deg is None:
            notes.append(f"No lens in the file: {DEFAULT_FOV_DEG:g} degrees across, that of the official examples.")
    origin = Origin(format, taken, overridden=taken != own)
    return CameraPath(recording.c2w, lens, recording.fps or FPS, recording.actions, origin), notes


def _detect_and_read(
    path: Path, convention: str | None, image_size: tuple[int, int] | None, fov_deg: float | None
) -> tuple[CameraPath, list[str]]:
    format = format_of(path)
    if not path.exists():
        raise CameraError(f"{path}: no such file or folder")
    if format is None:
        if path.suffix.lower() in (".json", ".txt", ".csv"):
            read_text(path)  # raises for another encoding, in which no format is recognised
        found = "the format of the camera file is not recognised;"
        found = "no camera file is found in this folder; name a file, or" if path.is_dir() else found
        raise CameraError(f"{path}: {found} give `format`, one of {', '.join(FORMATS)}")
    try:
        return read_camera(path, format, convention=convention, image_size=image_size, fov_deg=fov_deg)
    except CameraError as error:
        raise CameraError(f"{error} (read as {format}; `format` names another one)") from error


def check_camera_output(target: Path) -> None:
    """Raise CameraError unless `target` is a .json file or a folder. A new path counts as a folder, except with a
    camera file's suffix, such as .npz."""
    suffix = target.suffix.lower()
    called = target.is_file() or any(suffix in format.suffixes for format in FORMATS.values())
    if suffix != ".json" and not target.is_dir() and called:
        raise CameraError(
            f"{target}: a path is written as a folder with poses.npy and intrinsics.npy, or as a .json "
            "file; name one of these"
        )


def write_camera(path: CameraPath, target: str | Path) -> None:
    """Write a path as transforms.json if `target` ends in .json, else as a folder with poses.npy and intrinsics.npy. If
    writing fails, existing files remain unchanged."""
    target = Path(target)
    check_camera_output(target)
    if target.suffix.lower() == ".json":
        target.parent.mkdir(parents=True, exist_ok=True)
        write_transforms(path, target)
    else:
        write_lingbot(path, target)
