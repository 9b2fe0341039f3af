"""A picture of a camera path: what was asked, what the model will receive of it, and what to know beforehand."""

import textwrap

import numpy as np
from PIL import Image, ImageDraw

from ...errors import CameraError
from ..path import CameraPath
from ..plucker import latent_poses, model_poses
from ..poses import LENS_HEIGHT, LENS_WIDTH, frame_count
from . import drawing
from .advice import hints, motion, warnings
from .drawing import FROM_ABOVE, FROM_THE_SIDE, Box, Color, View, at_an_angle, color_at, font, frustum

FINER = 2  # drawn this many times larger, then reduced: smooth lines without a drawing library
FRUSTA = 7
MOST_TICKS = 12


def received_poses(path: CameraPath, frames: int) -> np.ndarray:
    """The path as the model receives it, float64 [f, 4, 4]: its steps one after the other, the longest of length 1."""
    poses = model_poses(path.c2w, frames)
    for index in range(1, len(poses)):
        poses[index] = poses[index - 1] @ poses[index]
    return poses


def render_preview(
    path: CameraPath,
    first_frame: Image.Image | None = None,
    frames: int | None = None,
    size: tuple[int, int] = (800, 500),
) -> Image.Image:
    """The path from above, from the side and at an angle, with what the model receives and the warnings in words.

    `frames` of the video, all of the path when None; `size` in pixels, 400x250 at least. Returns an RGB image.
    Raises CameraError for fewer than five poses or a size too small to read.
    """
    if size[0] < 400 or size[1] < 250:
        raise CameraError(f"camera preview of {size[0]}x{size[1]}: expected at least 400x250")
    frames = len(path) if frames is None else frames
    used = frame_count(frames, len(path))
    sheet = _Sheet((size[0] * FINER, size[1] * FINER))
    asked = path[:used].relative()
    tick = _tick_seconds(used / path.fps)
    sheet.header(
        f"{used} frames, {used / path.fps:.1f} s at {path.fps:g} fps, lens {path.fov_deg:.0f} degrees",
        f"white dots: every {tick} s; the roof of a camera is up",
    )
    _draw_asked(sheet, asked, first_frame)
    _draw_received(sheet, asked, frames)
    sheet.words(warnings(path, frames), hints(path, frames))
    return sheet.canvas.resize(size, Image.Resampling.LANCZOS)


