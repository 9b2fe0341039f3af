"""Ways to make a camera path: preset moves, keys, keyframes, and the state of the editor on the canvas."""

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
