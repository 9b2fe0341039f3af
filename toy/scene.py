"""The example of the random toy package: a drawn landscape, and a camera path through it."""

import numpy as np
from PIL import Image, ImageDraw

WIDTH, HEIGHT, HORIZON = 832, 480, 250
FOCAL = 504.6  # pixels: 79 degrees across 832, the lens of the official examples
FRAMES = 81
PROMPT = "The camera moves slowly along the road, past the trees, to the distant mountain in the golden evening light."


def landscape() -> Image.Image:
    """Return a drawn landscape, RGB 832x480."""
    scale = np.linspace(0, 1, HORIZON)[:, None]
    sky = (1 - scale) * np.array([70, 110, 190]) + scale * np.array([250, 205, 150])
    ground_scale = np.linspace(0, 1, HEIGHT - HORIZON)[:, None]
    ground = (1 - ground_scale) * np.array([150, 160, 100]) + ground_scale * np.array([50, 95, 45])
    rows = np.concatenate([sky, ground]).round().astype(np.uint8)
    image = Image.fromarray(np.repeat(rows[:, None], WIDTH, axis=1))
    draw = ImageDraw.Draw(image)
    draw.ellipse((590, 120, 660, 190), fill=(255, 240, 200))
    for index, colour in enumerate([(150, 150, 175), (115, 125, 145), (85, 105, 105)]):
        draw.polygon(_ridge(index), fill=colour)
    draw.polygon([(408, HORIZON), (424, HORIZON), (660, HEIGHT), (172, HEIGHT)], fill=(120, 110, 100))
    for depth in range(12, 1, -1):
        for side in (-1, 1):
            _tree(draw, side * 2.6, depth)
    return image


def _ridge(index: int) -> list[tuple[int, int]]:
    x = np.arange(0, WIDTH + 16, 16)
    waves = np.sum([np.sin(x / (190 / k) + 2.1 * index * k) / k for k in (1, 2, 3, 5)], axis=0)
    y = HORIZON - 75 + 27 * index - (34 - 8 * index) * waves
    outline = [(int(a), int(b)) for a, b in zip(x, y.round(), strict=True)]
    return [(0, HORIZON), *outline, (WIDTH, HORIZON)]


def _tree(draw: ImageDraw.ImageDraw, x: float, depth: float) -> None:
    unit = FOCAL / (2 * depth)
    foot, centre = HORIZON + unit, WIDTH / 2 + x * unit
    draw.rectangle((centre - 0.08 * unit, foot - unit, centre + 0.08 * unit, foot), fill=(80, 60, 45))
    for level in range(3):
        half, top = (0.6 - 0.15 * level) * unit, foot - (1.4 + 0.5 * level) * unit
        draw.polygon(
            [(centre - half, top + 0.8 * unit), (centre + half, top + 0.8 * unit), (centre, top)],
            fill=(30 + 12 * level, 75 + 15 * level, 45 + 8 * level),
        )


def camera_path() -> tuple[np.ndarray, np.ndarray]:
    """Return a path's camera-to-world poses, float32 [81, 4, 4], and intrinsics, float32 [81, 4], in pixels of
    832x480."""
    time = np.linspace(0, 1, FRAMES)
    yaw = 0.25 * np.sin(2 * np.pi * time)
    poses = np.tile(np.eye(4), (FRAMES, 1, 1))
    poses[:, 0, 0] = poses[:, 2, 2] = np.cos(yaw)
    poses[:, 0, 2], poses[:, 2, 0] = np.sin(yaw), -np.sin(yaw)
    poses[:, 2, 3] = 3 * time**2 * (3 - 2 * time)
    poses[:, 1, 3] = -0.05 * np.sin(6 * np.pi * time)
    lens = np.tile([FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2], (FRAMES, 1))
    return poses.astype(np.float32), lens.astype(np.float32)
