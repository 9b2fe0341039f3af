"""The command `lingbot-world camera` with the actions show, convert, make, measure and from-video for camera paths."""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from ... import measure
from ...camera.advice import hints, warnings
from ...camera.easing import EASINGS
from ...camera.formats import CONVENTIONS, FORMATS, check_camera_output, read_camera, write_camera
from ...camera.moves import PRESETS, path_from_keys, preset_path
from ...camera.moves.presets import DEFAULT_RADIUS
from ...camera.origin_report import convention_warnings, report_origin, summarize_convention
from ...camera.path import DEFAULT_FOV_DEG, CameraPath
from ...camera.preview import render_preview
from ...errors import CameraError, describe_os_error
from ...options import FRAMES
from ...outputs import lock_output
from ..files.drawing import check_drawing, save_drawing
from ..files.existing import refuse_existing
from ..files.pictures import frame_notes, grey_frames, naming_video, read_image
from ..files.target import check_folder
from ..options import POSE_FILES, parse_size
from .flags import add_drawing, add_measuring, add_overwrite, add_verbose, parse_path, seed, with_flags

READING = ("convention", "image_size", "fov_deg")
VERBOSE = "also explain how the file was read, the scale and the speed"


def add_camera_actions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for add in (_add_show, _add_convert, _add_make, _add_measure, _add_from_video):
        add(actions)


def _add_show(actions: Any) -> None:
    parser = actions.add_parser("show", help="check a path: print what is unusual in it, and draw it")
    parser.set_defaults(run=_show)
    _add_input(parser)
    add_verbose(parser, VERBOSE)
    parser.add_argument("--frames", type=int, help="frames of the video; left out: all of the path")
    parser.add_argument("--image", type=parse_path, help="first frame, drawn where the camera starts")
    parser.add_argument("--size", type=parse_size, default=(800, 500), help="WIDTHxHEIGHT of the drawing")
    about = "PNG file of the drawing; left out: camera.png, which is replaced"
    parser.add_argument("--output", type=parse_path, help=about)
    add_overwrite(parser)


def _add_convert(actions: Any) -> None:
    parser = actions.add_parser("convert", help="write a path as poses.npy + intrinsics.npy or transforms.json")
    parser.set_defaults(run=_convert)
    _add_input(parser)
    _add_output(parser)
    add_verbose(parser, VERBOSE)
    parser.add_argument("--frames", type=int, help="resample the whole path to this many frames (rounded down to 4n+1)")


