"""What users are told about a path before the model gets it."""

import re

import numpy as np
import pytest
from lingbot_world.camera import begin_track, camera_embedding, continue_track
from lingbot_world.camera.advice import hints, lens_warnings, motion, motion_warnings, warnings
from lingbot_world.camera.formats.numpy_files import write_lingbot
from lingbot_world.camera.moves import PRESETS, path_from_keys, preset_path
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.camera.rotation import OPENGL_TO_OPENCV, inverse
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.plan import make_plan


def told(path: CameraPath, frames: int = 81) -> str:
    return " ".join(warnings(path, frames))


def test_a_gentle_orbit_with_easing_needs_no_words():
    assert warnings(preset_path("orbit_left", easing="ease_in_out"), 81) == []


def test_an_even_speed_cancels_and_easing_it_does_not():
    slow, fast = preset_path("dolly_in", amount=1), preset_path("dolly_in", amount=9)
    assert hints(slow, 81)[0].startswith("Even speed")
    assert told(slow) == ""  # a hint, no warning: the editor's own default moves like that
    one, other = (camera_embedding(p.c2w, p.intrinsics, frames=81, height=16, width=16) for p in (slow, fast))
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert hints(preset_path("dolly_in", easing="ease_in"), 81) == hints(preset_path("pan_left"), 81) == []


def test_a_standing_camera():
    assert "does not move" in told(preset_path("static"))
    assert "does not move" not in told(preset_path("pan_left"))
    assert motion_warnings(np.eye(4)[None]) == []  # one latent frame has no step


def test_a_jump_is_placed_in_time():
    c2w = preset_path("dolly_in").c2w.copy()
    c2w[42:, 0, 3] += 5
    assert "Jump between frames 40 and 44" in told(CameraPath(c2w, lens_from_fov()))


def test_a_turn_faster_than_the_official_paths():
    assert "Fast turn: 45 degrees between frames" in told(preset_path("pan_right", amount=180, frames=17), 17)
    assert "Fast turn" not in told(preset_path("pan_right", amount=180))


def test_lengths():
    path = preset_path("orbit_left", frames=49)
    assert "49 poses make 49 frames, not 81" in told(path)
    assert "first 17 of 49" in told(path, 17)
    assert "at least 5" in told(path[:3])


def test_a_lens_that_zooms():
    path = preset_path("orbit_left")
    lens = path.intrinsics * np.linspace(1, 1.5, 81)[:, None]
    assert "lens varies by 50.0%" in told(CameraPath(path.c2w, lens))


@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_at_its_defaults_is_more_than_the_model_can_follow(name):
    said = told(preset_path(name))
    assert "Jump" not in said
    assert "Fast" not in said


def test_motion_is_from_latent_frame_to_latent_frame():
    steps, turns_deg = motion(preset_path("pan_left", amount=40, frames=17), 17)
    np.testing.assert_allclose(turns_deg, [10] * 4)
    np.testing.assert_array_equal(steps, [0] * 4)


def jumping() -> CameraPath:
    c2w = preset_path("dolly_in").c2w.copy()
    c2w[42:, 0, 3] += 5
    return CameraPath(c2w, lens_from_fov())


@pytest.mark.parametrize(
    ("lens", "said"),
    [
        ([0.6, 1, 0.5, 0.5], "in fractions of the image.*: 499.2, 480, 416, 240"),
        ([2400, 2430, 1920, 1080], "numbers are for 3840x2160, it seems, and would be 520, 540, 416, 240 at 832x480"),
        ([500, 500, 320, 240], "numbers are for 640x480"),
        ([500, 500, 0, 0], "centre 0, 0 is far from the middle"),
        ([30, 30, 416, 240], "field of view is 172 degrees"),
        ([1e5, 1e5, 416, 240], r"field of view is 0\.477 degrees"),
        ([505, 505, 420, 236], None),
    ],
)
def test_a_lens_that_cannot_be_is_told_with_what_it_may_have_been(lens, said):
    (found, *more) = lens_warnings(np.array(lens, dtype=float)) or [None]
    assert not more
    assert re.search(said, found) if said else found is None
    path = preset_path("orbit_left")
    assert warnings(CameraPath(path.c2w, np.array(lens, dtype=float)), 81) == ([found] if said else [])


WALK = path_from_keys("w-8,wl-12,w-60").c2w.copy()
WALK[:, :3, 3] += 3, 1, -4


@pytest.mark.parametrize("model", [".", "lingbot_world_fast"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        (jumping(), "Jump between frames"),
        (preset_path("static"), "The camera does not move"),
        (CameraPath(jumping().c2w, np.array([0.6, 1, 0.5, 0.5])), "in fractions of the image"),
        (CameraPath(WALK @ OPENGL_TO_OPENCV, lens_from_fov()), "try the convention opengl_c2w"),
        (CameraPath(inverse(WALK), lens_from_fov()), "try the convention opencv_w2c"),
    ],
    ids=["jump", "static", "lens", "axes", "world to camera"],
)
def test_a_run_says_of_its_path_what_a_preview_says(path, said, model, toy_package, tmp_path):
    """A causal run's latent frames are taken at other distances: its numbers may differ."""
    write_lingbot(path, tmp_path / "path")
    plan = make_plan(
        GenerateOptions(
            ckpt_dir=toy_package / model,
            image=toy_package / "example/image.png",
            prompt="A room.",
            output=tmp_path / "a.mp4",
            action_path=tmp_path / "path",
            width=48,
            height=32,
            device="cpu",
        )
    )
    assert said in " ".join(plan.notes)
    assert ("try the convention" in " ".join(plan.notes)) == ("convention" in said)
    if model == "." and "convention" not in said:
        assert list(plan.notes) == warnings(path, 81)


def test_a_path_that_goes_on_is_looked_at_from_its_first_step():
    poses = preset_path("pan_left", frames=13, amount=0.1).c2w.copy()
    poses[1:, 0, 3] += 5
    first = begin_track(preset_path("dolly_in", frames=9, amount=20).c2w, None, 9, 3)
    after = continue_track(poses, first.lens, 13, 3, before=first.world[-1], scale=first.scale)
    assert any(note.startswith("Jump between frames 0 and 4: all of the movement") for note in after.notes)
