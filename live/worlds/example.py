"""Reading of the world events and the map in the example folder of a model's package."""

from __future__ import annotations

from pathlib import Path

from ...text.events import WorldEvent, read_events
from .walls import MAP, WorldMap, read_map

EXAMPLE, EVENTS = "example", "events.json"


def find_events(model: str | Path, named: str | Path | None = None) -> tuple[WorldEvent, ...]:
    """Return the world events in the file `named`, by default events.json in the model's example folder. Return () if
    this default is missing. Raises InputError for an invalid file."""
    return read_events(named or example_file(model, EVENTS))


def find_map(model: str | Path) -> WorldMap | None:
    """Return the map in the example folder of a model, or None without a map. Raises InputError for an invalid file."""
    file = example_file(model, MAP)
    return None if file is None else read_map(file)


def example_file(model: str | Path, name: str) -> Path | None:
    """Return the path of the file `name` in the folder `example` of a model, or None without such a file."""
    folder = Path(model).absolute()
    folder = folder.parent if folder.is_file() else folder
    files = (package / EXAMPLE / name for package in (folder, folder.parent))
    return next((file for file in files if file.is_file()), None)
