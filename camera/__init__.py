"""Camera paths: building, reading, checking, drawing, and the model's camera input. Importing this package does not
import torch."""

from typing import TYPE_CHECKING

from ..errors import on_first_use
from .moves import actions_from_keys, poses_from_keys
from .pose_folder import load_poses, read_pose_folder
from .poses import check_intrinsics, check_poses, frame_count

if TYPE_CHECKING:
    from .plucker import (
        action_embedding,
        camera_embedding,
        continued_poses,
        latent_poses,
        longest_step,
        model_poses,
        pose_embedding,
    )
    from .track import CameraTrack, begin_track, continue_track

__all__ = [
    "CameraTrack",
    "action_embedding",
    "actions_from_keys",
    "begin_track",
    "camera_embedding",
    "check_intrinsics",
    "check_poses",
    "continue_track",
    "continued_poses",
    "frame_count",
    "latent_poses",
    "load_poses",
    "longest_step",
    "model_poses",
    "pose_embedding",
    "poses_from_keys",
    "read_pose_folder",
]

__getattr__ = on_first_use(
    __name__,
    plucker="action_embedding camera_embedding continued_poses latent_poses longest_step model_poses pose_embedding",
    track="CameraTrack begin_track continue_track",
)