def _add_make(actions: Any) -> None:
    parser = actions.add_parser("make", help="make a path from a preset move or from keys")
    parser.set_defaults(run=lambda arguments: _make(arguments, parser.get_default))
    _add_output(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--preset", choices=PRESETS, metavar="NAME", help=", ".join(PRESETS))
    source.add_argument("--keys", metavar="SCRIPT", help="keys held and for how many frames: w-10,iw-15,none-10")
    parser.add_argument("--fov_deg", type=float, default=DEFAULT_FOV_DEG, help="horizontal field of view in degrees")
    presets = parser.add_argument_group("presets")
    presets.add_argument("--frames", type=int, default=FRAMES, help="length of the path, rounded down to 4n+1")
    presets.add_argument("--amount", type=float, help="world units or degrees; left out: the preset's own")
    presets.add_argument("--easing", choices=EASINGS, default="linear", metavar="NAME", help=", ".join(EASINGS))
    about = "distance of the point that orbits circle"
    presets.add_argument("--radius", type=float, default=DEFAULT_RADIUS, help=about)
    presets.add_argument("--shake", type=float, default=0.0, help="degrees of handheld shake")
    presets.add_argument("--seed", type=seed, default=0, help="of the shake")


MEASURE_HELP = """Measures how well a video follows its camera path, from its frames alone.

Points are tracked between keyframes, four frames apart. If a rotation explains their motion, the camera rotates;
otherwise pycolmap's global mapper estimates its path. RotErr and TransErr are CameraCtrl's (arXiv 2404.02101), computed
as in CamI2V's published code (evaluation/glomap_evaluation.py): angles and distances between estimated and given
camera-to-world poses, both relative to the first frame, summed over frames. That code divides both paths by their
longest translation; here the scale is the best fit.

A pair of keyframes eight frames apart follows the path if its rotation is off by less than 1 degree, or less than a
third of the given rotation, and its direction by less than 30 degrees. The video follows the path if three quarters of
the pairs do. A pair cannot be told if the given motion fits its points about as well as the estimated one; the video
cannot be told if such pairs would decide. The path's lens is used: in a video with another lens the rotations seem
larger or smaller.

Needs OpenCV and pycolmap: pip install -e ".[cli,measure]"."""
FROM_VIDEO_HELP = """Estimates the camera path of a video and writes it as poses.npy and intrinsics.npy.

The method is that of `camera measure`. A video has no scale, so the longest step between latent frames becomes 1; the
model scales every path in this way. The first frame's camera is the origin, with OpenCV's axes. The lens is estimated
if the view rotates by 10 degrees or more, unless --fov_deg names it; otherwise 79 degrees are assumed.

Needs OpenCV and pycolmap: pip install -e ".[cli,measure]"."""


def _add_measure(actions: Any) -> None:
    parser = add_measuring(actions, "measure", "measure how well a video follows its path", MEASURE_HELP, _measure)
    _add_input(parser)
    parser.add_argument("--every", type=int, help="frames between keyframes; left out: chosen by the path's turns")
    add_drawing(parser, "also draw the given path and the estimated one")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON instead")


def _add_from_video(actions: Any) -> None:
    parser = add_measuring(actions, "from-video", "estimate a video's camera path", FROM_VIDEO_HELP, _from_video)
    _add_output(parser)
    about = "horizontal field of view in degrees; left out: estimated, or 79"
    parser.add_argument("--fov_deg", type=float, help=about)


def _add_output(parser: argparse.ArgumentParser) -> None:
    about = "a folder for poses.npy and intrinsics.npy, or a transforms.json"
    parser.add_argument("output", type=parse_path, help=about)
    add_overwrite(parser)


def _add_input(parser: argparse.ArgumentParser) -> None:
    formats = "; ".join(f"{name}: {format.description}" for name, format in FORMATS.items())
    conventions = "; ".join(f"{name}: {convention.description}" for name, convention in CONVENTIONS.items())
    parser.add_argument("input", type=parse_path, help="file or folder of the path")
    parser.add_argument("--format", choices=FORMATS, metavar="NAME", help=f"left out: recognized; {formats}")
    about = f"meaning of the matrices; left out: the format's; {conventions}"
    parser.add_argument("--convention", choices=CONVENTIONS, metavar="NAME", help=about)
    parser.add_argument("--image_size", type=parse_size, help="WIDTHxHEIGHT of the video a ViPE file was made from")
    parser.add_argument("--fov_deg", type=float, help="horizontal field of view in degrees, instead of the file's")


def _show(arguments: argparse.Namespace) -> None:
    output = arguments.output or "camera.png"
    check_drawing(output, arguments.overwrite or arguments.output is None, arguments.image)
    path, notes = _path(arguments)
    frames = len(path) if arguments.frames is None else arguments.frames
    image = None if arguments.image is None else Image.fromarray(read_image(arguments.image))
    drawing = render_preview(path, image, frames, arguments.size)
    save_drawing(drawing, output)
    _report(path, frames, notes, arguments.verbose)
    print(output)


def _convert(arguments: argparse.Namespace) -> None:
    with _locked_output(arguments):
        path, notes = _path(arguments)
        path = path if arguments.frames is None else path.for_video(arguments.frames)
        _write(path, arguments)
    _report(path, len(path), notes, arguments.verbose)


def _make(arguments: argparse.Namespace, default: Callable[[str], Any]) -> None:
    with _locked_output(arguments):
        path = _make_path(arguments, default)
        _write(path, arguments)
    _report(path, len(path))


def _make_path(arguments: argparse.Namespace, default: Callable[[str], Any]) -> CameraPath:
    options = {name: getattr(arguments, name) for name in ("frames", "amount", "easing", "radius", "shake", "seed")}
    if arguments.keys is None:
        if options["seed"] != default("seed") and not arguments.shake:
            raise CameraError("`seed` is the seed of a shake: give `shake` too, or leave it out")
        return preset_path(arguments.preset, fov_deg=arguments.fov_deg, **options)
    for name, value in options.items():
        if value != default(name):
            raise CameraError(f"`{name}` is for presets: keys say how far and for how long; leave it out")
    return path_from_keys(arguments.keys, fov_deg=arguments.fov_deg)


def _measure(arguments: argparse.Namespace) -> None:
    if arguments.drawing is not None:
        check_drawing(arguments.drawing, arguments.overwrite)
    path, file_notes = _path(arguments)
    notes = [f"note: {note}" for note in (*file_notes, *frame_notes(arguments.video))]
    with naming_video(arguments.video):
        measured = measure.measure_camera(grey_frames(arguments.video), path, arguments.every)
    lines = [*notes, measure.error_summary(measured), "", *measure.table(measured), "", *measure.summary(measured)]
    print(json.dumps({**measure.as_values(measured), "notes": notes}, indent=1) if arguments.json else "\n".join(lines))
    if arguments.drawing is not None:
        save_drawing(measure.render_measurement(measured), arguments.drawing)
        if not arguments.json:
            print(arguments.drawing)


def _from_video(arguments: argparse.Namespace) -> None:
    with _locked_output(arguments):
        with naming_video(arguments.video):
            camera = measure.find_camera(grey_frames(arguments.video), arguments.fov_deg)
        path = measure.video_path(camera)
        for note in frame_notes(arguments.video):
            print(f"note: {note}")
        print(*measure.camera_messages(camera, arguments.fov_deg is not None), sep="\n")
        _write(path, arguments)
    _report(path, len(path))


def _report(path: CameraPath, frames: int, notes: Sequence[str] = (), verbose: bool = False) -> None:
    found = [warning for warning in (*convention_warnings(path), *warnings(path, frames)) if warning not in notes]
    read = summarize_convention(path)
    verdict = "Look at this path before a run." if notes or found else "Nothing in this path is unusual for the model."
    lines = [f"{verdict} {read}".rstrip(), *(f"note: {note}" for note in notes), *(f"! {each}" for each in found)]
    if verbose:
        lines += [*report_origin(path, frames), *hints(path, frames)]
    elif read:
        lines.append("-v explains how the file was read.")
    print(with_flags("\n".join(lines), READING))


def _path(arguments: argparse.Namespace) -> tuple[CameraPath, list[str]]:
    options = {name: getattr(arguments, name) for name in READING}
    path, notes = read_camera(arguments.input, arguments.format, **options)
    if arguments.image_size is not None and path.origin is not None and not FORMATS[path.origin.format].sized:
        raise CameraError(f"`image_size` is for ViPE's files, {arguments.input} is {path.origin.format}: leave it out")
    return path, notes


@contextmanager
def _locked_output(arguments: argparse.Namespace) -> Iterator[None]:
    """Lock the output files within this context. Raises a LingBotError for an unusable output."""
    target = Path(arguments.output)
    check_camera_output(target)
    one_file = target.suffix.lower() == ".json"
    check_folder("output", target, target.parent if one_file else target)
    with lock_output(target if one_file else target / POSE_FILES[0]):
        for file in (target, *((target / name) for name in POSE_FILES)):
            if not file.is_dir():
                refuse_existing(file, arguments.overwrite)
        yield


def _write(path: CameraPath, arguments: argparse.Namespace) -> None:
    try:
        write_camera(path, arguments.output)
    except OSError as error:
        raise CameraError(f"{arguments.output}: cannot be written ({describe_os_error(error)})") from error
    print(arguments.output)
