"""What users are told about a path before the model gets it."""

import numpy as np
import pytest
from lingbot_world.camera import camera_embedding
from lingbot_world.camera.moves import PRESETS, preset_path
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.camera.preview.advice import hints, motion, warnings


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
