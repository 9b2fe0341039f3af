"""Camera paths: made, read, checked, drawn, and turned into what the model is conditioned on."""

from .moves.keys import actions_from_keys, poses_from_keys
from .plucker import action_embedding, camera_embedding
from .poses import check_intrinsics, check_poses, frame_count, load_poses

__all__ = [
    "action_embedding",
    "actions_from_keys",
    "camera_embedding",
    "check_intrinsics",
    "check_poses",
    "frame_count",
    "load_poses",
    "poses_from_keys",
]
