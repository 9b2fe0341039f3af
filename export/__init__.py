"""Export of a walk or a video as a scene for 3D programs: the sharpest frames with exact poses and lens."""

from .scene import FORMATS, Exported, export_scene

__all__ = ["FORMATS", "Exported", "export_scene"]
