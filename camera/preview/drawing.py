"""Drawing on a Pillow image: projected lines, camera frusta, images in the scene, and column charts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..poses import LENS_HEIGHT, LENS_WIDTH

Box = tuple[float, float, float, float]
Color = tuple[int, int, int]

BACKGROUND, PANEL, GRID = (24, 26, 31), (32, 35, 42), (52, 57, 67)
INK, MUTED, WARNING = (232, 234, 238), (150, 157, 170), (255, 196, 87)
START, END = (86, 204, 132), (240, 96, 96)
STEP, TURN = (96, 165, 250), (222, 150, 250)

# projections [2, 3] for three views: the rows map a world point to the right and down in the panel
FROM_ABOVE = np.array([[1.0, 0, 0], [0, 0, -1]])
FROM_THE_SIDE = np.array([[0.0, 0, 1], [0, 1, 0]])
_A, _E = np.deg2rad([32.0, 24.0])  # azimuth and elevation: from behind, the right and above
AT_AN_ANGLE = np.array([[np.cos(_A), 0, np.sin(_A)], [np.sin(_E) * np.sin(_A), np.cos(_E), -np.sin(_E) * np.cos(_A)]])


def color_at(fraction: float) -> Color:
    """Return a colour between green at 0, the start of a path, and red at 1, its end."""
    red, green, blue = (round(a + (b - a) * fraction) for a, b in zip(START, END, strict=True))
    return red, green, blue


def invert_lightness(image: Image.Image) -> Image.Image:
    """Return an RGB image with inverted lightness and the same hues. A second call restores the image."""
    pixels = np.asarray(image, np.int16)
    ends = pixels.max(-1, keepdims=True) + pixels.min(-1, keepdims=True)
    return Image.fromarray((255 - ends + pixels).astype(np.uint8))


def font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def frustum(pose: np.ndarray, lens: np.ndarray, depth: float) -> np.ndarray:
    """Return a frustum's world points [6, 3]: the apex, four corners clockwise from the top left, and a mark above
    them. `pose`: camera-to-world. `lens`: fx, fy, cx, cy at 832x480."""
    fx, fy, cx, cy = lens
    left, right, top, bottom = -cx / fx, (LENS_WIDTH - cx) / fx, -cy / fy, (LENS_HEIGHT - cy) / fy
    corners = [[0, 0, 0], [left, top, 1], [right, top, 1], [right, bottom, 1], [left, bottom, 1]]
    corners.append([(left + right) / 2, top - 0.35 * (bottom - top), 1])
    return np.array(corners) * depth @ pose[:3, :3].T + pose[:3, 3]


@dataclass(frozen=True)
class View:
    """A parallel projection of all `points` [n, 3] into the rectangle `box`.

    axes: [2, 3], the world directions right and down in the image.
    margin: free pixels inside `box`.
    """

    canvas: Image.Image
    box: Box
    axes: np.ndarray
    points: np.ndarray
    margin: float = 14.0

    def pixels(self, points: np.ndarray) -> np.ndarray:
        """Return the pixel positions [n, 2] of world points [n, 3]."""
        scale, shift = self._fit
        return np.atleast_2d(points) @ self.axes.T * scale + shift

    @cached_property
    def _fit(self) -> tuple[float, np.ndarray]:
        flat = self.points @ self.axes.T
        low, high = flat.min(0), flat.max(0)
        left, top, right, bottom = self.box
        room = np.array([right - left, bottom - top]) - 2 * self.margin
        scale = float((room / np.maximum(high - low, 1e-12)).min())
        return scale, np.array([left + right, top + bottom]) / 2 - (low + high) / 2 * scale

    def line(self, points: np.ndarray, color: Color, width: int = 2) -> None:
        """Draw a polyline through world points [n, 3], `width` pixels wide."""
        pixels = [tuple(point) for point in self.pixels(points)]
        ImageDraw.Draw(self.canvas).line(pixels, fill=color, width=width, joint="curve")

    def frustum(self, corners: np.ndarray, color: Color, width: int = 2) -> None:
        """Draw a camera's frustum from world points [6, 3]: the apex, four image corners, and a mark above them."""
        for corner in corners[1:5]:
            self.line(np.stack([corners[0], corner]), color, width)
        self.line(corners[[1, 2, 3, 4, 1]], color, width)
        roof = corners[[1, 5, 2]]
        roof[[0, 2]] += 0.25 * (roof[[2, 0]] - roof[[0, 2]])
        self.line(roof, color, width)

    def dot(self, point: np.ndarray, radius: float, color: Color) -> None:
        """Draw a filled circle around a world point [3]. `radius` is in pixels."""
        ((x, y),) = self.pixels(point)
        ImageDraw.Draw(self.canvas).ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)

    def label(self, point: np.ndarray, text: str, size: float, color: Color) -> None:
        """Draw text next to a world point [3], shifted to fit into the view's `box`. `size`: the font size in
        pixels."""
        ((x, y),) = self.pixels(point)
        width = font(size).getlength(text)
        x = min(max(x + size * 0.5, self.box[0] + 2), self.box[2] - width - 4)
        y = min(max(y - size * 1.4, self.box[1] + 2), self.box[3] - size * 1.4)
        draw = ImageDraw.Draw(self.canvas)
        draw.text((x, y), text, font=font(size), fill=color, stroke_width=round(size / 8), stroke_fill=PANEL)

    def draw_image(self, image: Image.Image, corners: np.ndarray) -> None:
        """Draw an image on the far plane of a camera's frustum. `corners`: [6, 3], from `drawing.frustum`: the apex,
        the far plane's corners clockwise from the top left, and a mark above them."""
        top_left, top_right, _, bottom_left = self.pixels(corners[1:5])
        across, down = top_right - top_left, bottom_left - top_left
        basis = np.stack([across / image.width, down / image.height], axis=1)
        if abs(np.linalg.det(basis)) < 1e-6:
            return
        back = np.linalg.inv(basis)
        shift = -back @ top_left
        terms = (*back[0], shift[0], *back[1], shift[1])
        size = self.canvas.size
        mask = Image.new("L", image.size, 235).transform(size, Image.Transform.AFFINE, terms)
        self.canvas.paste(image.transform(size, Image.Transform.AFFINE, terms, Image.Resampling.BILINEAR), mask=mask)


def bars(canvas: Image.Image, box: Box, values: Sequence[float] | np.ndarray, most: float, color: Color) -> None:
    """Draw a column chart in the rectangle `box`. `most`: the value of a column of full height; larger values are
    clipped."""
    left, top, right, bottom = box
    draw = ImageDraw.Draw(canvas)
    draw.line((left, bottom, right, bottom), fill=GRID, width=2)
    width = (right - left) / max(len(values), 1)
    for index, value in enumerate(values):
        height = (bottom - top) * min(value / most, 1) if most > 0 else 0
        x = left + index * width
        draw.rectangle((x + 0.15 * width, bottom - height, x + 0.85 * width, bottom), fill=color)
