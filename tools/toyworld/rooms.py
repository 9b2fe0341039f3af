"""Random rooms, built round a camera path so that it hits nothing, with a caption each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from .paths import FRAMES, random_paths, rotations
from .rows import Rows

RandomPaths = Callable[[int, Generator, int], Tensor]
BOXES = 3
WAVES = 8
MARGIN = 0.45
"""World units that a path keeps from walls and boxes at least."""

COLOURS = {
    "red": (0.78, 0.36, 0.32),
    "orange": (0.86, 0.58, 0.34),
    "yellow": (0.87, 0.79, 0.45),
    "green": (0.45, 0.68, 0.42),
    "blue": (0.38, 0.55, 0.80),
    "purple": (0.60, 0.46, 0.74),
    "white": (0.86, 0.85, 0.82),
    "brown": (0.60, 0.47, 0.37),
}
NUMBERS = ("no boxes", "one box", "two boxes", "three boxes")
CAPTIONS = [
    f"{'an' if colour[0] in 'aeiou' else 'a'} {colour} room with {boxes}{sky}"
    for colour in COLOURS
    for boxes in NUMBERS
    for sky in ("", " under the open sky")
]
"""What a user would write for each kind of room."""


@dataclass(frozen=True)
class Rooms(Rows):
    """Rooms of axis-parallel walls; x to the right, y down, z ahead, lengths in world units.

    lo, hi [n, 3]: two corners; the floor is at hi[:, 1]. box_lo, box_hi [n, 3, 3]: corners of the boxes. A box that a
    room has not has lo above hi. open [n]: whether the sky is the ceiling. colours [n, 9, 2, 3], 0 to 1: the two
    colours of each surface (walls -x, +x, ceiling, floor, walls -z, +z, boxes). light [n, 6]: brightness of surfaces
    that face -x, +x, up, down, -z, +z. waves [n, 8, 3] and phases [n, 9, 8]: the texture, waves in space that every
    surface cuts at phases of its own. sky [n, 2, 3]: its colours at the horizon and above. wall [n], boxes [n]: index
    into COLOURS and the number of boxes, for the caption."""

    lo: Tensor
    hi: Tensor
    box_lo: Tensor
    box_hi: Tensor
    open: Tensor
    colours: Tensor
    light: Tensor
    waves: Tensor
    phases: Tensor
    sky: Tensor
    wall: Tensor
    boxes: Tensor

    def captions(self) -> list[str]:
        """What a user would write: "a red room with two boxes under the open sky"."""
        return [CAPTIONS[kind] for kind in self.kinds().tolist()]

    def kinds(self) -> Tensor:
        """Index [n] into CAPTIONS."""
        return (self.wall * len(NUMBERS) + self.boxes) * 2 + self.open


@dataclass(frozen=True)
class Scenes:
    """Rooms, and a path through each: c2w float32 [n, frames, 4, 4], camera-to-world in OpenCV axes."""

    rooms: Rooms
    c2w: Tensor

    def to(self, device: torch.device | str) -> Scenes:
        """The same scenes on another device."""
        return Scenes(self.rooms.to(device), self.c2w.to(device))


def random_scenes(count: int, seed: int, frames: int = FRAMES, paths: RandomPaths = random_paths) -> Scenes:
    """Rooms with a random path each, on the CPU: the same ones for a seed on every machine. `paths` gives the paths."""
    generator = torch.Generator().manual_seed(seed)
    return scenes_around(paths(count, generator, frames), generator)


def scenes_around(paths: Tensor, generator: Generator) -> Scenes:
    """A random room round each of `paths` [n, f, 4, 4], whose first pose is the identity. The paths are turned, about
    the vertical axis and a little up or down, and the rooms are built where they are."""
    count = len(paths)
    yaw, pitch = 2 * torch.pi * _uniform((count, 1), generator), 0.05 - 0.25 * _uniform((count, 1), generator)
    still = torch.zeros_like(yaw)
    start = rotations(torch.cat([still, yaw, still], 1)) @ rotations(torch.cat([pitch, still, still], 1))
    c2w = paths.clone()
    c2w[:, :, :3] = start[:, None] @ paths[:, :, :3]
    low, high = c2w[:, :, :3, 3].amin(1), c2w[:, :, :3, 3].amax(1)
    ahead = start[:, :, 2]
    lo, hi = _walls(low, high, ahead, generator)
    box_lo, box_hi = _boxes(low, high, lo, hi, ahead, generator)
    return Scenes(_furnished(lo, hi, box_lo, box_hi, generator), c2w)


def _walls(low: Tensor, high: Tensor, ahead: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Corners [n, 3] of rooms round what lies between `low` and `high` [n, 3], with more room `ahead` [n, 3]."""
    size = torch.tensor([4.8, 2.5, 4.8]) + torch.tensor([3.2, 1.0, 3.2]) * _uniform(low.shape, generator)
    spare = (size - (high - low) - 2 * MARGIN).clamp(min=0.1)
    share = 0.5 - 0.35 * ahead + 0.15 * (2 * _uniform(low.shape, generator) - 1)
    lo = low - MARGIN - spare * share
    return lo, high + MARGIN + spare * (1 - share)


