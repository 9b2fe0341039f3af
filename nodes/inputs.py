"""The inputs and sockets that several nodes share, such as the camera path and the saved state of a video."""

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
"""The input values that select the model's trained setting: the text AS_TRAINED for chunk size and denoising steps, the
number UNSET for window and sink."""


def int_input(name: str, bounds: tuple[int, int, int], tooltip: str, **more: Any) -> io.Int.Input:
    """Return an integer input with `bounds` (minimum, default, maximum) and `more` options."""
    least, default, most = bounds
    return io.Int.Input(name, **_texts(name, tooltip) | more, default=default, min=least, max=most)


def float_input(name: str, bounds: tuple[float, float, float], tooltip: str, **more: Any) -> io.Float.Input:
    """Return a float input with `bounds` (minimum, default, maximum) and `more` options."""
    least, default, most = bounds
    return io.Float.Input(name, **_texts(name, tooltip) | more, default=default, min=least, max=most)


def choice_input(name: str, options: Sequence[str], tooltip: str, **more: Any) -> io.Combo.Input:
    """Return a combo input. The default is the first of `options`, unless `more` contains `default`."""
    options = options if isinstance(options, list) else list(options)  # keeps a NamesToCheck as it is
    given = {"default": next(iter(options), None)} | _texts(name, tooltip) | more
    return io.Combo.Input(name, options=options, **given)


def _texts(name: str, tooltip: str) -> dict[str, Any]:
    return {"tooltip": tooltip} | ({"display_name": name.replace("_", " ")} if "_" in name else {})


def camera_outputs(*more: io.Output) -> list[io.Output]:
    """Return the outputs of a node that makes a camera path: the path, its number of frames, and `more`."""
    return [
        Camera.Output("camera", display_name="camera", tooltip="The camera path, for Apply Camera."),
        io.Int.Output(
            "frame_count", display_name="frames", tooltip="Frames of the path: connect to WanImageToVideo's length."
        ),
        *more,
    ]


def frames_input(tooltip: str, default: int = FRAMES, minimum: int = 5) -> io.Int.Input:
    """Return an input for a number of frames. If `minimum` has the form 4n+1, the canvas offers only such numbers."""
    return int_input("frames", (minimum, default, MOST_FRAMES), tooltip, step=4 if minimum % 4 == 1 else 1)


def seed_input(tooltip: str, high: int = 2**64 - 1, **more: Any) -> io.Int.Input:
    """Return an input for a seed from 0 to `high`, which ComfyUI does not change between runs."""
    return int_input("seed", (0, 0, high), tooltip, **{"control_after_generate": io.ControlAfterGenerate.fixed, **more})


def drawing_size_inputs() -> list[io.Int.Input]:
    """Return two inputs: the width and the height of a drawing, in pixels."""
    sides = ("width", 800, WIDTHS), ("height", 500, HEIGHTS)
    return [
        int_input(name, (minimum, pixels, maximum), f"{name.title()} of the drawing.", step=2, advanced=True)
        for name, pixels, (minimum, maximum) in sides
    ]


def fov_input(default: float = DEFAULT_FOV_DEG, minimum: float = 1.0, more: str = "") -> io.Float.Input:
    """Return a node input for the horizontal field of view in degrees.

    minimum: the smallest value that the input accepts.
    more: a text appended to the tooltip.
    """
    tooltip = f"Horizontal field of view in degrees. 79 is the lens of the official examples.{more}"
    return float_input(
        "fov_deg", (minimum, default, 170.0), tooltip, display_name="field of view", step=0.5, advanced=True
    )


def easing_input() -> io.Combo.Input:
    tooltip = "How the move speeds up and slows down. in: starts slowly; out: ends slowly; in_out: both."
    return choice_input("easing", list(EASINGS), tooltip)


def latent_frames_input(name: str, tooltip: str) -> io.Int.Input:
    """Return an input for an attention window or sink in latent frames, by default UNSET."""
    return int_input(name, (UNSET, UNSET, 10_000), tooltip, advanced=True)


def chunk_input(tooltip: str, **more: bool) -> io.Combo.Input:
    """Return a combo input for the number of latent frames in a chunk. The default is AS_TRAINED. `more`: other
    arguments of ComfyUI's Combo.Input."""
    return choice_input("chunk", [AS_TRAINED, *map(str, CHUNKS)], tooltip, **more)


def kv_cache_input(tooltip: str) -> io.Combo.Input:
    """Return an input for the place (GPU or host memory) and the precision of the cached keys and values."""
    return choice_input("kv_cache", KEY_VALUE_MODES, tooltip, advanced=True)


def upload_to(kind: str) -> dict[str, str]:
    """Return a combo input's `extra_dict` for uploads. `kind` is a key of `host.files.uploads.LISTS`."""
    return {"lingbot_upload": kind}
