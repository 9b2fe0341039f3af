"""The layout of a drawing: a header, titled panels with paths and charts, and text below."""

import textwrap

import numpy as np
from PIL import Image, ImageDraw

from ...errors import InputError
from . import drawing
from .drawing import Box, Color, View, color_at, font

Span = tuple[float, float]
SMALLEST, LARGEST = (400, 250), (4096, 4096)
SUPERSAMPLING = 2
"""The scale of the canvas relative to the finished image."""
FRUSTA = 7
MOST_TICKS = 12
MOST_LINES = 4
"""The maximum number of lines below the panels."""


class Sheet:
    """A drawing of `size` (width, height) pixels. Raises InputError for a size below 400x250 or above 4096x4096."""

    def __init__(self, size: tuple[int, int]) -> None:
        if not all(least <= side <= most for least, side, most in zip(SMALLEST, size, LARGEST, strict=True)):
            least, most = ("{}x{}".format(*sides) for sides in (SMALLEST, LARGEST))
            raise InputError(f"drawing of {size[0]}x{size[1]}: expected at least {least} and at most {most}")
        self.canvas = Image.new("RGB", (size[0] * SUPERSAMPLING, size[1] * SUPERSAMPLING), drawing.BACKGROUND)
        self.unit = SUPERSAMPLING * min(size[0] / 650, size[1] / 406)  # one pixel of a 650x406 sheet
        self.text = 13 * self.unit

    def to_image(self) -> Image.Image:
        """Return the finished RGB drawing at the requested size."""
        size = self.canvas.width // SUPERSAMPLING, self.canvas.height // SUPERSAMPLING
        return self.canvas.resize(size, Image.Resampling.LANCZOS)

    def panel(self, columns: Span, rows: Span, title: str) -> Box:
        """Draw a titled panel and return the rectangle inside it. `columns` (left, right) and `rows` (top, bottom) are
        fractions of the space for panels."""
        width, height, unit = *self.canvas.size, self.unit
        top, bottom = 28 * unit, height - 84 * unit
        left, right = (6 * unit + share * (width - 6 * unit) for share in columns)
        upper, lower = (top + share * (bottom - top) for share in rows)
        box = (left, upper, right - 6 * unit, lower - 6 * unit)
        draw = ImageDraw.Draw(self.canvas)
        draw.rounded_rectangle(box, 5 * unit, fill=drawing.PANEL)
        draw.text((box[0] + 7 * unit, box[1] + 4 * unit), title, font=font(self.text), fill=drawing.MUTED)
        return box[0], box[1] + 20 * unit, box[2], box[3]

    def header(self, text: str, legend: str) -> None:
        draw, right = ImageDraw.Draw(self.canvas), self.canvas.size[0] - 10 * self.unit
        draw.text((10 * self.unit, 6 * self.unit), text, font=font(14 * self.unit), fill=drawing.INK)
        draw.text((right, 7 * self.unit), legend, font=font(self.text), fill=drawing.MUTED, anchor="ra")

    def footer(self, messages: list[tuple[str, Color]], more: str) -> None:
        """Draw messages below the panels, each in its colour. Beyond MOST_LINES lines, `more` replaces the rest."""
        columns = int((self.canvas.size[0] - 30 * self.unit) / (6.3 * self.unit))
        lines = [
            (line, color)
            for message, color in messages
            for line in textwrap.wrap(message, columns, subsequent_indent="   ")
        ]
        if len(lines) > MOST_LINES:
            lines = [*lines[: MOST_LINES - 1], (f"   ... ({more})", lines[MOST_LINES - 1][1])]
        for index, (line, color) in enumerate(lines):
            position = (10 * self.unit, self.canvas.size[1] - (82 - 19 * index) * self.unit)
            ImageDraw.Draw(self.canvas).text(position, line, font=font(self.text), fill=color)

    def chart(self, columns: Span, rows: Span, title: str, values: np.ndarray, most: float, color: Color) -> None:
        """Draw a panel with a column chart. `most`: the maximum of the value axis; larger values are clipped."""
        left, top, right, bottom = self.panel(columns, rows, title)
        inset = 8 * self.unit
        drawing.bars(self.canvas, (left + inset, top + inset / 2, right - inset, bottom - inset), values, most, color)

    def view(self, box: Box, axes: np.ndarray, corners: list[np.ndarray]) -> View:
        """Return a parallel projection into the rectangle `box` that shows all world points in `corners`, arrays [n,
        3]. `axes`: see `View`."""
        return View(self.canvas, box, axes, np.concatenate(corners), 12 * self.unit)

    def path(self, view: View, positions: np.ndarray, cameras: list[np.ndarray], fps: float) -> None:
        """Draw a camera path into `view`, from green to red, with some of the frusta, and with a dot every few seconds.

        positions: [n, 3], the camera positions.
        cameras: the frustum of each pose, six world points [6, 3] from `drawing.frustum`.
        fps: poses per second.
        """
        last = len(positions) - 1
        for index in np.unique(np.linspace(0, last, FRUSTA).round().astype(int))[::-1]:
            view.frustum(cameras[index], color_at(index / last), round(1.2 * self.unit))
        for index in range(last):
            view.line(positions[index : index + 2], color_at(index / last), round(2 * self.unit))
        for second in range(tick := tick_seconds(last / fps), int(last / fps) + 1, tick):
            view.dot(positions[round(second * fps)], 2.5 * self.unit, drawing.INK)
        ends = ((0, "start", drawing.START), (last, "end", drawing.END))
        together = np.linalg.norm(np.diff(view.pixels(positions[[0, last]]), axis=0)) < 4 * self.text
        for index, name, color in ends:
            view.dot(positions[index], 3.5 * self.unit, color)
            if not together:
                view.label(positions[index], name, self.text, color)


def tick_seconds(seconds: float) -> int:
    """Return the interval between the dots on a drawn path, in whole seconds: the shortest round value that gives at
    most MOST_TICKS dots. `seconds`: the path's duration."""
    return next(tick for tick in (1, 2, 5, 10, 30, 60, 300, 3600, 10**6) if seconds / tick <= MOST_TICKS)


def ground(points: np.ndarray) -> list[np.ndarray]:
    """Return the lines, each [2, 3], of a horizontal grid below all `points` [n, 3]."""
    (left, _, near), (right, floor, far) = points.min(0), points.max(0)
    along = [np.array([[x, floor, near], [x, floor, far]]) for x in np.linspace(left, right, 7)]
    return along + [np.array([[left, floor, z], [right, floor, z]]) for z in np.linspace(near, far, 7)]


def camera_depth(positions: np.ndarray) -> float:
    """Return the depth of drawn frusta, in proportion to the extent of the `positions` [n, 3]."""
    return max(0.16 * float(np.ptp(positions, axis=0).max()), 1e-6) if np.ptp(positions, axis=0).any() else 1.0
