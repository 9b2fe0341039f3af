"""COLMAP's files as people have them: lines, names, folders, and lenses of every model."""

import numpy as np
import pytest
from camera_cases import assert_there, colmap, colmap_binary, image_lines, walk
from lingbot_world.camera.formats import read_camera
from lingbot_world.camera.formats.lens import COLMAP_MODELS, MODELS, OTHER_LENSES
from lingbot_world.camera.path import lens_from_fov
from lingbot_world.errors import CameraError


@pytest.mark.parametrize("between", ["\n", "\n\n", "\n1.5 2 -1 3 4 17\n", "\n1 2 -1\n\n"])
def test_colmap_lines_are_told_by_their_columns(tmp_path, between):
    poses = walk(41, 1)
    path, _ = read_camera(colmap(tmp_path, between.join(image_lines(poses)) + "\n"))
    np.testing.assert_allclose(path.c2w, poses, atol=1e-9)


def test_colmap_names_of_digits_and_with_spaces(tmp_path):
    for name in ("{:05d}", "my clip {:05d}.jpg"):
        path, _ = read_camera(colmap(tmp_path, "\n".join(image_lines(walk(9, 1), name))))
        assert len(path) == 9


def test_colmap_below_a_projects_folder(tmp_path):
    colmap(tmp_path / "project" / "sparse" / "0")
    path, notes = read_camera(tmp_path / "project")
    assert_there(path)
    assert notes == []
    colmap(tmp_path / "project" / "sparse" / "1")
    assert "2 separate models (0, 1): 0 is read" in read_camera(tmp_path / "project")[1][0]


@pytest.mark.parametrize("model", OTHER_LENSES)
def test_colmap_lenses_that_are_no_pinhole(tmp_path, model):
    numbers = " ".join(["500"] * MODELS[model].numbers)
    folder = colmap(tmp_path, cameras=f"7 {model} 832 480 {numbers}")
    with pytest.raises(CameraError, match=f"camera 7: model '{model}' is no pinhole.*fov_deg"):
        read_camera(folder)
    path, notes = read_camera(folder, fov_deg=90)
    assert_there(path, lens_from_fov(90))
    assert model in " ".join(notes)


def test_colmap_binary_lenses(tmp_path):
    for number, (name, model) in COLMAP_MODELS.items():
        terms = (1000.0, 1000.0, 832.0, 480.0) if model.focals == 2 else (1000.0, 832.0, 480.0)
        terms = (*terms, *[0.25] * 16)[: model.numbers]
        folder = colmap_binary(tmp_path, number, terms)
        if model.pinhole:
            path, notes = read_camera(folder)
            assert_there(path)
            assert ("distortion" in " ".join(notes)) == (model.numbers > model.focals + 2)
        else:
            with pytest.raises(CameraError, match=name):
                read_camera(folder)


@pytest.mark.parametrize("number", ["nan", "inf", "1e308"])
def test_colmap_quaternions_that_are_none(tmp_path, number):
    lines = "\n".join(image_lines(walk(9, 1))).replace("\n3 ", f"\n3 {number} ")
    fields = lines.splitlines()[2].split()
    lines = lines.replace(lines.splitlines()[2], " ".join([*fields[:2], *fields[3:]]))
    with pytest.raises(CameraError, match="line 3 has a quaternion of length"):
        read_camera(colmap(tmp_path, lines))


def test_colmap_without_its_cameras(tmp_path):
    folder = colmap(tmp_path)
    (folder / "cameras.txt").unlink()
    with pytest.raises(CameraError, match="cameras.txt: no such file; or give a field of view"):
        read_camera(folder)
    assert_there(read_camera(folder, fov_deg=90)[0], lens_from_fov(90))
