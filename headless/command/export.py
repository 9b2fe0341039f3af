"""The command `lingbot-world export VIDEO|WALK DEST`: write frames, cameras and points for nerfstudio, COLMAP and
viewers."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CameraError, DependencyError, InputError
from ...outputs import lock_output
from .flags import Help, count, parse_path

if TYPE_CHECKING:
    from ...export import Exported

ABOUT = "export a walk, or a video and its camera path, for nerfstudio, COLMAP or as a point cloud"
HELP = """Writes the sharpest of each N frames, its exact pose and lens, and sparse coloured points. The points are
corners that OpenCV tracks and pycolmap triangulates with the path's poses held fixed, so they measure how consistent
the generated world is. For each second the command prints the mean reprojection error in pixels, and the share of the
tracked points that three or more views confirm. With a low share or a high error a splat will be poor.

Points need pycolmap and OpenCV: pip install -e ".[cli,measure]"."""


def add_export_command(commands: Any) -> None:
    parser = commands.add_parser("export", help=ABOUT, description=HELP, formatter_class=Help)
    parser.set_defaults(run=_export)
    parser.add_argument("video", metavar="VIDEO|WALK", type=parse_path, help="a walk's folder, a video, or its frames")
    parser.add_argument("dest", metavar="DEST", type=parse_path, help="a folder that is new or empty")
    parser.add_argument("--format", choices=("nerfstudio", "colmap", "ply"), default="nerfstudio", help="what to write")
    about = "a video's camera path; a walk has its own"
    parser.add_argument("--action_path", metavar="PATH", type=parse_path, help=about)
    parser.add_argument("--every", type=count, default=4, metavar="N", help="export the sharpest of each N frames")
    parser.add_argument("--no_points", action="store_true", help="leave the points out: seconds in place of a minute")


def _export(arguments: argparse.Namespace) -> None:
    from ...export import check_points, export_scene
    from ...live.folder.settings import SETTINGS_FILE
    from ..files.pictures import colour_frames, frame_rate, naming_video

    video, dest = Path(arguments.video), Path(arguments.dest)
    if not video.exists():
        raise InputError(f"{video}: no such file; expected the folder of a walk, a video or a folder of PNG files")
    walks = (video / SETTINGS_FILE).is_file()
    if walks and arguments.action_path is not None:
        raise InputError(f"`action_path`: the walk in {video} has a camera path of its own; leave this out")
    if arguments.format == "ply":
        check_points(not arguments.no_points)
    if walks:
        video, c2w, lens = _walk(video)
    elif arguments.action_path is None:
        raise InputError(f"{video}: a video without its camera path; give `action_path`, or name the folder of a walk")
    else:
        c2w, lens = _camera(Path(arguments.action_path))
    options = {"every": arguments.every, "shorter": walks}
    with _lock_empty(dest):
        with naming_video(video):
            made = export_scene(colour_frames(video), c2w, lens, dest, arguments.format, **options)
        if made.read < len(c2w):
            print(f"{video} ends after {made.read} of the walk's {len(c2w)} frames")
        print(
            f"{len(made.frames)} of {made.read} frames in {dest}, {made.blurred} left out as blurred; "
            f"the camera's way is {made.length:.3g} long, in the units of the path"
        )
        if not arguments.no_points:
            _points(made, frame_rate(video))


@contextmanager
def _lock_empty(dest: Path) -> Iterator[None]:
    with lock_output(dest.absolute()):
        if os.path.lexists(dest) and (not os.path.isdir(dest) or os.listdir(dest)):
            raise InputError(f"{dest} exists and is not an empty folder; name a new or an empty folder")
        yield


def _points(made: "Exported", fps: float) -> None:
    """Add triangulated points to the exported scene and print a report. If this fails, print the reason. The format
    "ply" has only points, so for this format raise the error instead."""
    from ...export import add_points

    try:
        print("\n".join(add_points(made, fps).report()))
    except (DependencyError, InputError) as reason:
        if made.format == "ply":
            raise
        print(f"no points: {reason}")


def _camera(path: Path) -> tuple[Any, Any]:
    """Return the poses [n, 4, 4] and intrinsics [n, 4] of a camera file, and print the reader's notes."""
    from ...camera.formats.files import read_camera

    try:
        camera, notes = read_camera(path)
    except CameraError as error:
        if not any(f"`{name}`" in str(error) for name in ("format", "convention", "fov_deg", "image_size")):
            raise
        raise CameraError(
            f"{path}: not a camera path that is read without further options; `lingbot-world camera convert` takes "
            "them, and writes a folder that can be named here"
        ) from error
    for note in notes:
        print(f"{path}: {note}")
    return camera.c2w, camera.intrinsics


def _walk(folder: Path) -> tuple[Path, Any, Any]:
    """Load the saved walk in `folder`. Return the video's path, its frames' camera poses, [n, 4, 4], and their
    intrinsics, [n, 4]. Raises InputError if the walk has no video."""
    from ...camera.pose_folder import load_poses
    from ...live.folder.settings import CAMERA, read_settings
    from ..live.beginning import update_state

    video = folder / "walk.mp4"
    if not video.is_file():
        raise InputError(f"{folder}: a walk without walk.mp4; walk again, or `lingbot-world live --replay {folder}`")
    update_state(folder)  # also writes the camera path of a killed walk
    c2w, lens = load_poses(folder / CAMERA)
    first = int(read_settings(folder)["continued"])  # the last pose of the video before
    return video, c2w[first:], lens[first:]
