"""The editor's saved state: what it means and what is refused. The JavaScript tests read the same cases."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from lingbot_world.camera.easing import EASINGS, apply_easing
from lingbot_world.camera.moves import PRESETS, path_from_editor, preset_path
from lingbot_world.camera.rotation import from_quaternions
from lingbot_world.errors import CameraError

CASES = json.loads((Path(__file__).parents[1] / "data" / "editor_cases.json").read_text())


def named(cases):
    return [pytest.param(case, id=case["name"]) for case in cases]


@pytest.mark.parametrize("case", named(CASES["paths"]))
@pytest.mark.parametrize("form", [json.dumps, dict])
def test_states_mean_what_was_worked_out_by_hand(case, form):
    path = path_from_editor(form(case["state"]))
    assert len(path) == case["state"]["frames"]
    for pose in case["poses"]:
        np.testing.assert_allclose(path.positions[pose["frame"]], pose["position"], atol=1e-9)
        np.testing.assert_allclose(path.rotations[pose["frame"]], from_quaternions(pose["quaternion"]), atol=1e-9)


def test_easings_by_hand():
    table = CASES["easings"]
    assert set(table["progress"]) == set(EASINGS)
    for name, progress in table["progress"].items():
        np.testing.assert_allclose(apply_easing(name, np.array(table["times"])), progress, atol=1e-12)


@pytest.mark.parametrize("case", named(CASES["refused"]))
def test_bad_states_are_refused_by_name(case):
    with pytest.raises(CameraError, match=case["names"]):
        path_from_editor(case["state"])


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "list, expected an object"),
        (" " * 2_000_000, "characters"),
        ('{"version": 1, "frames": 9, "keyframes": [{"frame": 0, "position": [NaN, 0, 0]}]}', "keyframe 0"),
    ],
)
def test_text_that_is_no_state_is_refused(state, complaint):
    with pytest.raises(CameraError, match=complaint):
        path_from_editor(state)


def test_too_many_keyframes_are_refused():
    keyframes = [{"frame": i, "position": [0, 0, 0], "quaternion": [0, 0, 0, 1]} for i in range(1001)]
    with pytest.raises(CameraError, match="1001"):
        path_from_editor({"version": 1, "frames": 2001, "keyframes": keyframes})


def test_defaults_are_the_official_lens_and_a_linear_move():
    path = path_from_editor(
        {"version": 1, "frames": 5, "keyframes": [{"frame": 0, "position": [0, 0, 0], "quaternion": [0, 0, 0, 1]}]}
    )
    assert path.fov_deg == pytest.approx(79)
    assert path.fps == 16


PRINT_PRESETS = """
import { PRESETS, withPreset } from "./web/js/path/presets.js";
const keyframes = [{ frame: 0, position: [0, 0, 0], quaternion: [0, 0, 0, 1] }];
const state = { version: 1, frames: 81, fps: 16, fov_deg: 79, ease: "linear", loop: false, keyframes };
console.log(JSON.stringify(Object.fromEntries(Object.keys(PRESETS).map((name) => [name, withPreset(state, name)]))));
"""


def test_the_editors_presets_are_those_of_the_preset_node():
    if shutil.which("node") is None:
        pytest.skip("node is not installed: the camera editor's presets are not compared")
    command = ["node", "--input-type=module", "--eval", PRINT_PRESETS]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    documents = json.loads(done.stdout)
    assert set(documents) == set(PRESETS) - {"handheld"}  # a shake is no matter of keyframes
    for name, document in documents.items():
        drawn, made = path_from_editor(document), preset_path(name, frames=81)
        assert np.abs(drawn.positions - made.positions).max() < 0.0101, name
        turned = np.trace(drawn.rotations.swapaxes(1, 2) @ made.rotations, axis1=1, axis2=2)
        assert np.rad2deg(np.arccos(np.clip((turned - 1) / 2, -1, 1))).max() < 0.51, name
