"""Walks: videos of a causal model that a user steers by keys, mouse and gamepad while they are generated.

A `Session` runs walks. An `Engine` provides the model, the text encoder and the VAE. This package needs neither ComfyUI
nor, except in `wire`, aiohttp.
"""

from .controls import Controls
from .engine import Engine, Start
from .folder.reading import load_walk
from .session import Session
from .shown.frames import Frames, Receipt

__all__ = ["Controls", "Engine", "Frames", "Receipt", "Session", "Start", "load_walk"]
