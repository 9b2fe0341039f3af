"""Walks: videos of a causal model that a user steers while they are generated, by keys, mouse and gamepad.

A `Session` runs walks; an `Engine` provides model, text encoder and VAE. This package imports neither aiohttp (outside
of `wire`) nor ComfyUI."""

from .controls import Controls
from .engine import Engine, Start
from .folder.reading import load_walk
from .session import Session
from .shown.frames import Frames, Receipt

__all__ = ["Controls", "Engine", "Frames", "Receipt", "Session", "Start", "load_walk"]
