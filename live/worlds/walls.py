"""The map of a world of equal rooms, such as the toy's maze: walls that stop the camera, and a crate to find.

Lengths are in the units of a walk, x to the right, y down, z ahead, the floor at y = 0. The file is a package's
example/map.json; `tools/toy` writes it from the boxes that its renderer draws."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from ...errors import InputError
from ...fields import text_of

MAP = "map.json"
"""The name of a map's file in the example folder of a package."""
LOOK = 6, 8
"""The rows and columns of the mean colours by which a place is found."""
ALIKE = 6.0
"""The largest root mean square difference of these colours, on the scale of 0 to 255."""
REACH = 1.3
"""The distance from which the crate counts as found, in its room."""


class Place(NamedTuple):
    """A first frame's position in the map: x, y, z, the yaw in degrees, and the frame's mean colours `look`, from 0 to
    255."""

    at: tuple[float, float, float]
    yaw: float
    look: np.ndarray


@dataclass(frozen=True)
class WorldMap:
    """A grid of rooms with sides of `room`. `boxes` [n, 5] stand around every corner of the grid: x, z, half of the
    sizes along x and z, and the height. The camera stays `margin` away from them. `goal` is the number of the box that
    is the crate to find, in one of `rooms`, counted in rooms from the first one along x and z."""

    room: float
    margin: float
    boxes: np.ndarray
    goal: int
    rooms: tuple[tuple[int, int], ...]
    places: tuple[Place, ...]

    def stand(self, frame: Tensor, seed: int) -> Standing | None:
        """Return the position of a walk that begins at a frame [3, H, W] of this world, or None for another image. The
        seed chooses the room of the crate."""
        look = mean_colours((frame.clamp(-1, 1) + 1) * 127.5)
        for place in self.places:
            if float(np.sqrt(np.mean((place.look - look) ** 2))) < ALIKE:
                return Standing(self, place, self.rooms[seed % len(self.rooms)])
        return None

    def clearance(self, point: np.ndarray) -> float:
        """Return the distance of a point [3] from the nearest box, along the axis on which it is furthest away."""
        x, z = (value - self.room * round(value / self.room) for value in (point[0], point[2]))
        aside = np.maximum(abs(x - self.boxes[:, 0]) - self.boxes[:, 2], abs(z - self.boxes[:, 1]) - self.boxes[:, 3])
        return float(np.maximum(aside, -point[1] - self.boxes[:, 4]).min())


class Standing:
    """A walk's position in a map. The walk's own coordinates begin at its first frame."""

    def __init__(self, world: WorldMap, place: Place, room: tuple[int, int]) -> None:
        self._map, self._place = world, place
        sine, cosine = math.sin(math.radians(place.yaw)), math.cos(math.radians(place.yaw))
        self._turn = np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])
        corner = [math.floor(at / world.room) + more for at, more in zip(place.at[::2], room, strict=True)]
        self._goal = world.room * np.array(corner) + world.boxes[world.goal][:2]

    def slide(self, position: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return the walk's next position [3]: a step that a wall is in the way of goes along the wall."""
        here, step = self._in_map(position), self._turn @ step
        place = here
        for axis in (0, 2):
            moved = place.copy()
            moved[axis] += step[axis]
            away = self._map.clearance(moved)
            if away > self._map.margin or away >= self._map.clearance(place):
                place = moved
        return position + self._turn.T @ (place - here)  # exactly the same position before a wall

    def finds(self, position: np.ndarray) -> bool:
        """Return whether the crate is within reach, in the same room."""
        here = self._in_map(position)[::2]
        rooms = [np.floor(point / self._map.room) for point in (here, self._goal)]
        return bool((rooms[0] == rooms[1]).all() and np.hypot(*(here - self._goal)) < REACH)

    def facts(self) -> dict[str, Any]:
        """Return the map for a page. `goal`: the crate's x, z, half sizes and height. `at`: the first x, y, z and yaw
        (degrees)."""
        world = self._map
        return {
            "room": world.room,
            "boxes": world.boxes.tolist(),
            "goal": [*np.round(self._goal, 4).tolist(), *world.boxes[world.goal][2:].tolist()],
            "at": [*self._place.at, self._place.yaw],
        }

    def _in_map(self, position: np.ndarray) -> np.ndarray:
        return np.asarray(self._turn @ position + self._place.at)


def mean_colours(frame: Tensor) -> np.ndarray:
    """Return the mean colours [3 * rows * columns] of an image [3, H, W], 0 to 255."""
    return F.adaptive_avg_pool2d(frame[None].float(), LOOK).flatten().numpy()


def read_map(file: Path) -> WorldMap:
    """Return the map of a JSON file. Raises InputError."""
    try:
        told = json.loads(text_of(file))
        boxes = np.array(told["boxes"], dtype=np.float64).reshape(-1, 5)
        goal, rooms = int(told["goal"]), tuple((int(x), int(z)) for x, z in told["rooms"])
        places = tuple(_place(row) for row in told["places"])
        if not rooms or not 0 <= goal < len(boxes) or not float(told["room"]) > 0 or not np.isfinite(boxes).all():
            raise ValueError("`goal` must number a box, `rooms` name a room, and `room` be above 0")
        return WorldMap(float(told["room"]), float(told["margin"]), boxes, goal, rooms, places)
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: no map ({error}); write the package again, or remove this file") from error


def _place(row: Any) -> Place:
    look = np.array(row["look"], dtype=np.float32)
    if look.shape != (3 * LOOK[0] * LOOK[1],):
        raise ValueError(f"`look` has the shape {look.shape}, expected {3 * LOOK[0] * LOOK[1]} numbers")
    x, y, z = (float(value) for value in row["at"])
    return Place((x, y, z), float(row["yaw"]), look)
