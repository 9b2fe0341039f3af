"""A chart of a measurement: the path, the measured camera, and the errors of keyframe pairs."""

import numpy as np
from PIL import Image

from ..camera.preview import drawing
from ..camera.preview.drawing import FROM_ABOVE, FROM_THE_SIDE, frustum
from ..camera.preview.sheet import Sheet, camera_depth
from .measurement import DIRECTION_DEG, TURN_DEG, Measurement
from .report import error_summary, summary


def render_measurement(measured: Measurement, size: tuple[int, int] = (800, 500)) -> Image.Image:
    """Return an RGB chart of the path, the measured camera, the errors and the verdict. `size` is width and height.
    Raises InputError for an invalid size."""
    sheet = Sheet(size)
    sheet.header(
        f"{measured.camera.frames} frames, {len(measured.pairs)} pairs of keyframes",
        "white: requested; green to red: measured",
    )
    _draw_paths(sheet, measured)
    for rows, name, least, color in (
        ((0, 0.5), "turn", TURN_DEG, drawing.TURN),
        ((0.5, 1), "direction", DIRECTION_DEG, drawing.STEP),
    ):
        degrees = np.array([getattr(pair, f"{name}_error_deg") for pair in measured.pairs])
        known = degrees[~np.isnan(degrees)]  # a pair that was not judged gets an empty column
        title = f"{name}: up to {known.max():.1f} degrees off" if len(known) else f"{name}: not judged"
        sheet.chart((0.5, 1), rows, title, np.nan_to_num(degrees), max(least, *known, 0.0), color)
    verdict, *more = summary(measured)
    color = drawing.START if measured.follows else drawing.WARNING
    words = [(sentence, drawing.MUTED) for sentence in (*more, error_summary(measured))]
    sheet.footer([(verdict, color), *words], "more in the text output")
    return sheet.to_image()


def _draw_paths(sheet: Sheet, measured: Measurement) -> None:
    frames, asked, found = measured.poses
    if len(frames) < 2:  # nothing was found: draw the path alone
        frames = measured.camera.tracks.frames
        asked = found = measured.path.relative().c2w[frames]
    depth = camera_depth(np.concatenate([asked[:, :3, 3], found[:, :3, 3]]))
    lens = measured.path.intrinsics[0]
    wanted, seen = ([frustum(pose, lens, depth) for pose in poses] for poses in (asked, found))
    apart = (frames[-1] - frames[0]) / max(len(frames) - 1, 1) or 1
    for axes, rows, title in ((FROM_ABOVE, (0, 0.5), "from above"), (FROM_THE_SIDE, (0.5, 1), "from the side")):
        view = sheet.view(sheet.panel((0, 0.5), rows, title), axes, [*wanted, *seen])
        sheet.path(view, found[:, :3, 3], seen, measured.path.fps / apart)
        view.line(asked[:, :3, 3], drawing.INK, round(sheet.unit))
        view.frustum(wanted[-1], drawing.INK, round(sheet.unit))
