"""The engine's door for Python: the size of a video, and from conditioning to latent."""

from .geometry import Geometry, explicit_geometry, output_geometry
from .headless.two_experts import sample

__all__ = ["Geometry", "explicit_geometry", "output_geometry", "sample"]
