"""The engine's functions for Python programs: the size of a video, and from conditioning to latent.

`sample` runs the two experts of the base model. `rollout` runs a causal model (LingBot-World Fast or 2.0), which makes
the video chunk by chunk, and `rollout_guided` one of causal-pretrain. A program that learns of the camera path only
while the video is made uses `World`.
"""

from ..options import CHUNK
from .geometry import Geometry, explicit_geometry, output_geometry
from .rollout import rollout, rollout_guided
from .two_experts import sample
from .world import World

__all__ = [
    "CHUNK", "Geometry", "World", "explicit_geometry", "output_geometry", "rollout", "rollout_guided", "sample",
]  # fmt: skip
