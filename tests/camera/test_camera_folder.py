"""Pose folders: every front reads them by one rule. The node's half is in test_host_camera.py."""

from pathlib import Path

import numpy as np
import pytest
from lingbot_world.camera import load_poses, poses_from_keys, read_pose_folder
from lingbot_world.camera.path import lens_from_fov
from lingbot_world.errors import CameraError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.plan import GenerateOptions, make_plan

SEVEN_ROWS = "intrinsics.npy has 7 rows for 81 poses: the first row is used for all of them."


def folder(path: Path, n_poses: int = 81, n_lens: int = 7, n_actions: int | None = None) -> Path:
    path.mkdir(exist_ok=True)
    np.save(path / "poses.npy", poses_from_keys(f"wl-{n_poses}")[:n_poses])
    np.save(path / "intrinsics.npy", np.tile(lens_from_fov(), (n_lens, 1)))
    if n_actions is not None:
        np.save(path / "action.npy", np.ones((n_actions, 4), bool))
    return path


def test_rows_that_are_not_the_poses_are_cut_to_the_first_and_a_note_says_so(tmp_path):
    for n_lens in (1, 7, 81, 200):
        read = read_pose_folder(folder(tmp_path, n_lens=n_lens))
        assert len(read.intrinsics) == (n_lens if n_lens in (1, 81) else 1)
        assert len(read.notes) == (n_lens not in (1, 81))
    assert load_poses(folder(tmp_path))[1].shape == (1, 4)


def test_a_lens_that_changes_is_noted(tmp_path):
    lens = np.tile(lens_from_fov(), (81, 1))
    lens[40, 0] *= 1.1
    np.save(folder(tmp_path) / "intrinsics.npy", lens)
    assert read_pose_folder(tmp_path).notes == ("The lens varies by 10.0%; the model uses the first frame's only.",)


def test_generate_says_it_before_it_starts(tmp_path, toy_package):
    options = {"ckpt_dir": toy_package, "image": toy_package / "example/image.png", "prompt": "a castle"}
    options |= {"output": tmp_path / "out.mp4", "width": 64, "height": 48, "frame_num": 9, "device": "cpu"}
    plan = make_plan(GenerateOptions(**options, action_path=folder(tmp_path / "path")))
    assert plan.notes[0].endswith(SEVEN_ROWS)
    assert plan.geometry.frames == 9


def test_camera_show_says_it(tmp_path, capsys):
    assert main(["camera", "show", str(folder(tmp_path)), "--output", str(tmp_path / "a.png")]) == 0
    assert SEVEN_ROWS in capsys.readouterr().out


@pytest.mark.parametrize(("n_actions", "used"), [(81, 81), (80, 80), (200, 81)])
def test_poses_and_actions_go_as_far_as_both_do(tmp_path, n_actions, used):
    read = read_pose_folder(folder(tmp_path, n_lens=81, n_actions=n_actions))
    assert len(read.c2w) == len(read.actions) == len(read.intrinsics) == used
    assert [f"the first {used} of both" in note for note in read.notes] == [True] * (n_actions != 81)


def test_actions_are_read_where_they_are_wanted(tmp_path):
    assert read_pose_folder(folder(tmp_path)).actions is None
    with pytest.raises(CameraError, match=r"action\.npy: no such file"):
        read_pose_folder(tmp_path, actions=True)
    (tmp_path / "action.npy").write_bytes(b"nothing")
    assert read_pose_folder(tmp_path, actions=False).actions is None
    with pytest.raises(CameraError, match=r"action\.npy: not a plain"):
        read_pose_folder(tmp_path)
    np.save(tmp_path / "action.npy", np.zeros((81, 3)))
    with pytest.raises(CameraError, match=r"action\.npy: shape \[81, 3\], expected \[n, 4\]"):
        read_pose_folder(tmp_path)


def test_poses_may_lack_the_last_row(tmp_path):
    whole = read_pose_folder(folder(tmp_path)).c2w
    np.save(tmp_path / "poses.npy", whole[:, :3])
    assert np.array_equal(read_pose_folder(tmp_path).c2w, whole)
