"""The list of saved walks, and the deletion of old ones."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...live.folder.settings import CAMERA, SETTINGS_FILE, read_settings, saved_walks
from ...options import FPS
from ...outputs import is_locked

WALK_FILES = (
    "walk.json*",
    "walk.state*",
    "walk.mp4*",
    "walk.preview.mp4*",
    "latent.f32",
    "steps.f64",
    "poses.f64",
    "inputs.jsonl",
    "prompt.*.safetensors",
    "start.safetensors",
    "before.state*",
    "camera/poses.npy",
    "camera/intrinsics.npy",
)
"""The patterns of a walk's files. Other files in a walk's folder are never deleted."""


def list_walks(folder: Path) -> list[dict[str, Any]]:
    """Return the saved walks in `folder` as JSON values, the newest first: name, local time, seconds, prompt and
    megabytes."""
    return [_facts(walk) for walk in reversed(saved_walks(folder))]


def describe_walks(folder: Path) -> str:
    """Return a line of text for each saved walk, the newest first, and their number."""
    rows = list_walks(folder)
    lines = [
        f"{row['name']:10} {row['time']} {row['seconds']:7.1f} s {row['megabytes']:8.1f} MB  {row['prompt'][:60]}"
        for row in rows
    ]
    return "\n".join([*lines, f"{len(rows)} walks in {folder}"])


def clear_walks(folder: Path, keep: int, used: Iterable[Path] = ()) -> list[str]:
    """Delete the saved walks in `folder`, except the newest `keep` walks, running walks, and walks with a folder or
    file in `used`. Return each deleted walk's name, with a note if other files in its folder stay."""
    walks, spared = saved_walks(folder), [place for path in used for place in (path.resolve(), path.resolve().parent)]
    old = walks[: max(0, len(walks) - keep)]
    removed = [walk for walk in old if walk.resolve() not in spared and not is_locked(walk / SETTINGS_FILE)]
    return [walk.name if _remove(walk) else f"{walk.name} (other files in it stay)" for walk in removed]


def _remove(walk: Path) -> bool:
    """Delete a walk's files and empty folders. If the walk is a symbolic link, delete only the link. Return whether the
    path is gone."""
    try:
        if walk.is_symlink():
            walk.unlink()
            return True
        for file in sorted(
            (file for pattern in WALK_FILES for file in walk.glob(pattern)), key=lambda file: file.name == SETTINGS_FILE
        ):
            file.unlink()  # the settings file last: until then the walk is listed
        for folder in (walk / CAMERA, walk):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise InputError(f"the walk {walk} cannot be removed: {error.strerror}") from error
    return not walk.exists()


def _facts(walk: Path) -> dict[str, Any]:
    try:
        settings = read_settings(walk)
        prompt, cells = str(settings["prompts"][-1]["text"]), settings["cells"]
        frames = 4 * (walk / "latent.f32").stat().st_size // (64 * cells[0] * cells[1])
    except (OSError, KeyError, TypeError, ValueError, IndexError, ArithmeticError):
        prompt, frames = f"({SETTINGS_FILE} cannot be read)", 0
    return {
        "name": walk.name,
        "time": datetime.fromtimestamp((walk / SETTINGS_FILE).stat().st_mtime).strftime("%Y-%m-%d %H:%M"),
        "seconds": round(frames / FPS, 1),
        "prompt": prompt,
        "megabytes": round(sum(file.stat().st_size for file in walk.rglob("*") if file.is_file()) / 1e6, 1),
    }
