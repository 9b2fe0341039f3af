"""The map of a world of equal rooms, such as the toy models' maze, with walls and a crate that the user has to find.

The map and the poses of a walk have the same unit of length. x points to the right, y down and z ahead, and the floor
is at y = 0. The map is example/map.json in the folder of a toy model, written by `tools/toy`; other models have
none.
"""

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
"""The (rows, columns) of the grid into which an image is divided. A start image is recognized by the mean colours of
the grid's cells."""
ALIKE = 6.0
"""A start image is recognized if its mean colours differ from those of a known image by less than this, as a root mean
square. The mean colours are from 0 to 255, one for each cell of the grid LOOK."""
REACH = 1.3
"""The crate counts as found if the camera is in its room and closer than this, in units of the map."""


class Place(NamedTuple):
    """A known start image and its position in the map.

    at: the position (x, y, z).
    yaw: the viewing direction in degrees; 0 is along z, and positive angles turn right.
    look: the mean colours of the image, 0 to 255, as `mean_colours` returns them.
    """

    at: tuple[float, float, float]
    yaw: float
    look: np.ndarray


@dataclass(frozen=True)
class WorldMap:
    """A map of equal square rooms in a grid. All lengths are in units of the map.

    room: the side of a room.
    margin: the smallest distance of the camera from a box.
    boxes: [n, 5], the walls and objects around a corner of the grid; they repeat at every corner. A row has the
        centre's x and z relative to the corner, half of the sizes along x and z, and the height.
    goal: the index of the box that is the crate, which the user has to find.
    rooms: the rooms in which the crate may be. A room is an offset (x, z) from the start image's room, counted in
        rooms.
    places: the known start images.
    """

    room: float
    margin: float
    boxes: np.ndarray
    goal: int
    rooms: tuple[tuple[int, int], ...]
    places: tuple[Place, ...]

    def locate(self, frame: Tensor, seed: int) -> PlacedMap | None:
        """Return the map as seen from a walk with the first image `frame` [3, H, W], values -1 to 1. Return None if
        this is not a known start image of the map. `seed` selects the room of the crate."""
        look = mean_colours((frame.clamp(-1, 1) + 1) * 127.5)
        for place in self.places:
            if float(np.sqrt(np.mean((place.look - look) ** 2))) < ALIKE:
                return PlacedMap(self, place, self.rooms[seed % len(self.rooms)])
        return None

    def clearance(self, point: np.ndarray) -> float:
        """Return the signed distance of a point [3] from the nearest box, negative inside a box, in units of the map.
        The distance is not Euclidean: it is the largest of the distances along x, along z, and from the box's top.
        The boxes repeat at every corner of the grid."""
        x, z = (value - self.room * round(value / self.room) for value in (point[0], point[2]))
        aside = np.maximum(abs(x - self.boxes[:, 0]) - self.boxes[:, 2], abs(z - self.boxes[:, 1]) - self.boxes[:, 3])
        return float(np.maximum(aside, -point[1] - self.boxes[:, 4]).min())


class PlacedMap:
    """A map as seen from a walk that begins at one of the map's known places, with the position of the crate. The
    walk's coordinates have their origin at the camera of the first frame; this class converts them into the map's."""

    def __init__(self, world: WorldMap, place: Place, room: tuple[int, int]) -> None:
        self._map, self._place = world, place
        sine, cosine = math.sin(math.radians(place.yaw)), math.cos(math.radians(place.yaw))
        self._turn = np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])
        corner = [math.floor(at / world.room) + more for at, more in zip(place.at[::2], room, strict=True)]
        self._goal = world.room * np.array(corner) + world.boxes[world.goal][:2]

    def slide(self, position: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return the camera's position [3] after it moves from `position` [3] by `step` [3], all in the walk's
        coordinates.

        The camera moves first along the map's x axis, and then along its z axis. If it would end too close to a wall,
        the movement along this axis is left out, except if the camera does not come closer to the wall. So the camera
        slides along walls.
        """
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
        """Return whether the crate is in the same room as `position` [3], in the walk's coordinates, and less than
        REACH away."""
        here = self._in_map(position)[::2]
        rooms = [np.floor(point / self._map.room) for point in (here, self._goal)]
        return bool((rooms[0] == rooms[1]).all() and np.hypot(*(here - self._goal)) < REACH)

    def facts(self) -> dict[str, Any]:
        """Return the map as a dict of JSON values for a web page. Lengths are in units of the map.

        room: the side of a room.
        boxes: as in WorldMap.
        goal: the crate's x and z in the map, half of its sizes along x and z, and its height.
        at: the x, y and z of the start image in the map, and its yaw in degrees.
        """
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
    """Return the mean colours, float32 [3 * rows * columns], of an image [3, H, W] with values 0 to 255. A mean colour
    is computed for each cell of a grid of LOOK (rows, columns)."""
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
