"""Key scripts, against the official act2cam."""

import json

import numpy as np
import pytest
from lingbot_world.camera import actions_from_keys, poses_from_keys
from lingbot_world.camera.keys import held_keys
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
