"""The map of a world of equal rooms, such as the toy models' maze, with walls and a crate."""

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
"""The name of a map's file in the example folder of a model."""
LOOK = 6, 8
"""Images are divided into a grid of these rows and columns. Each cell's mean colour serves to recognize an image."""
ALIKE = 6.0
"""The limit below which an image is recognized as a map's start image: the root mean square difference between the two
images' mean colours, 0 to 255, in the cells of the grid LOOK."""
REACH = 1.3
"""The camera finds the crate, the goal on the map, within this distance, in units of the map, and in the same room."""


class Place(NamedTuple):
    """A known start image and its position in the map.

    at: the position (x, y, z).
    yaw: the viewing direction in degrees; 0 is along z, positive turns right.
    look: the mean colours of the image, as `mean_colours` returns them.
    """

    at: tuple[float, float, float]
    yaw: float
    look: np.ndarray


@dataclass(frozen=True)
class WorldMap:
    """A map of equal square rooms in a grid, with boxes as obstacles, one of them a crate to be found. The axes: x
    right, y down, z ahead; the floor is at y = 0.

    room: the side of a room.
    margin: the camera's minimum distance from a box.
    boxes: [n, 5], the same around each corner of all rooms: centre (x, z) from the corner, half sizes (x, z), height.
    goal: the index in `boxes` of the crate, which is to be found in one room only.
    rooms: the rooms that may have the crate, as offsets (x, z) from the start room.
    places: the known start images and their positions.
    """

    room: float
    margin: float
    boxes: np.ndarray
    goal: int
    rooms: tuple[tuple[int, int], ...]
    places: tuple[Place, ...]

    def locate(self, frame: Tensor, seed: int) -> PlacedMap | None:
        """Return the map placed for a walk that starts with the image `frame` [3, H, W], values -1 to 1, or None if the
        image is unknown. `seed` selects the room of the crate, the object to be found."""
        look = mean_colours((frame.clamp(-1, 1) + 1) * 127.5)
        for place in self.places:
            if float(np.sqrt(np.mean((place.look - look) ** 2))) < ALIKE:
                return PlacedMap(self, place, self.rooms[seed % len(self.rooms)])
        return None

    def clearance(self, point: np.ndarray) -> float:
        """Return the signed Chebyshev distance of a point [3] from the nearest box, negative inside a box."""
        x, z = (value - self.room * round(value / self.room) for value in (point[0], point[2]))
        aside = np.maximum(abs(x - self.boxes[:, 0]) - self.boxes[:, 2], abs(z - self.boxes[:, 1]) - self.boxes[:, 3])
        return float(np.maximum(aside, -point[1] - self.boxes[:, 4]).min())


class PlacedMap:
    """A map in the coordinates of a walk. Their origin is the camera of the first frame."""

    def __init__(self, world: WorldMap, place: Place, room: tuple[int, int]) -> None:
        self._map, self._place = world, place
        sine, cosine = math.sin(math.radians(place.yaw)), math.cos(math.radians(place.yaw))
        self._turn = np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])
        corner = [math.floor(at / world.room) + more for at, more in zip(place.at[::2], room, strict=True)]
        self._goal = world.room * np.array(corner) + world.boxes[world.goal][:2]

    def slide(self, position: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return the position [3] after a movement from `position` by `step` [3] that slides along walls."""
        here, step = self._in_map(position), self._turn @ step
        place = here
        for axis in (0, 2):
            moved = place.copy()
            moved[axis] += step[axis]
            away = self._map.clearance(moved)
            if away > self._map.margin or away >= self._map.clearance(place):
                place = moved
        return position + self._turn.T @ (place - here)  # exactly the same position before a wall

    def is_near_crate(self, position: np.ndarray) -> bool:
        """Return whether the crate is in the same room as `position` [3] and less than REACH away."""
        here = self._in_map(position)[::2]
        rooms = [np.floor(point / self._map.room) for point in (here, self._goal)]
        return bool((rooms[0] == rooms[1]).all() and np.hypot(*(here - self._goal)) < REACH)

    def facts(self) -> dict[str, Any]:
        """Return the map as JSON values for a web page: room, boxes, crate and start position."""
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
    """Return an image's mean colours in the cells of the LOOK grid, float32 [3 * rows * columns]. `frame`: [3, H, W],
    values 0 to 255."""
    return F.adaptive_avg_pool2d(frame[None].float(), LOOK).flatten().numpy()


def read_map(file: Path) -> WorldMap:
    """Return the map in a JSON file. Raises InputError for an invalid file."""
    text = text_of(file)
    try:
        content = json.loads(text)
        boxes = np.array(content["boxes"], dtype=np.float64).reshape(-1, 5)
        goal, rooms = int(content["goal"]), tuple((int(x), int(z)) for x, z in content["rooms"])
        places = tuple(_place(row) for row in content["places"])
        if not rooms or not 0 <= goal < len(boxes) or not float(content["room"]) > 0 or not np.isfinite(boxes).all():
            raise ValueError("`goal` must number a box, `rooms` name a room, and `room` be above 0")
        return WorldMap(float(content["room"]), float(content["margin"]), boxes, goal, rooms, places)
    except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InputError(f"{file}: no map ({error}); write the package again, or remove this file") from error


def _place(row: Any) -> Place:
    look = np.array(row["look"], dtype=np.float32)
    if look.shape != (3 * LOOK[0] * LOOK[1],):
        raise ValueError(f"`look` has the shape {look.shape}, expected {3 * LOOK[0] * LOOK[1]} numbers")
    x, y, z = (float(value) for value in row["at"])
    return Place((x, y, z), float(row["yaw"]), look)
