"""Export of a video, such as a saved walk, as a scene for 3D programs."""

from typing import TYPE_CHECKING

from ..errors import on_first_use
from .scene import FORMATS, Exported, export_scene

if TYPE_CHECKING:
    from .points import Points, add_points, check_points

__all__ = ["FORMATS", "Exported", "Points", "add_points", "check_points", "export_scene"]

__getattr__ = on_first_use(__name__, points="Points add_points check_points")
