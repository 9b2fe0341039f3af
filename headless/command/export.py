"""`lingbot-world export VIDEO|WALK DEST`: frames, poses and lens for nerfstudio and COLMAP."""

import argparse
from pathlib import Path
from typing import Any

from ...errors import InputError
from .flags import Help, count, some_path

ABOUT = "export a walk, or a video and its camera path, for nerfstudio or COLMAP"


def add_export_command(commands: Any) -> None:
    """Add the `export` command, which sets `run(arguments)`."""
    parser = commands.add_parser("export", help=ABOUT, formatter_class=Help)
    parser.set_defaults(run=_export)
    parser.add_argument("video", metavar="VIDEO|WALK", type=some_path, help="a walk's folder, a video, or its frames")
    parser.add_argument("dest", metavar="DEST", type=some_path, help="a folder that is new or empty")
    parser.add_argument("--format", choices=("nerfstudio", "colmap"), default="nerfstudio", help="what to write")
    parser.add_argument(
        "--action_path", metavar="PATH", type=some_path, help="a video's camera path; a walk has its own"
    )
    parser.add_argument("--every", type=count, default=4, metavar="N", help="export the sharpest of each N frames")


def _export(arguments: argparse.Namespace) -> None:
    from ...camera.formats.files import read_camera
    from ...export import export_scene
    from ...live.folder.reading import HEAD
    from ..files.pictures import colour_frames, naming_video

    video, dest = Path(arguments.video), Path(arguments.dest)
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise InputError(f"{dest}: there is something already; name a new or an empty folder")
    walks = (video / HEAD).is_file()
    if walks and arguments.action_path is not None:
        raise InputError(f"`action_path`: the walk in {video} has a camera path of its own; leave this out")
    if walks:
        video, c2w, lens = _walk(video)
    elif arguments.action_path is None:
        raise InputError(f"{video}: a video without its camera path; give `action_path`, or name the folder of a walk")
    else:
        path, _ = read_camera(arguments.action_path)
        c2w, lens = path.c2w, path.intrinsics
    options = {"every": arguments.every, "shorter": walks}
    with naming_video(video):
        made = export_scene(colour_frames(video), c2w, lens, dest, arguments.format, **options)
    print(
        f"{len(made.frames)} of {made.read} frames in {dest}, {made.left_out} left out as blurred; "
        f"the camera's way is {made.length:.3g} long, in the units of the path"
    )


def _walk(folder: Path) -> tuple[Path, Any, Any]:
    """Return a walk's video, and pose and lens of each frame."""
    from ...camera.pose_folder import load_poses
    from ...live.folder.reading import CAMERA, read_head, whole_state

    video = folder / "walk.mp4"
    if not video.is_file():
        raise InputError(f"{folder}: a walk without walk.mp4; walk again, or `lingbot-world live --replay {folder}`")
    whole_state(folder)
    c2w, lens = load_poses(folder / CAMERA)
    first = int(read_head(folder)["continued"])  # the last pose of the video before
    return video, c2w[first:], lens[first:]