def _boxes(
    low: Tensor, high: Tensor, lo: Tensor, hi: Tensor, ahead: Tensor, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Corners [n, 3, 3] of up to three boxes on the floor, clear of the path and of each other, more of them `ahead`.
    For each box a few places are tried; if none is free, the room goes without it."""
    found_lo, found_hi = (torch.full((len(lo), BOXES, 3), value) for value in (1e3, -1e3))
    wanted = torch.randint(0, BOXES + 1, (len(lo),), generator=generator)
    for box in range(BOXES):
        for _ in range(6):
            size = torch.tensor([0.45, 0.5, 0.45]) + torch.tensor([0.6, 1.1, 0.6]) * _uniform(lo.shape, generator)
            share = _uniform(lo.shape, generator)
            share = share + 0.6 * (ahead.clamp(min=0) * (1 - share) + ahead.clamp(max=0) * share)
            corner = lo + 0.2 + (hi - lo - size - 0.4) * share
            corner[:, 1] = hi[:, 1] - size[:, 1]
            end = corner + size
            free = ~_overlap(corner, end, low - MARGIN, high + MARGIN, (0, 2))
            for other in range(box):
                free &= ~_overlap(corner, end, found_lo[:, other] - 0.15, found_hi[:, other] + 0.15, (0, 2))
            place = free & (wanted > box) & (found_lo[:, box, 0] > found_hi[:, box, 0])
            found_lo[place, box], found_hi[place, box] = corner[place], end[place]
    return found_lo, found_hi


def _overlap(lo: Tensor, hi: Tensor, other_lo: Tensor, other_hi: Tensor, axes: tuple[int, int]) -> Tensor:
    """Whether the rectangles [n] seen from above overlap."""
    return torch.stack([(lo[:, a] < other_hi[:, a]) & (other_lo[:, a] < hi[:, a]) for a in axes]).all(0)


def _furnished(lo: Tensor, hi: Tensor, box_lo: Tensor, box_hi: Tensor, generator: Generator) -> Rooms:
    count = len(lo)
    wall = torch.randint(0, len(COLOURS), (count,), generator=generator)
    direction = F.normalize(torch.randn(count, WAVES, 3, generator=generator), dim=-1)
    length = torch.tensor(3.0) ** _uniform((count, WAVES, 1), generator)
    horizon = torch.tensor([0.86, 0.84, 0.80]) + 0.12 * (_uniform((count, 3), generator) - 0.5)
    zenith = torch.tensor([0.42, 0.60, 0.85]) + 0.16 * (_uniform((count, 3), generator) - 0.5)
    return Rooms(
        lo=lo,
        hi=hi,
        box_lo=box_lo,
        box_hi=box_hi,
        open=_uniform((count,), generator) < 0.5,
        colours=_colours(wall, generator),
        light=0.72 + 0.28 * _uniform((count, 6), generator),
        waves=2 * torch.pi * direction / length,
        phases=2 * torch.pi * _uniform((count, 6 + BOXES, WAVES), generator),
        sky=torch.stack([horizon, zenith], 1),
        wall=wall,
        boxes=(box_lo[..., 0] < box_hi[..., 0]).sum(1),
    )


def _colours(wall: Tensor, generator: Generator) -> Tensor:
    """Colours [n, 9, 2, 3]: walls of the named colour, a floor and boxes of any other, a pale ceiling."""
    count, palette = len(wall), torch.tensor(list(COLOURS.values()))
    index = torch.randint(0, len(COLOURS), (count, 6 + BOXES), generator=generator)
    index[:, [0, 1, 4, 5]] = wall[:, None]
    base = palette[index]
    base[:, 2] = 0.5 * base[:, 2] + 0.45
    base[:, 3] = 0.5 * base[:, 3] + 0.22
    base = base[:, :, None] + 0.10 * (_uniform((count, 6 + BOXES, 1, 3), generator) - 0.5)
    contrast = 0.10 * torch.randn(count, 6 + BOXES, 1, 1, generator=generator).sign()
    tint = 0.10 * (_uniform((count, 6 + BOXES, 1, 3), generator) - 0.5)
    return torch.cat([base + contrast + tint, base - contrast - tint], 2).clamp(0.03, 1)


def _uniform(shape: tuple[int, ...] | torch.Size, generator: Generator) -> Tensor:
    return torch.rand(shape, generator=generator)
