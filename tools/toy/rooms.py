"""An endless house: rooms on a grid, described by the crossings of its walls, each with the same few boxes around it.

Lengths are world units; x to the right, y down, z ahead, the floor at y = 0. Walls have doors in their middle, and
alternate between two colours, so the view behind a corner can be known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from .paths import rotations

if TYPE_CHECKING:
    from typing_extensions import Self

RandomPaths = Callable[[int, Generator, int], Tensor]

PITCH, DOOR, THICK, HEIGHT = 4.8, 1.4, 0.12, 2.0
"""The side of a room, the width of a door, half of a wall's thickness, and its height."""
REACH = (PITCH - DOOR) / 2  # the distance from a crossing to the next door
BOXES = (
    (0.0, 0.0, REACH, THICK, HEIGHT),
    (0.0, 0.0, THICK, REACH, HEIGHT),
    (-0.62, -0.62, 0.32, 0.32, 1.05),
    (0.55, 0.55, 0.26, 0.26, 0.52),
)
"""Two walls, a cabinet and a crate around a crossing: x, z, half their sizes along x and z, height."""
EYE, MARGIN = 0.9, 0.3  # the height of eyes, and how near to anything a camera comes

COLOURS = {
    "red": (0.78, 0.27, 0.24),
    "yellow": (0.90, 0.80, 0.38),
    "green": (0.38, 0.64, 0.34),
    "blue": (0.29, 0.48, 0.80),
    "white": (0.88, 0.87, 0.83),
}
"""Wall colours."""
THINGS = (0.55, 0.40, 0.29), (0.88, 0.55, 0.24), (0.56, 0.38, 0.72)  # colours of cabinets, crates and rugs
FLOORS = (
    ((0.72, 0.66, 0.55), (0.48, 0.36, 0.27)),
    ((0.70, 0.72, 0.74), (0.40, 0.43, 0.47)),
    ((0.62, 0.70, 0.50), (0.36, 0.47, 0.30)),
)
"""Two colours of tiles, chosen by the first wall colour."""
WEATHERS = ("by day", "at night", "in the snow", "in the fog")
CAPTIONS = [
    f"a maze with {one} and {other} walls {weather}" for one in COLOURS for other in COLOURS for weather in WEATHERS
]
"""The prompt of each kind of house."""
WORDS = "maze with and walls day night snow fog camera moves through look around house room"
"""The words of these and of other prompts."""
TRIES = 64  # places that are tried for a path


@dataclass(frozen=True)
class Rows:
    """A dataclass of tensors [n, ...], with slices and concatenations of the same class."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, part: slice | Tensor) -> Self:
        return type(self)(*(getattr(self, field.name)[part] for field in fields(self)))

    def to(self, device: torch.device | str) -> Self:
        return type(self)(*(getattr(self, field.name).to(device) for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))


@dataclass(frozen=True)
class Rooms(Rows):
    """n houses, completely described by a prompt."""

    walls: Tensor  # [n, 2], the two colours, indices into COLOURS
    weather: Tensor  # [n], an index into WEATHERS

    def captions(self) -> list[str]:
        """Return the prompts of the houses, such as "a maze with red and blue walls at night"."""
        return [CAPTIONS[kind] for kind in self.kinds().tolist()]

    def kinds(self) -> Tensor:
        """Return the indices [n] into CAPTIONS."""
        return (self.walls[:, 0] * len(COLOURS) + self.walls[:, 1]) * len(WEATHERS) + self.weather

    def changed(self, generator: Generator) -> Rooms:
        """Return the same houses in another weather, or with other walls."""
        other = random_rooms(len(self), generator)
        shift = torch.randint(1, len(WEATHERS), (len(self),), generator=generator)
        same = torch.rand(len(self), generator=generator) < 0.6
        weather = torch.where(same, (self.weather + shift) % len(WEATHERS), self.weather)
        return replace(self, weather=weather, walls=torch.where(same[:, None], self.walls, other.walls))


@dataclass(frozen=True)
class Scenes(Rows):
    """Houses and paths, camera-to-world float32 [n, frames, 4, 4] in OpenCV axes, also as `asked` before collisions."""

    rooms: Rooms
    c2w: Tensor
    asked: Tensor


def random_rooms(count: int, generator: Generator) -> Rooms:
    """Draw houses with two colours of walls, by day as often as in all other weathers."""

    def drawn(most: int) -> Tensor:
        return torch.randint(0, most, (count,), generator=generator)

    first, shift = drawn(len(COLOURS)), 1 + drawn(len(COLOURS) - 1)
    weather = drawn(2 * (len(WEATHERS) - 1)) - (len(WEATHERS) - 2)
    return Rooms(torch.stack([first, (first + shift) % len(COLOURS)], 1), weather.clamp(min=0))


def random_scenes(count: int, seed: int, frames: int, paths: RandomPaths, tries: int = TRIES) -> Scenes:
    """Draw houses with a path each, on the CPU: the same for a seed on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return scenes_around(paths(count, generator, frames), generator, tries)


