"""Builders of camera paths from preset moves, held keys, keyframes, and the camera editor's state."""

from .editor import path_from_editor
from .keyframes import path_from_load3d
from .keys import actions_from_keys, path_from_keys, poses_from_keys
from .presets import PRESETS, preset_path

__all__ = [
    "PRESETS",
    "actions_from_keys",
    "path_from_editor",
    "path_from_keys",
    "path_from_load3d",
    "poses_from_keys",
    "preset_path",
]
