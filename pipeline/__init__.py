"""The functions of the engine for Python programs: the size of a video, and sampling of its latent.

`sample` runs the two experts of the base model. `rollout` runs a causal model (LingBot-World Fast or 2.0), which
generates the video chunk by chunk. `rollout_guided` runs a causal-pretrain model. A program that receives the camera
path while the video is being generated uses `World`.

Each name is imported on first use, because ComfyUI's nodes need only the sizes when ComfyUI starts.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ..options import CHUNK

if TYPE_CHECKING:
    from .chunk_loop import rollout, rollout_guided
    from .geometry import Geometry, explicit_geometry, output_geometry
    from .two_experts import sample
    from .world import World

__all__ = [
    "CHUNK",
    "Geometry",
    "World",
    "explicit_geometry",
    "output_geometry",
    "rollout",
    "rollout_guided",
    "sample",
]

_PUBLIC = {
    "Geometry": ".geometry",
    "World": ".world",
    "explicit_geometry": ".geometry",
    "output_geometry": ".geometry",
    "rollout": ".chunk_loop",
    "rollout_guided": ".chunk_loop",
    "sample": ".two_experts",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name], __name__), name)
