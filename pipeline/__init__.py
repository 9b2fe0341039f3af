"""The functions of the engine for Python programs: the size of a video, and sampling of its latent.

`sample` runs the two experts of the base model. `rollout` runs a causal model (LingBot-World Fast or 2.0), which
generates the video chunk by chunk. `rollout_guided` runs a causal-pretrain model. A program that receives the camera
path while the video is being generated uses `World`.

Each name is imported on first use, because ComfyUI's nodes need only the sizes when ComfyUI starts.
"""

from typing import TYPE_CHECKING

from ..errors import on_first_use
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

__getattr__ = on_first_use(
    __name__,
    chunk_loop="rollout rollout_guided",
    geometry="Geometry explicit_geometry output_geometry",
    two_experts="sample",
    world="World",
)
