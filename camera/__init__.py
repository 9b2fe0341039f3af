"""Camera paths: build, read, check and draw them, and compute the model's camera input from them.

The subpackages `moves` (builders of paths), `formats` (file readers and writers) and `preview` (drawings) import the
modules of this folder, but not each other. No import goes the other way. The package `measure`, next to this one,
measures how well a video follows a path.
"""

from .moves import actions_from_keys, poses_from_keys
from .plucker import (
    action_embedding,
    camera_embedding,
    continued_poses,
    latent_poses,
    longest_step,
    model_poses,
    pose_embedding,
)
from .pose_folder import load_poses, read_pose_folder
from .poses import check_intrinsics, check_poses, frame_count
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
