"""What the camera nodes share: the LINGBOT_CAMERA socket and the inputs that most of them have."""

from comfy_api.latest import io

from ..camera.easing import EASINGS
from ..camera.path import DEFAULT_FOV_DEG
from ..host.drawing import HEIGHTS, MOST_FRAMES, WIDTHS
from ..options import FRAMES

CATEGORY = "LingBot-World/camera"
Camera = io.Custom("LINGBOT_CAMERA")


def camera_outputs(*more: io.Output) -> list[io.Output]:
    """The path and its number of frames."""
    return [
        Camera.Output("camera", display_name="camera", tooltip="The camera path, for Apply Camera."),
        io.Int.Output(
            "frame_count", display_name="frames", tooltip="Frames of the path: wire it to WanImageToVideo's length."
        ),
        *more,
    ]


def frames_input(tooltip: str, default: int = FRAMES, least: int = 5) -> io.Int.Input:
    """A number of frames, in steps of 4 where `least` is 4n+1. The canvas moves a value to its field's grid, and on one
    of 4 that begins with 0 no 4n+1 lies."""
    step = 4 if least % 4 == 1 else 1
    return io.Int.Input("frames", default=default, min=least, max=MOST_FRAMES, step=step, tooltip=tooltip)


def seed_input(tooltip: str, most: int = 2**64 - 1, advanced: bool | None = None) -> io.Int.Input:
    """A seed that stays as it is from run to run."""
    return io.Int.Input(
        "seed",
        default=0,
        min=0,
        max=most,
        control_after_generate=io.ControlAfterGenerate.fixed,
        advanced=advanced,
        tooltip=tooltip,
    )


def drawing_size() -> list[io.Int.Input]:
    """Width and height of a drawing, in pixels."""
    sides = (("width", 800, WIDTHS), ("height", 500, HEIGHTS))
    return [
        io.Int.Input(
            name, default=pixels, min=least, max=most, step=2, advanced=True, tooltip=f"{name.title()} of the drawing."
        )
        for name, pixels, (least, most) in sides
    ]


def fov_input(default: float = DEFAULT_FOV_DEG, least: float = 1.0, more: str = "") -> io.Float.Input:
    """A field of view across."""
    return io.Float.Input(
        "fov_deg",
        display_name="field of view",
        default=default,
        min=least,
        max=170.0,
        step=0.5,
        advanced=True,
        tooltip=f"Degrees the lens sees across. 79 is the lens of the official examples.{more}",
    )


def easing_input() -> io.Combo.Input:
    """How the move speeds up and slows down."""
    return io.Combo.Input(
        "easing",
        options=list(EASINGS),
        default="linear",
        tooltip="How the move speeds up and slows down. in: starts slowly; out: ends slowly; in_out: both.",
    )


def upload_to(kind: str) -> dict[str, str]:
    """Gives a list of files an upload button and lets files be dropped on its node; `kind` is one of host.uploads."""
    return {"lingbot_upload": kind}
