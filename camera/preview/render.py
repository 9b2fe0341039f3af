"""The preview image of a camera path: the requested path, the path as the model receives it, and warnings."""

from itertools import accumulate

import numpy as np
from PIL import Image

from ..advice import hints, motion, warnings
from ..origin_report import convention_warnings, summarize_convention
from ..path import CameraPath
from ..plucker import latent_poses, model_poses
from ..poses import LENS_HEIGHT, LENS_WIDTH, frame_count
from . import drawing
from .drawing import AT_AN_ANGLE, FROM_ABOVE, FROM_THE_SIDE, frustum, invert_lightness
from .sheet import Sheet, camera_depth, ground, tick_seconds


def received_poses(path: CameraPath, frames: int) -> np.ndarray:
    """Return the camera-to-world poses of the latent frames as the model sees them, float64 [f, 4, 4]: with
    translations divided by the longest between latent frames. `frames`: the number of video frames."""
    return np.stack(list(accumulate(model_poses(path.c2w, frames)[1:], np.matmul, initial=np.eye(4))))


def render_preview(
    path: CameraPath,
    first_frame: Image.Image | None = None,
    frames: int | None = None,
    size: tuple[int, int] = (800, 500),
    light: bool = False,
) -> Image.Image:
    """Return an RGB image that shows a path and, as text below, its warnings. Raise CameraError for fewer than five
    poses.

    first_frame: an image drawn in front of the first camera.
    frames: the video's length, by default the full path.
    size: width and height, 400x250 to 4096x4096.
    light: whether the drawing is for a light theme.
    """
    frames = len(path) if frames is None else frames
    used = frame_count(frames, len(path))
    sheet = Sheet(size)
    requested = path[:used].relative()
    tick = tick_seconds(used / path.fps)
    sheet.header(
        f"{used} frames, {used / path.fps:.1f} s at {path.fps:g} fps, lens {path.fov_deg:.0f} degrees",
        f"white dots: every {tick} s; the roof of a camera is up",
    )
    if first_frame is not None:
        first_frame = first_frame.convert("RGB")
        first_frame = invert_lightness(first_frame) if light else first_frame  # the inversion of the sheet restores it
    _draw_requested(sheet, requested, first_frame)
    _draw_received(sheet, requested, frames)
    read = [summarize_convention(path)] if path.origin is not None else []
    warned = [("! " + message, drawing.WARNING) for message in (*convention_warnings(path), *warnings(path, frames))]
    warned = warned or [("Nothing to warn about: the model can follow this path.", drawing.START)]
    hinted = [(message, drawing.MUTED) for message in (*read, *hints(path, frames))]
    sheet.footer([*warned, *hinted], "more in the warnings output")
    return invert_lightness(sheet.to_image()) if light else sheet.to_image()


def _draw_requested(sheet: Sheet, path: CameraPath, first_frame: Image.Image | None) -> None:
    depth = camera_depth(path.positions)
    cameras = [frustum(pose, lens, depth) for pose, lens in zip(path.c2w, path.intrinsics, strict=True)]
    card = frustum(path.c2w[0], path.intrinsics[0], 3 * depth)
    for axes, rows, title in ((FROM_ABOVE, (0, 0.5), "asked: from above"), (FROM_THE_SIDE, (0.5, 1), "from the side")):
        view = sheet.view(sheet.panel((0, 0.27), rows, title), axes, cameras)
        sheet.path(view, path.positions, cameras, path.fps)
    grid = ground(np.concatenate([*cameras, card]))
    box = sheet.panel((0.27, 0.69), (0, 1), "asked: at an angle")
    view = sheet.view(box, AT_AN_ANGLE, [*cameras, card, *grid])
    for line in grid:
        view.line(line, drawing.GRID)
    if first_frame is not None:
        view.draw_image(first_frame.resize((LENS_WIDTH // 2, LENS_HEIGHT // 2)), card)
    view.line(card[[1, 2, 3, 4, 1]], drawing.MUTED, round(sheet.unit))
    sheet.path(view, path.positions, cameras, path.fps)


def _draw_received(sheet: Sheet, path: CameraPath, frames: int) -> None:
    poses = received_poses(path, frames)
    lens = path.intrinsics[0]
    depth = camera_depth(poses[:, :3, 3])
    cameras = [frustum(pose, lens, depth) for pose in poses]
    title = f"received: {len(latent_poses(path.c2w, frames))} latent frames"
    view = sheet.view(sheet.panel((0.69, 1), (0, 0.5), title), FROM_ABOVE, cameras)
    sheet.path(view, poses[:, :3, 3], cameras, path.fps / 4)
    steps, turns_deg = motion(path, frames)
    most = turns_deg.max()
    sheet.chart((0.69, 1), (0.5, 0.75), "step (longest is 1)", steps, 1.0, drawing.STEP)
    sheet.chart((0.69, 1), (0.75, 1), f"turn (up to {most:.1f} degrees)", turns_deg, max(most, 1.0), drawing.TURN)
