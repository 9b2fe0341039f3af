"""The node that imports camera paths from files of other programs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ...camera import frame_count
from ...camera.formats import CONVENTIONS, FORMATS, read_camera
from ...camera.path import CameraPath
from ...camera.poses import FEWEST_POSES
from ...host.files import camera as host
from ...host.prompt.queue import known_inputs
from ..inputs import CATEGORY, camera_outputs, choice_input, fov_input, frames_input, int_input, upload_to
from ..validation import fingerprint_of, validate

BY_FORMAT = "set by the format"
RESAMPLE, CUT = "resample", "cut"


def _recorded_side(side: str) -> io.Int.Input:
    return int_input(
        f"image_{side}",
        (0, 0, 100_000),
        f"{side.title()} of the recorded video in pixels; needed for ViPE without a field of view.",
        advanced=True,
    )


def _files_of(file: str) -> list[Path]:
    """Return the files that may be read together with a camera file: all files of its folder with its suffix, and
    ViPE's intrinsics file if it exists."""
    path = host.resolve(file)
    near = [other for other in path.parent.iterdir() if other.is_file() and other.suffix == path.suffix]
    lens = path.parent.parent / "intrinsics" / path.name
    return [*near, lens] if lens.is_file() else near


class LingBotWorldCameraImport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldCameraImport",
            display_name="Import LingBot-World Camera",
            category=CATEGORY,
            description="Reads a camera path of another program from ComfyUI's input folder. You choose the format; "
            "nothing is guessed.",
            search_aliases=["lingbot", "colmap", "vipe", "realestate10k", "cameractrl", "nerfstudio", "blender"],
            inputs=[
                choice_input(
                    "file",
                    host.camera_files(),
                    "A file in ComfyUI's input folder. Files, a folder or a zip can be dropped on the node. For COLMAP "
                    "choose images.txt, with cameras.txt next to it; poses.npy needs intrinsics.npy next to it.",
                    extra_dict=upload_to("cameras"),
                    default=None,
                ),
                choice_input(
                    "format",
                    FORMATS,
                    "; ".join(f"{name}: {format.description}" for name, format in FORMATS.items()) + ".",
                    default="transforms",
                ),
                choice_input(
                    "convention",
                    [BY_FORMAT, *CONVENTIONS],
                    f"The convention of the matrices. '{BY_FORMAT}' suits all formats except 'matrices', unless the "
                    "notes or the drawing show that a file uses another one. "
                    + "; ".join(f"{name}: {convention.description}" for name, convention in CONVENTIONS.items())
                    + ".",
                ),
                frames_input("Frames of the video. Rounded down to 4n+1."),
                choice_input(
                    "fit",
                    [CUT, RESAMPLE],
                    "cut: the first frames of the file. resample: the whole path in that many frames.",
                ),
                int_input("start", (0, 0, 100_000), "The first pose to use, counted from 0.", advanced=True),
                *map(_recorded_side, ("width", "height")),
                fov_input(0.0, 0.0, " 0: the file's own."),
            ],
            outputs=camera_outputs(
                io.String.Output(
                    "notes", tooltip="What was read, the convention and why, the scale, and what the model cannot use."
                )
            ),
        )

    @classmethod
    def validate_inputs(cls, file):
        return validate(_check, file, known_inputs())

    @classmethod
    def fingerprint_inputs(cls, file, **options):
        return fingerprint_of(_files_of, file) + repr(sorted(options.items()))

    @classmethod
    def execute(cls, file, format, convention, frames, fit, start, image_width, image_height, fov_deg) -> io.NodeOutput:
        path, notes = _read(file, format, convention, fit, start, image_width, image_height, fov_deg)
        path = path.for_video(frames) if fit == RESAMPLE else path[: frame_count(frames, len(path))]
        return io.NodeOutput(path, len(path), "\n".join([*host.show_origin(path), *notes]))


def _read(file, format, convention, fit, start, image_width, image_height, fov_deg) -> tuple[CameraPath, list[str]]:
    source = host.resolve(file)
    path, notes = read_camera(
        source,
        format,
        convention=None if convention == BY_FORMAT else convention,
        image_size=(image_width, image_height) if image_width and image_height else None,
        fov_deg=fov_deg or None,
    )
    host.check_length(source, len(path), start, 1 if fit == RESAMPLE else FEWEST_POSES)
    return path[start:], notes


def _check(file: str, inputs: Mapping[str, Any]) -> None:
    """Raise LingBotError if the camera file is missing, or if it cannot be read with the options in `inputs`. Skip the
    reading if an option is linked to another node, or is not among its choices."""
    host.resolve(file)
    names = "format", "convention", "fit", "start", "image_width", "image_height", "fov_deg"
    values = {name: inputs.get(name) for name in names}
    in_lists = values["format"] in FORMATS and values["convention"] in (BY_FORMAT, *CONVENTIONS)
    if in_lists and None not in values.values():
        _read(file, **values)
