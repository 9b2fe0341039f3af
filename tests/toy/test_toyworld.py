"""The trained toy on rooms and paths that it has not seen: does the camera move as asked, and how good is the picture.

TOYWORLD_CASES=60 makes more videos, 12 one for each move; without it each kind of move is made once. TOYWORLD_8_BITS=12
makes more in 8 bits.
With -s the figures are printed; docs/quality.md has them, and what these weights do not reach."""

import os

import numpy as np
import pytest
import torch
from lingbot_world.camera import camera_embedding
from lingbot_world.loaders import load_expert
from lingbot_world.pipeline import sample
from lingbot_world.pipeline.geometry import image_conditioning
from lingbot_world.sampling import StepReuse
from lingbot_world.tools.toyworld.paths import FRAMES
from lingbot_world.tools.toyworld.render import HEIGHT, LENS, WIDTH
from lingbot_world.toy import write_toy_world
from lingbot_world.vae import decode_latent, encode_first_frame
from toy_rooms import FOLLOWS, SHOWN, Rooms, decibels, stopped, turned_back

SHIFT, STEPS = 5.0, 8
CASES = int(os.environ.get("TOYWORLD_CASES", "6"))
IN_8_BITS = [("fp8", "exact"), ("int8", "exact"), ("bf16", "8bit"), ("fp8", "8bit"), ("int8", "8bit")]
"""Arithmetic and attention; the suite tries the last two alone, on one video."""

pytestmark = pytest.mark.slow


class World(Rooms):
    """The package's parts, loaded once, and rooms that no training has seen."""

    def __init__(self, folder):
        super().__init__(folder, CASES)
        self.high, self.low = (
            load_expert(folder / f"{name}_noise_model_bnb_nf4", dtype=torch.float32) for name in ("high", "low")
        )
        self.latents = [encode_first_frame(self.vae, truth[0], FRAMES) for truth in self.truth]

    def video(self, case, experts=None, steps=STEPS, reuse=None):
        """A case's video [shown, 3, h, w], -1 to 1, by the engine."""
        high, low = experts or (self.high, self.low)
        latent = self.latents[case]
        y = image_conditioning(latent)
        camera = camera_embedding(self.paths[case], LENS, frames=FRAMES, height=HEIGHT, width=WIDTH)
        noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(case))
        made = sample(
            high,
            low,
            noise,
            y,
            self.prompts[case][None],
            None,
            camera,
            steps=steps,
            shift=SHIFT,
            guide_scale=1.0,
            step_reuse=reuse,
            camera_cache_bytes=2**30,
        )
        frames = decode_latent(self.vae, made)[SHOWN]
        return frames.permute(0, 3, 1, 2).float() / 127.5 - 1


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, threads))
    yield World(write_toy_world(tmp_path_factory.mktemp("world")))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def videos(world):
    return [world.video(case) for case in range(CASES)]


def said(world, name, values):
    """Prints the mean of the cases' values and of each move's."""
    of = {
        move: np.mean([value for value, at in zip(values, world.moves, strict=True) if at == move])
        for move in dict.fromkeys(world.moves)
    }
    print(f"\n{name}: {np.mean(values):.2f};", ", ".join(f"{move} {value:.2f}" for move, value in of.items()))


def test_the_first_frame_is_the_given_image(world, videos):
    got = [decibels(video[0], truth[0]) for video, truth in zip(videos, world.truth, strict=True)]
    said(world, "first frame, dB", got)
    assert np.mean(got) >= 28, got


def test_later_frames_are_nearer_to_the_truth_than_the_first_frame_is(world, videos):
    gain = [
        decibels(video[3:], truth[3:]) - decibels(truth[:1].expand_as(truth[3:]), truth[3:])
        for video, truth in zip(videos, world.truth, strict=True)
    ]
    said(world, "later frames over the first frame copied, dB", gain)
    assert np.mean(gain) >= 6, gain


def test_the_camera_moves_as_asked_and_not_as_others_are(world, videos):
    own = [world.agreement(case, video, case) for case, video in enumerate(videos)]
    others = [world.agreement(case, video, (case + 4) % CASES) for case, video in enumerate(videos)]
    follows = [world.follows(case, video) for case, video in enumerate(videos)]
    said(world, "agreement of motion", own)
    said(world, "follows its path", follows)
    said(world, "follows another's path", np.array(others) > FOLLOWS)
    print(f"agreement from {min(own):.2f} to {max(own):.2f}, with another's at most {max(others):.2f}")
    assert np.mean(follows) >= 0.95, [*zip(world.moves, own, follows, strict=True)]
    assert np.mean(np.array(others) > FOLLOWS) <= 0.1


@pytest.mark.parametrize("spoilt", [stopped, turned_back])
def test_a_video_that_follows_half_of_its_path_does_not_follow_it(world, videos, spoilt):
    assert not any(world.follows(case, spoilt(video)) for case, video in enumerate(videos))


def test_one_expert_alone_is_worse_than_both(world, videos):
    """In one room of thirteen, in the mean."""
    cases = range(0, CASES, 13)
    both = np.mean([decibels(videos[case], world.truth[case]) for case in cases])
    for expert in (world.high, world.low):
        alone = [decibels(world.video(case, (expert, expert)), world.truth[case]) for case in cases]
        assert np.mean(alone) < both


def test_a_third_of_the_steps_can_go_without_the_model(world):
    reuse = StepReuse(0.04)
    made, full = world.video(0, steps=16, reuse=reuse), world.video(0, steps=16)
    assert 16 / reuse.calls >= 1.5
    assert decibels(made, full) >= 40


@pytest.mark.parametrize(("arithmetic", "attention"), IN_8_BITS if "TOYWORLD_8_BITS" in os.environ else IN_8_BITS[-2:])
def test_8_bits_cost_little(world, videos, arithmetic, attention):
    cases = range(int(os.environ.get("TOYWORLD_8_BITS", "1")))
    for expert in (world.high, world.low):
        expert.set_arithmetic(arithmetic)
        expert.set_attention(attention)
    try:
        made = [world.video(case) for case in cases]
    finally:
        for expert in (world.high, world.low):
            expert.set_arithmetic("auto")
            expert.set_attention("auto")
    lost = [
        decibels(videos[case][3:], world.truth[case][3:]) - decibels(video[3:], world.truth[case][3:])
        for case, video in zip(cases, made, strict=True)
    ]
    agreed = [world.agreement(case, video, case) for case, video in zip(cases, made, strict=True)]
    away = [decibels(video[3:], videos[case][3:]) for case, video in zip(cases, made, strict=True)]
    print(
        f"\n{arithmetic}, attention {attention}: {np.mean(lost):.2f} dB lost (at most {max(lost):.2f}), "
        f"{np.mean(away):.1f} dB from the video without, agreement {np.mean(agreed):.2f}"
    )
    assert np.mean(lost) < 0.3, lost
    assert np.mean(away) > 30, away
    assert all(world.follows(case, video) for case, video in zip(cases, made, strict=True)), agreed
