"""For Python programs: the size of a video, and the sampling run from conditioning to latent."""

from .geometry import Geometry, explicit_geometry, output_geometry
from .headless.two_experts import sample

__all__ = ["Geometry", "explicit_geometry", "output_geometry", "sample"]
