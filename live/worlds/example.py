"""Reading of the optional events and the optional map from the example folder of a model's package. A toy model's
package has both."""

from __future__ import annotations

from pathlib import Path

from ...text.events import WorldEvent, read_events
from .walls import MAP, WorldMap, read_map

EXAMPLE, EVENTS = "example", "events.json"


def find_events(model: str | Path, named: str | Path | None = None) -> tuple[WorldEvent, ...]:
    """Return the events in the file `named`, or else in the example/events.json of the package of `model`, a folder or
    a file. The tuple is empty without such a file. Raises InputError for an invalid file."""
    return read_events(named or example_file(model, EVENTS))


def find_map(model: str | Path) -> WorldMap | None:
    """Return the map in the example/map.json of the package of `model`, a folder or a file. Return None without such a
    file. Raises InputError for an invalid file."""
    file = example_file(model, MAP)
    return None if file is None else read_map(file)


def example_file(model: str | Path, name: str) -> Path | None:
    """Return the file `name` in the example folder in the model's folder or next to it, or None."""
    folder = Path(model).absolute()
    folder = folder.parent if folder.is_file() else folder
    files = (package / EXAMPLE / name for package in (folder, folder.parent))
    return next((file for file in files if file.is_file()), None)
