"""A world that the user walks through while it is generated: keys, mouse and stick become a camera, chunk by chunk.

`Session` runs a walk; an `Engine` provides model, text encoder and VAE. This package uses neither web nor ComfyUI."""

from .controls import Controls
from .engine import Engine, Start
from .folder.reading import load_walk
from .session import Session
from .shown.frames import Frames, Receipt

__all__ = ["Controls", "Engine", "Frames", "Receipt", "Session", "Start", "load_walk"]
