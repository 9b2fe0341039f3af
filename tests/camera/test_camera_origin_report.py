"""What is said of a path that was read from a file: the convention, whether the path bears it out, the scale."""

import json

import numpy as np
import pytest
from lingbot_world.camera.conventions import CONVENTIONS, reinterpret
from lingbot_world.camera.formats import read_camera, write_camera
from lingbot_world.camera.moves import path_from_keys, preset_path
from lingbot_world.camera.origin_report import convention_warnings, report_origin, summarize_convention
from lingbot_world.camera.path import CameraPath, Origin, lens_from_fov
from lingbot_world.camera.preview import render_preview
from lingbot_world.camera.rotation import from_angles, rigid
from lingbot_world.headless.command.cli import main

NAMES = [name for name, convention in CONVENTIONS.items() if not convention.by_column]
FAR_OFF = rigid(from_angles("Y", [40.0]), np.array([[20.0, 3.0, -50.0]]))[0]


def read_as(c2w: np.ndarray, name: str, meant: str = "opencv_c2w", format: str = "matrices") -> CameraPath:
    """The path of a file that keeps to `meant`, read under the convention `name`."""
    read = reinterpret(c2w, CONVENTIONS[meant], CONVENTIONS[name])
    return CameraPath(read, lens_from_fov(), origin=Origin(format, name, overridden=True))


def walk() -> np.ndarray:
    """Ahead and round a bend, somewhere in its world."""
    return FAR_OFF @ path_from_keys("w-20,wl-20,w-21").c2w


@pytest.mark.parametrize("preset", ["orbit_left", "arc_right"])
def test_an_orbit_that_is_read_right_is_not_doubted(preset):
    near_by = rigid(from_angles("YXZ", [70.0, 10.0, 3.0]), np.array([[3.0, 1.0, 2.0]]))[0]
    assert convention_warnings(read_as(near_by @ preset_path(preset, frames=81).c2w, "opencv_w2c", "opencv_w2c")) == []


@pytest.mark.parametrize("meant", NAMES)
def test_of_a_walk_the_right_convention_is_borne_out_and_a_wrong_one_is_told_with_the_right_one(meant):
    right = read_as(walk(), meant, meant)
    assert summarize_convention(right).endswith(f"{meant}: borne out by the path.")
    assert convention_warnings(right) == []
    for wrong in set(NAMES) - {meant}:
        (doubt,) = convention_warnings(read_as(walk(), wrong, meant))
        assert doubt.endswith(f"try the convention {meant}.")


def test_of_a_round_the_axes_are_borne_out_by_what_it_looks_at():
    path = preset_path("arc_left", frames=41).c2w
    assert convention_warnings(read_as(path, "opencv_c2w")) == []
    assert "it looks at the centre of its orbit" in report_origin(read_as(path, "opencv_c2w"))[1]
    (doubt,) = convention_warnings(read_as(path, "opengl_c2w"))
    assert "looks away from the centre of its orbit" in doubt


def test_a_world_whose_z_axis_is_up_shows_a_camera_on_its_head():
    upright = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]]) @ preset_path("truck_left").c2w
    assert "upright in a world whose z" in report_origin(read_as(upright, "opencv_c2w", format="transforms"))[1]
    (doubt,) = convention_warnings(read_as(upright, "opengl_c2w", format="transforms"))
    assert "stands on its head; read as opencv_c2w it stands upright" in doubt
    assert convention_warnings(read_as(upright, "opengl_c2w")) == []  # a list of matrices does not say what is up


@pytest.mark.parametrize("move", ["truck_left", "pan_left", "static", "pedestal_up"])
def test_what_the_path_cannot_tell_is_said_with_what_to_try(move):
    for name in NAMES:
        path = read_as(preset_path(move, frames=17).c2w, name)
        assert convention_warnings(path) == []
        assert "The path alone does not distinguish it from" in report_origin(path)[1]
        assert "the path alone does not show it; if the video" in summarize_convention(path)


def test_a_wrong_convention_is_mended_by_naming_the_right_one(tmp_path):
    rows = "\n".join(" ".join(map(str, pose[:3].ravel())) for pose in np.linalg.inv(walk()))  # KITTI's are c2w
    (tmp_path / "00.txt").write_text(rows)
    (doubt,) = convention_warnings(read_camera(tmp_path / "00.txt")[0])
    named, _ = read_camera(tmp_path / "00.txt", convention=doubt.split()[-1].rstrip("."))
    np.testing.assert_allclose(named.c2w, walk(), atol=1e-9)
    assert "as you chose" in report_origin(named)[1]


def test_scale_and_turns_are_those_that_the_model_gets():
    moves = preset_path("dolly_in", frames=17, amount=8).c2w
    metres = report_origin(read_as(moves, "opencv_c2w", format="kitti"))[2]
    assert "the longest of 4 steps between latent frames, 2 metres, becomes 1; the usual one is 1.00" in metres
    assert report_origin(read_as(moves, "opencv_c2w"), 9)[2].startswith("Scale: the longest of 2 steps")
    turns = report_origin(read_as(preset_path("pan_left", frames=17, amount=40).c2w, "opencv_c2w"))[2]
    assert turns.startswith("Scale: the camera stays where it is. It turns by up to 10.0 degrees a step")
    assert len(report_origin(read_as(moves[:3], "opencv_c2w"))) == 2  # too few poses: warnings say so


def test_nothing_is_said_of_a_path_that_is_not_as_it_was_read():
    path = read_as(walk(), "opencv_c2w")
    assert report_origin(path[4:].resampled(21))
    for other in (preset_path("dolly_in"), path.reversed(), path.relative(), path + path):
        assert (report_origin(other), convention_warnings(other), summarize_convention(other)) == ([], [], "")


def test_show_says_it_and_the_drawing_does(tmp_path, capsys):
    (tmp_path / "m.json").write_text(json.dumps(walk().tolist()))
    file, png = str(tmp_path / "m.json"), str(tmp_path / "a.png")
    assert main(["camera", "show", file, "--convention", "opengl_c2w", "--output", png, "-v"]) == 0
    said = capsys.readouterr().out
    assert "Read as matrices: 61 poses" in said
    assert (
        "! The camera moves backwards for most of the path; read as opencv_c2w it moves in its viewing direction."
        in said
    )
    read = read_as(walk(), "opencv_c2w")
    drawn = [np.asarray(render_preview(path)) for path in (read, read.relative())]
    assert (drawn[0] != drawn[1]).any()


def test_poses_npy_that_are_world_to_camera_are_told(tmp_path, capsys):
    write_camera(CameraPath(np.linalg.inv(walk()), lens_from_fov()), tmp_path)
    assert main(["camera", "show", str(tmp_path), "--output", str(tmp_path / "a.png")]) == 0
    assert "try the convention opencv_w2c." in capsys.readouterr().out
