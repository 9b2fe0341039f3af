"""The settings file of a saved walk (a steered video), and the names of the files in the walk's folder."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import InputError, LingBotError

FORMAT = "lingbot-world walk 1"
SETTINGS_FILE, STATE, CAMERA = "walk.json", "walk.state", "camera"


def saved_walks(folder: Path) -> list[Path]:
    """Return the folders `walk-N` in `folder` that have a settings file, ordered by the last write to this file."""
    found = [walk for walk in folder.glob("walk-*") if (walk / SETTINGS_FILE).is_file()]
    return sorted(found, key=lambda walk: (walk / SETTINGS_FILE).stat().st_mtime)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the contents of a walk's settings file, `walk.json`. Raises InputError for a missing or invalid file."""
    with wrap_read_errors(folder):
        settings: dict[str, Any] = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        if settings.get("format") != FORMAT or not isinstance(settings.get("continued"), bool):
            raise ValueError(f"its format is {settings.get('format')!r:.40}")
    return settings


@contextmanager
def wrap_read_errors(folder: Path) -> Iterator[None]:
    """A context manager that converts errors of a missing or invalid file into an InputError that names the folder."""
    try:
        yield
    except LingBotError:
        raise
    except (OSError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{folder}: not a walk that was kept ({reason}); expected a folder with {SETTINGS_FILE}"
        ) from error
