"""Export of a video, such as a saved walk, as a scene for 3D programs: sharp frames, their exact camera poses and
intrinsics, and sparse points. The module `points` needs torch, so it is imported only when first used."""

from typing import TYPE_CHECKING

from .scene import FORMATS, Exported, export_scene

if TYPE_CHECKING:
    from .points import Points, add_points, check_points

__all__ = ["FORMATS", "Exported", "Points", "add_points", "check_points", "export_scene"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import points

    return getattr(points, name)
