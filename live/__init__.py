"""A world that is walked through while it is made: keys, mouse and stick become a camera, chunk by chunk.

`Session` walks; an `Engine` is what it needs of a model, text encoder and VAE. No web, no ComfyUI."""

from .controls import Controls
from .engine import Engine, Start
from .kept import load_walk
from .session import Session
from .walk import Frames

__all__ = ["Controls", "Engine", "Frames", "Session", "Start", "load_walk"]
