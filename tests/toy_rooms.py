"""Rooms and paths that no training of the toy has seen, and how a video of them is judged."""

import numpy as np
import torch
from flow_cases import agreement
from lingbot_world.camera.moves.presets import preset_path
from lingbot_world.text import encode
from lingbot_world.tools.toyworld.paths import FRAMES, STEP
from lingbot_world.tools.toyworld.render import render
from lingbot_world.tools.toyworld.rooms import scenes_around
from lingbot_world.vae import load_vae

TRAVEL = 8 * STEP
MOVES = {
    "pan_left": 25.0,
    "truck_right": TRAVEL,
    "tilt_up": 15.0,
    "dolly_in": TRAVEL,
    "roll_clockwise": 20.0,
    "pedestal_up": TRAVEL,
    "pan_right": 25.0,
    "truck_left": TRAVEL,
    "tilt_down": 15.0,
    "dolly_out": TRAVEL,
    "roll_counterclockwise": 20.0,
    "pedestal_down": TRAVEL,
}
"""A preset, and how far it goes."""
SHOWN = [0, 4, 8, 12, 16, 24, 32]
"""The frames that are compared with the renderer's."""
HALVES = [(0, 2), (1, 3), (2, 4)], [(4, 5), (5, 6)]
"""Pairs of these, 8 frames apart, between which motion is estimated: of a video's first half and of its second."""
FOLLOWS = 0.3
"""Agreement of motion from which a video counts as following its path, in each half."""


class Rooms:
    """A package, and a room with a path for each case: the moves in turn."""

    def __init__(self, folder, cases):
        self.folder = folder
        self.vae = load_vae(folder / "Wan2.1_VAE.pth")
        self.moves = [list(MOVES)[case % len(MOVES)] for case in range(cases)]
        self.paths = [preset_path(move, frames=FRAMES, amount=MOVES[move]).c2w for move in self.moves]
        poses = torch.tensor(np.stack(self.paths)).float()
        self.scenes = scenes_around(poses, torch.Generator().manual_seed(2_000_000_011))
        self.prompts = encode(self.scenes.rooms.captions(), folder / "models_t5_umt5-xxl-enc-bf16.pth", folder)
        self.truth = torch.cat(
            [
                render(self.scenes.rooms[case : case + 1], self.scenes.c2w[case : case + 1, SHOWN])
                for case in range(cases)
            ]
        )

    def agreement(self, case, video, path_of, pairs=(*HALVES[0], *HALVES[1])):
        """How far a case's video moves as the path of case `path_of` would have it: 1 in full, 0 not at all."""
        start, other = self.scenes.c2w[case, :1], self.scenes.c2w[path_of]
        poses = start @ torch.linalg.inv(other[:1]) @ other
        return agreement(video, self.scenes.rooms[case : case + 1], poses[SHOWN], pairs)

    def follows(self, case, video):
        """Whether a case's video moves as its path has it: in its second half too, where it could stop or turn back."""
        return all(self.agreement(case, video, case, pairs) > FOLLOWS for pairs in HALVES)


def stopped(video):
    """The shown frames of a video that stays as it is from its middle on."""
    return torch.cat([video[:5], video[4:5], video[4:5]])


def turned_back(video):
    """The shown frames of a video that goes back the way of its first half: frame 24 is frame 8, frame 32 the first."""
    return torch.cat([video[:5], video[2:3], video[:1]])


def decibels(pictures, truth):
    """PSNR of pictures -1 to 1."""
    return -10 * torch.log10(((pictures - truth) / 2).square().mean()).item()
