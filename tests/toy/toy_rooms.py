"""Places in the maze that no training has seen, a camera move through each, and how a video of a move is judged."""

import os
from functools import cache

import numpy as np
import torch
from lingbot_world.camera.moves.presets import preset_path
from lingbot_world.text import encode
from lingbot_world.tools.toy.measure import decibels
from lingbot_world.tools.toy.paths import FRAMES, STEP
from lingbot_world.tools.toy.render import HEIGHT, WIDTH, render
from lingbot_world.tools.toy.rooms import scenes_around
from lingbot_world.vae import load_vae

MOVES = {"pan_left": 25.0, "dolly_in": 8 * STEP, "pan_right": 25.0, "truck_right": 4 * STEP, "dolly_out": 4 * STEP}
"""A preset, and how far it goes: degrees or world units over 33 frames."""
SHOWN = [0, 8, 16, 24, 32]
"""The frames that are compared with the renderer's."""
SIZE = (HEIGHT, WIDTH) if "TOY_CASES" in os.environ else (96, 160)
"""Height and width: at the package's own size a CPU takes more than twice as long."""


class Places:
    """A package, and a place with a path for each case: the moves in turn."""

    def __init__(self, folder, cases):
        self.folder = folder
        self.vae = load_vae(folder / "Wan2.1_VAE.pth")
        self.moves = [list(MOVES)[case % len(MOVES)] for case in range(cases)]
        self.paths = [path_of(move) for move in self.moves]
        poses = torch.tensor(np.stack(self.paths)).float()
        self.scenes = scenes_around(poses, torch.Generator().manual_seed(2_000_000_011))
        self.prompts = encode(self.scenes.rooms.captions(), folder / "models_t5_umt5-xxl-enc-bf16.pth", folder)
        self.truth = render(self.scenes.rooms, self.scenes.c2w[:, SHOWN], *SIZE)
        self.moved = cache(self._moved)

    def gain(self, case, video):
        """Decibels of the later frames over those of the first frame copied."""
        truth = self.truth[case]
        return decibels(video[1:], truth[1:]) - decibels(truth[:1].expand_as(truth[1:]), truth[1:])

    def _moved(self, case):
        """The renderer's frames of every move from a case's place, walls or not."""
        start = self.scenes.c2w[case, :1]
        poses = torch.stack([start @ torch.tensor(path_of(move)).float()[SHOWN] for move in MOVES])
        return dict(zip(MOVES, render(self.scenes.rooms[[case] * len(MOVES)], poses, *SIZE), strict=True))

    def nearest(self, case, video):
        """The move of which the renderer's frames from a case's place are nearest to a video's."""
        seen = self.moved(case)
        return max(seen, key=lambda move: decibels(video[1:], seen[move][1:]))


def path_of(move):
    """Poses [33, 4, 4] of a move."""
    return preset_path(move, frames=FRAMES, amount=MOVES[move]).c2w
