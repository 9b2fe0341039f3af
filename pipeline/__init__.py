"""The public functions that compute a video's size and sample its latent."""

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
