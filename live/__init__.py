"""Walks: videos of a causal model that a user steers by keys, mouse and gamepad while they are generated. A `Session`
makes the video of a walk with the model, text encoder and VAE of an `Engine`. This package needs neither ComfyUI nor,
except in `wire`, aiohttp. Names are imported on first use, so that listing saved walks needs no torch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .controls import Controls
    from .engine import Engine, Start
    from .folder.reading import load_walk
    from .session import Session
    from .shown.frames import Frames, Receipt

__all__ = ["Controls", "Engine", "Frames", "Receipt", "Session", "Start", "load_walk"]

_PUBLIC = {
    "Controls": ".controls",
    "Engine": ".engine",
    "Frames": ".shown.frames",
    "Receipt": ".shown.frames",
    "Session": ".session",
    "Start": ".engine",
    "load_walk": ".folder.reading",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name], __name__), name)