class _Sheet:
    """The canvas and its layout: three columns of panels under a header, words below."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.canvas = Image.new("RGB", size, drawing.BACKGROUND)
        self.unit = min(size[0] / 650, size[1] / 406)  # one pixel of a 650x406 sheet
        self.text = 13 * self.unit

    def panel(self, columns: tuple[float, float], rows: tuple[float, float], title: str) -> Box:
        """Draws a titled panel over these shares of the space between header and words; returns the box inside."""
        width, height, unit = *self.canvas.size, self.unit
        top, bottom = 28 * unit, height - 84 * unit
        left, right = (6 * unit + share * (width - 6 * unit) for share in columns)
        upper, lower = (top + share * (bottom - top) for share in rows)
        box = (left, upper, right - 6 * unit, lower - 6 * unit)
        draw = ImageDraw.Draw(self.canvas)
        draw.rounded_rectangle(box, 5 * unit, fill=drawing.PANEL)
        draw.text((box[0] + 7 * unit, box[1] + 4 * unit), title, font=font(self.text), fill=drawing.QUIET)
        return box[0], box[1] + 20 * unit, box[2], box[3]

    def header(self, text: str, legend: str) -> None:
        """What the path is on the left, how to read the drawing on the right."""
        draw, right = ImageDraw.Draw(self.canvas), self.canvas.size[0] - 10 * self.unit
        draw.text((10 * self.unit, 6 * self.unit), text, font=font(14 * self.unit), fill=drawing.INK)
        draw.text((right, 7 * self.unit), legend, font=font(self.text), fill=drawing.QUIET, anchor="ra")

    def words(self, warned: list[str], hinted: list[str]) -> None:
        """Warnings, or that there are none, then hints, as many as fit."""
        lines = [(line, drawing.WARNING) for words in warned for line in self._wrapped("! " + words)]
        lines = lines or [("Nothing to warn about: the model can follow this path.", drawing.START)]
        lines += [(line, drawing.QUIET) for words in hinted for line in self._wrapped(words)]
        if len(lines) > 4:
            lines = [*lines[:3], ("   ... (more in the warnings output)", lines[3][1])]
        for index, (line, color) in enumerate(lines):
            position = (10 * self.unit, self.canvas.size[1] - (82 - 19 * index) * self.unit)
            ImageDraw.Draw(self.canvas).text(position, line, font=font(self.text), fill=color)

    def _wrapped(self, words: str) -> list[str]:
        columns = int((self.canvas.size[0] - 30 * self.unit) / (6.3 * self.unit))
        return textwrap.wrap(words, columns, subsequent_indent="   ")


def _draw_asked(sheet: _Sheet, path: CameraPath, first_frame: Image.Image | None) -> None:
    depth = _depth(path.positions)
    cameras = [frustum(pose, lens, depth) for pose, lens in zip(path.c2w, path.intrinsics, strict=True)]
    card = frustum(path.c2w[0], path.intrinsics[0], 3 * depth)
    for axes, rows, title in ((FROM_ABOVE, (0, 0.5), "asked: from above"), (FROM_THE_SIDE, (0.5, 1), "from the side")):
        view = _view(sheet, sheet.panel((0, 0.27), rows, title), axes, cameras)
        _draw_path(sheet, view, path.positions, cameras, path.fps)
    ground = _ground(np.concatenate([*cameras, card]))
    box = sheet.panel((0.27, 0.69), (0, 1), "asked: at an angle")
    view = _view(sheet, box, at_an_angle(), [*cameras, card, *ground])
    for line in ground:
        view.line(line, drawing.GRID)
    if first_frame is not None:
        view.picture(first_frame.convert("RGB").resize((LENS_WIDTH // 2, LENS_HEIGHT // 2)), card)
    view.line(card[[1, 2, 3, 4, 1]], drawing.QUIET, round(sheet.unit))
    _draw_path(sheet, view, path.positions, cameras, path.fps)


def _draw_received(sheet: _Sheet, path: CameraPath, frames: int) -> None:
    poses = received_poses(path, frames)
    lens = path.intrinsics[0]
    depth = _depth(poses[:, :3, 3])
    cameras = [frustum(pose, lens, depth) for pose in poses]
    title = f"received: {len(latent_poses(path.c2w, frames))} latent frames"
    view = _view(sheet, sheet.panel((0.69, 1), (0, 0.5), title), FROM_ABOVE, cameras)
    _draw_path(sheet, view, poses[:, :3, 3], cameras, path.fps / 4)
    steps, turns_deg = motion(path, frames)
    most = turns_deg.max()
    _draw_chart(sheet, (0.5, 0.75), "step (longest is 1)", steps, 1.0, drawing.STEP)
    _draw_chart(sheet, (0.75, 1), f"turn (up to {most:.1f} degrees)", turns_deg, max(most, 1.0), drawing.TURN)


def _draw_chart(sheet: _Sheet, rows: tuple, title: str, values: np.ndarray, most: float, color: Color) -> None:
    left, top, right, bottom = sheet.panel((0.69, 1), rows, title)
    inset = 8 * sheet.unit
    drawing.bars(sheet.canvas, (left + inset, top + inset / 2, right - inset, bottom - inset), values, most, color)


def _draw_path(sheet: _Sheet, view: View, positions: np.ndarray, cameras: list[np.ndarray], fps: float) -> None:
    last = len(positions) - 1
    for index in np.unique(np.linspace(0, last, FRUSTA).round().astype(int))[::-1]:
        view.frustum(cameras[index], color_at(index / last), round(1.2 * sheet.unit))
    for index in range(last):
        view.line(positions[index : index + 2], color_at(index / last), round(2 * sheet.unit))
    for second in range(tick := _tick_seconds(last / fps), int(last / fps) + 1, tick):
        view.dot(positions[round(second * fps)], 2.5 * sheet.unit, drawing.INK)
    ends = ((0, "start", drawing.START), (last, "end", drawing.END))
    together = np.linalg.norm(np.diff(view.pixels(positions[[0, last]]), axis=0)) < 4 * sheet.text
    for index, name, color in ends:
        view.dot(positions[index], 3.5 * sheet.unit, color)
        if not together:
            view.label(positions[index], name, sheet.text, color)


def _tick_seconds(seconds: float) -> int:
    """Seconds between dots, so that there are few enough of them."""
    return next(tick for tick in (1, 2, 5, 10, 30, 60, 300, 3600, 10**6) if seconds / tick <= MOST_TICKS)


def _ground(points: np.ndarray) -> list[np.ndarray]:
    """Lines [2, 3] of a grid under everything."""
    (left, _, near), (right, floor, far) = points.min(0), points.max(0)
    along = [np.array([[x, floor, near], [x, floor, far]]) for x in np.linspace(left, right, 7)]
    return along + [np.array([[left, floor, z], [right, floor, z]]) for z in np.linspace(near, far, 7)]


def _view(sheet: _Sheet, box: Box, axes: np.ndarray, cameras: list[np.ndarray]) -> View:
    return View(sheet.canvas, box, axes, np.concatenate(cameras), 12 * sheet.unit)


def _depth(positions: np.ndarray) -> float:
    """How far a drawn camera sees: a share of the path's extent."""
    return max(0.16 * float(np.ptp(positions, axis=0).max()), 1e-6) if np.ptp(positions, axis=0).any() else 1.0