def scenes_around(paths: Tensor, generator: Generator, tries: int = TRIES) -> Scenes:
    """Draw a house for each of `paths` [n, f, 4, 4], and the start, of `tries`, with the fewest collisions."""
    rooms, start = random_rooms(len(paths), generator), _starts(paths, generator, tries)
    asked = start[:, None] @ paths
    return Scenes(rooms, bumped(asked), asked)


def _starts(paths: Tensor, generator: Generator, tries: int) -> Tensor:
    """Return first poses [n, 4, 4]: the longest path clear of everything, then the clearest."""
    count = len(paths)
    start = torch.eye(4).repeat(count, tries, 1, 1)
    turns = torch.rand(count, tries, generator=generator) * 2 * torch.pi
    still = torch.zeros_like(turns)
    start[..., :3, :3] = rotations(torch.stack([still, turns, still], -1))
    start[..., [0, 2], 3] = 2 * PITCH * torch.rand(count, tries, 2, generator=generator)
    lowest = paths[:, :, 1, 3].amax(1)
    start[..., 1, 3] = torch.minimum(torch.full_like(lowest, -EYE), -0.2 - lowest)[:, None]
    places = paths[:, None, ::2, :3, 3] @ start[..., :3, :3].mT + start[..., None, :3, 3]
    clear = (clearance(places) - MARGIN).clamp(max=0.1)
    first = (clear > 0).int().cumprod(-1).sum(-1)
    best = (first + clear.amin(-1)).argmax(1)
    return start[torch.arange(count), best]


def bumped(asked: Tensor) -> Tensor:
    """Return the poses [n, f, 4, 4] of cameras that follow the requested path but slide along obstacles."""
    gone = asked.clone()
    place = asked[:, 0, :3, 3].clone()
    for frame in range(1, asked.shape[1]):
        step = asked[:, frame, :3, 3] - asked[:, frame - 1, :3, 3]
        for axis in (0, 2, 1):
            moved = place.clone()
            moved[:, axis] += step[:, axis]
            free = (clearance(moved) > MARGIN) | (clearance(moved) >= clearance(place))
            place = torch.where(free[:, None], moved, place)
        place[:, 1].clamp_(max=-0.19)
        gone[:, frame, :3, 3] = place
    return gone


def clearance(points: Tensor) -> Tensor:
    """Return distances [...] of points [..., 3] from the nearest box, along the axis of the largest."""
    x, y, z = points.unbind(-1)
    local_x, local_z = (value - PITCH * (value / PITCH).round() for value in (x, z))
    away = [
        torch.maximum(torch.maximum((local_x - at_x).abs() - half_x, (local_z - at_z).abs() - half_z), -y - height)
        for at_x, at_z, half_x, half_z, height in BOXES
    ]
    return torch.stack(away).amin(0)
