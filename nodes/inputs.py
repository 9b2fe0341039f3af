"""What nodes share: the LINGBOT_CAMERA and LINGBOT_STATE sockets, kinds of inputs, and inputs that several have."""

from collections.abc import Sequence
from typing import Any

from comfy_api.latest import io

from ..camera.easing import EASINGS
from ..camera.path import DEFAULT_FOV_DEG
from ..host.files.drawing import HEIGHTS, MOST_FRAMES, WIDTHS
from ..options import CHUNKS, FRAMES, KEY_VALUE_MODES

CATEGORY = "LingBot-World/camera"
Camera, State = io.Custom("LINGBOT_CAMERA"), io.Custom("LINGBOT_STATE")
AS_TRAINED, UNSET = "as the model was trained", -1
"""A chunk, and latent frames of a window or a sink, that are the model's own."""


def whole(name: str, bounds: tuple[int, int, int], tooltip: str, **more: Any) -> io.Int.Input:
    """A whole number: the least that is taken, the default and the most."""
    least, default, most = bounds
    return io.Int.Input(name, **_shown(name, tooltip) | more, default=default, min=least, max=most)


def number(name: str, bounds: tuple[float, float, float], tooltip: str, **more: Any) -> io.Float.Input:
    """A number: the least that is taken, the default and the most."""
    least, default, most = bounds
    return io.Float.Input(name, **_shown(name, tooltip) | more, default=default, min=least, max=most)


def choice(name: str, options: Sequence[str], tooltip: str, **more: Any) -> io.Combo.Input:
    """One of some words. The default is the first, unless another is named."""
    options = options if isinstance(options, list) else list(options)  # a NamesToCheck stays one
    given = {"default": next(iter(options), None)} | _shown(name, tooltip) | more
    return io.Combo.Input(name, options=options, **given)


def _shown(name: str, tooltip: str) -> dict[str, Any]:
    """The canvas shows an input's name without underscores."""
    return {"tooltip": tooltip} | ({"display_name": name.replace("_", " ")} if "_" in name else {})


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
    return whole("frames", (least, default, MOST_FRAMES), tooltip, step=4 if least % 4 == 1 else 1)


def seed_input(tooltip: str, most: int = 2**64 - 1, **more: Any) -> io.Int.Input:
    """A seed that stays as it is from run to run."""
    return whole("seed", (0, 0, most), tooltip, **{"control_after_generate": io.ControlAfterGenerate.fixed, **more})


def drawing_size() -> list[io.Int.Input]:
    """Width and height of a drawing, in pixels."""
    sides = ("width", 800, WIDTHS), ("height", 500, HEIGHTS)
    return [
        whole(name, (least, pixels, most), f"{name.title()} of the drawing.", step=2, advanced=True)
        for name, pixels, (least, most) in sides
    ]


def fov_input(default: float = DEFAULT_FOV_DEG, least: float = 1.0, more: str = "") -> io.Float.Input:
    """A field of view across."""
    tooltip = f"Degrees the lens sees across. 79 is the lens of the official examples.{more}"
    return number("fov_deg", (least, default, 170.0), tooltip, display_name="field of view", step=0.5, advanced=True)


def easing_input() -> io.Combo.Input:
    """How the move speeds up and slows down."""
    tooltip = "How the move speeds up and slows down. in: starts slowly; out: ends slowly; in_out: both."
    return choice("easing", list(EASINGS), tooltip)


def latent_frames_input(name: str, tooltip: str) -> io.Int.Input:
    """The latent frames of a window or a sink; UNSET for the model's own."""
    return whole(name, (UNSET, UNSET, 10_000), tooltip, advanced=True)


def chunk_input(tooltip: str, **more: bool) -> io.Combo.Input:
    """The latent frames of a chunk; AS_TRAINED for the model's own."""
    return choice("chunk", [AS_TRAINED, *map(str, CHUNKS)], tooltip, **more)


def kv_cache_input(tooltip: str) -> io.Combo.Input:
    """Where keys and values lie."""
    return choice("kv_cache", KEY_VALUE_MODES, tooltip, advanced=True)


def upload_to(kind: str) -> dict[str, str]:
    """Gives a list of files an upload button and lets files be dropped on its node; `kind` is one of host.uploads."""
    return {"lingbot_upload": kind}
