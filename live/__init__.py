"""Walks: videos of a causal model that a user steers by keys, mouse and gamepad while they are generated."""

from typing import TYPE_CHECKING

from ..errors import on_first_use

if TYPE_CHECKING:
    from .controls import Controls
    from .engine import Engine, Start
    from .folder.reading import load_walk
    from .session import Session
    from .shown.frames import Frames, Receipt

__all__ = ["Controls", "Engine", "Frames", "Receipt", "Session", "Start", "load_walk"]

__getattr__ = on_first_use(
    __name__,
    controls="Controls",
    engine="Engine Start",
    session="Session",
    **{"folder.reading": "load_walk", "shown.frames": "Frames Receipt"},
)
