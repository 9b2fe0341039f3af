"""Clips whose camera is known: twenty moves through three kinds of scene, clean, noisy, blurred, compressed, disturbed.

A room is the maze's. A wall is a photograph on a slanted plane. Layers are a photograph with
pieces of photographs in front of it. Photographs are the files `image.jpg` of the folders given, which are not
here.
"""

import io
from pathlib import Path

import av
import cv2
import numpy as np
import torch
from lingbot_world.camera.moves import preset_path
from lingbot_world.camera.path import CameraPath
from lingbot_world.camera.plucker import scaled_intrinsics
from lingbot_world.camera.rotation import from_angles
from lingbot_world.tools.toy.render import render
from lingbot_world.tools.toy.rooms import scenes_around
from PIL import Image

HEIGHT, WIDTH, FRAMES = 270, 480, 81
AMOUNTS = {
    "static": 0,
    "dolly_in": 1,
    "dolly_out": 1,
    "truck_left": 1,
    "truck_right": 1,
    "pedestal_up": 1,
    "pedestal_down": 1,
    "pan_left": 30,
    "pan_right": 30,
    "tilt_up": 20,
    "tilt_down": 20,
    "roll_clockwise": 30,
    "roll_counterclockwise": 30,
    "arc_left": 30,
    "arc_right": 30,
    "arc_over": 30,
    "crane_down": 1.2,
    "spiral": 40,
    "figure_eight": 0.5,
    "handheld": 5,
}
"""Of each move: world units or degrees over the clip."""
SCENES = ("room", "wall", "layers")
FAULTS = ("clean", "noise", "blur", "compressed", "moving")


def path_of(move: str, frames: int = FRAMES) -> CameraPath:
    return preset_path(move, frames=frames, amount=AMOUNTS[move])


def clip(move: str, scene: str, fault: str, photos: list[np.ndarray], seed: int = 0) -> np.ndarray:
    """uint8 [FRAMES, HEIGHT, WIDTH, 3] along `path_of(move)`."""
    exposures = 3 if fault == "blur" else 1
    path = path_of(move)
    poses = path.at(np.arange((FRAMES - 1) * exposures + 1) / exposures).c2w
    lens = scaled_intrinsics(path.intrinsics, HEIGHT, WIDTH)
    seen = _room(poses, seed) if scene == "room" else _planes(poses, lens, _surfaces(scene, photos, seed))
    if exposures > 1:
        mixed = [seen[max(0, at - 1) : at + 2].astype(np.float32).mean(0) for at in range(0, len(seen), exposures)]
        seen = np.stack(mixed).round().astype(np.uint8)
    return spoilt(seen, fault, photos, np.random.default_rng(seed))


def _room(poses: np.ndarray, seed: int) -> np.ndarray:
    c2w = torch.from_numpy(poses[None]).float()
    scenes = scenes_around(c2w, torch.Generator().manual_seed(seed))
    seen = render(scenes.rooms, scenes.asked, HEIGHT, WIDTH, samples=1)[0]
    return ((seen.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()


def _surfaces(scene: str, photos: list[np.ndarray], seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pictures uint8 [h, w, 4] with opacity, far to near, and the place [3, 3] of each: world of (column, row, 1)."""
    random, lens = np.random.default_rng(seed), 252.0
    photos = photos[seed % len(photos) :] + photos[: seed % len(photos)]
    if scene == "wall":
        turn = from_angles("YX", [random.uniform(-25, 25), random.uniform(-15, 15)])[0]
        return [_surface(photos[0], turn, np.array([0, 0, 4.0]), 4.0 / lens)]
    found = [_surface(photos[0], np.eye(3), np.array([0, 0, 7.0]), 7.0 / lens)]
    for number, depth in enumerate((4.5, 3.5, 2.6), 1):
        photo = photos[number % len(photos)]
        size = random.integers(90, 150, 2)
        corner = [random.integers(0, side - part) for side, part in zip(photo.shape[:2], size, strict=True)]
        piece = photo[corner[0] : corner[0] + size[0], corner[1] : corner[1] + size[1]]
        bumps = cv2.GaussianBlur(random.normal(0, 1, size), (0, 0), 12)
        rows, columns = np.mgrid[-1 : 1 : size[0] * 1j, -1 : 1 : size[1] * 1j]
        opaque = (rows**2 + columns**2 + bumps / bumps.std() * 0.15 < 0.8).astype(np.uint8) * 255
        centre = np.array([random.uniform(-0.55, 0.55) * depth, random.uniform(-0.3, 0.3) * depth, depth])
        found.append(_surface(piece, np.eye(3), centre, depth / lens, opaque))
    return found


def _surface(photo, turn, centre, texel, opaque=None):
    height, width = photo.shape[:2]
    corner = centre - turn[:, :2] @ (np.array([width, height]) * texel / 2)
    place = np.stack([turn[:, 0] * texel, turn[:, 1] * texel, corner], 1)
    opaque = np.full((height, width), 255, np.uint8) if opaque is None else opaque
    return np.dstack([photo, opaque]), place


def _planes(poses: np.ndarray, lens: np.ndarray, surfaces) -> np.ndarray:
    """What cameras [n, 4, 4] see of surfaces; the first goes on beyond its edges, mirrored."""
    fine = 2
    seen, matrix = [], np.array([[lens[0], 0, lens[2]], [0, lens[1], lens[3]], [0, 0, 1]])
    finer = np.diag([fine, fine, 1.0]) @ matrix
    for pose in poses:
        picture = None
        for pixels, place in surfaces:
            camera = pose[:3, :3].T @ (place - np.outer(pose[:3, 3], [0, 0, 1]))
            half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
            border = cv2.BORDER_REFLECT_101 if picture is None else cv2.BORDER_CONSTANT
            onto = np.linalg.inv(half) @ finer @ camera @ half
            drawn = cv2.warpPerspective(pixels, onto, (WIDTH * fine, HEIGHT * fine), borderMode=border)
            share = drawn[..., 3:].astype(np.float32) / 255
            below = 0 if picture is None else picture * (1 - share)
            picture = below + drawn[..., :3] * (np.float32(1) if picture is None else share)
        seen.append(cv2.resize(picture, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA).round().astype(np.uint8))
    return np.stack(seen)


def spoilt(frames: np.ndarray, fault: str, photos: list[np.ndarray], random: np.random.Generator) -> np.ndarray:
    """Clean frames with one of FAULTS; `clip` puts in the blur of motion."""
    if fault == "noise":
        return np.clip(frames + random.normal(0, 5, frames.shape), 0, 255).astype(np.uint8)
    if fault == "compressed":
        return compressed(frames)
    if fault == "moving":
        frames = frames.copy()
        size = 90
        piece = photos[-1][60 : 60 + size, 100 : 100 + size]
        inside = np.hypot(*np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]) < 1
        start, way = random.uniform([20, 60], [160, 300]), random.uniform(-0.8, 0.8, 2) + [0, 0.8]
        for number, frame in enumerate(frames):
            row, column = np.clip(start + number * way, 0, [HEIGHT - size, WIDTH - size]).astype(int)
            part = frame[row : row + size, column : column + size]
            part[inside] = piece[inside]
    return frames


def compressed(frames: np.ndarray, crf: int = 30) -> np.ndarray:
    """The frames after H.264."""
    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=16, options={"crf": str(crf)})
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "yuv420p"
        for frame in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        out.mux(stream.encode())
    target.seek(0)
    with av.open(target) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def photos_in(folder: Path) -> list[np.ndarray]:
    return [np.array(Image.open(file).convert("RGB").resize((640, 360))) for file in sorted(folder.glob("*/image.jpg"))]
