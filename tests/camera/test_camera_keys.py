"""Key scripts, against the official act2cam."""

import json

import numpy as np
import pytest
from lingbot_world.camera import actions_from_keys, poses_from_keys
from lingbot_world.camera.moves.keys import held_keys, path_from_keys
from lingbot_world.camera.path import CameraPath
from lingbot_world.errors import CameraError


def test_golden(golden):
    cases = json.loads((golden / "keys" / "manifest.json").read_text())
    with np.load(golden / "keys" / "keys.npz") as expected:
        for case in cases:
            name, script = case["name"], case["script"]
            np.testing.assert_allclose(poses_from_keys(script), expected[f"{name}/poses"], atol=1e-9)
            np.testing.assert_array_equal(actions_from_keys(script), expected[f"{name}/wasd"])
            np.testing.assert_array_equal(held_keys(script)[:, 4:], expected[f"{name}/ijkl"])
    assert len(cases) >= 5


def test_spaces_and_capitals_do_not_matter():
    np.testing.assert_array_equal(poses_from_keys(" W-10, iW-15 "), poses_from_keys("w-10,iw-15"))


def test_step_and_turn_scale_the_path():
    np.testing.assert_allclose(poses_from_keys("w-9", step=0.1)[-1, :3, 3], [0, 0, 0.9], atol=1e-5)
    np.testing.assert_allclose(poses_from_keys("l-9", turn_deg=10)[-1, :3, 2], [1, 0, 0], atol=1e-12)


@pytest.mark.parametrize("script", ["", "w", "w-", "x-10", "w-10;s-5", "w--3", "w-0", "nonew-4", "w-999999", "w-1.5"])
def test_unreadable_scripts_are_refused(script):
    with pytest.raises(CameraError, match="key script"):
        poses_from_keys(script)


def test_a_key_path_has_the_official_latent_times_and_its_actions(golden):
    """The official pipeline samples frames + 1 poses at linspace(0, frames, f)."""
    script = "w-10,iw-15,none-10"
    path, poses = path_from_keys(script), poses_from_keys(script)
    assert len(path) == 37
    whole = CameraPath(poses, path.intrinsics[0])
    np.testing.assert_allclose(path.c2w[::4], whole.at(np.linspace(0, 37, 10)).c2w, atol=1e-12)
    np.testing.assert_array_equal(path.actions, actions_from_keys(script))


def test_actions_follow_cuts_and_joins():
    a, b = path_from_keys("w-5"), path_from_keys("s-5")
    np.testing.assert_array_equal((a + b).actions[:, :3].argmax(1), [0] * 4 + [2] * 5)
    np.testing.assert_array_equal((a + b)[4:].actions, b.actions)
    assert (a + CameraPath(b.c2w, b.intrinsics)).actions is None
    with pytest.raises(CameraError, match="actions"):
        CameraPath(a.c2w, a.intrinsics, actions=a.actions[:3])
