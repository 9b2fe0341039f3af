"""The toy's base experts in the maze: the camera moves as asked, and savings cost little.

TOY_CASES=5 makes a video of each move at the package's own size; with -s the figures are printed."""

import os

import numpy as np
import pytest
import torch
from lingbot_world.camera import camera_embedding
from lingbot_world.loaders import load_expert
from lingbot_world.pipeline import sample
from lingbot_world.pipeline.geometry import image_conditioning
from lingbot_world.sampling import StepReuse
from lingbot_world.tools.toy.measure import decibels
from lingbot_world.tools.toy.paths import FRAMES
from lingbot_world.tools.toy.render import LENS
from lingbot_world.toy.package import EXPERTS
from lingbot_world.vae import decode_latent, encode_first_frame
from toy_rooms import MOVES, SHOWN, SIZE, Places

STEPS, CASES = 4, int(os.environ.get("TOY_CASES", "2"))

pytestmark = pytest.mark.slow


class World(Places):
    """The package's experts, loaded once."""

    def __init__(self, folder):
        super().__init__(folder, CASES)
        self.experts = [load_expert(folder / name, dtype=torch.float32) for name in EXPERTS]

    def video(self, case, steps=STEPS, reuse=None, frames=FRAMES):
        """A case's video [shown, 3, h, w], -1 to 1, by the engine."""
        latent = encode_first_frame(self.vae, self.truth[case, 0], frames)
        camera = camera_embedding(self.paths[case][:frames], LENS, frames=frames, height=SIZE[0], width=SIZE[1])
        noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(case))
        given = noise, image_conditioning(latent), self.prompts[case][None], None, camera
        made = sample(*self.experts, *given, steps=steps, shift=5.0, guide_scale=1.0, step_reuse=reuse)
        return (
            decode_latent(self.vae, made)[[at for at in SHOWN if at < frames]].permute(0, 3, 1, 2).float() / 127.5 - 1
        )


@pytest.fixture(scope="module")
def world(toy_world):
    return World(toy_world)


@pytest.fixture(scope="module")
def videos(world):
    return [world.video(case) for case in range(CASES)]


def test_the_first_frame_is_the_given_image(world, videos):
    got = [decibels(video[0], truth[0]) for video, truth in zip(videos, world.truth, strict=True)]
    print("\nfirst frame, dB:", np.round(got, 1))
    assert np.mean(got) >= 28, got


def test_the_camera_moves_as_asked_and_not_otherwise(world, videos):
    gains = [world.gain(case, video) for case, video in enumerate(videos)]
    print("\nlater frames over the first frame copied, dB:", np.round(gains, 1))
    assert np.mean(gains) >= 3, gains
    assert [world.nearest(case, video) for case, video in enumerate(videos)] == world.moves


def test_the_judge_tells_every_move_from_the_others(world):
    assert [world.nearest(0, video) for video in world.moved(0).values()] == list(MOVES)
    assert world.gain(0, world.truth[0, :1].expand_as(world.truth[0])) == 0


def test_some_of_the_steps_can_go_without_the_model(world):
    reuse = StepReuse(0.04)
    made, full = world.video(0, 12, reuse, frames=9), world.video(0, 12, frames=9)
    print(f"\n{reuse.calls} of 12 calls, {decibels(made, full):.1f} dB from all")
    assert reuse.calls <= 10
    assert decibels(made, full) >= 40


@pytest.mark.parametrize(("arithmetic", "attention"), [("int8", "8bit")])
def test_8_bits_cost_little(world, videos, arithmetic, attention):
    for expert in world.experts:
        expert.set_arithmetic(arithmetic)
        expert.set_attention(attention)
    try:
        made = world.video(0)
    finally:
        for expert in world.experts:
            expert.set_arithmetic("auto")
            expert.set_attention("auto")
    lost = world.gain(0, videos[0]) - world.gain(0, made)
    print(f"\n{arithmetic}, attention {attention}: {lost:.2f} dB lost, {decibels(made, videos[0]):.1f} dB away")
    assert lost < 0.6
    assert world.nearest(0, made) == world.moves[0]
