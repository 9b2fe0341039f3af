"""Export of a walk or a video as a scene for 3D programs. A scene has the sharpest frames, their exact camera poses and
intrinsics, and sparse points."""

from .points import Points, add_points, check_points
from .scene import FORMATS, Exported, export_scene

__all__ = ["FORMATS", "Exported", "Points", "add_points", "check_points", "export_scene"]
