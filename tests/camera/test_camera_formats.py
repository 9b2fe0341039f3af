"""Camera files of other programs, each convention pinned by numbers worked out by hand (camera_cases.py)."""

import json

import numpy as np
import pytest
from camera_cases import (
    LENS,
    MATRICES,
    RE10K,
    START,
    THERE,
    TUM,
    camera_path,
    colmap,
    colmap_binary,
    megasam,
    record3d,
    splats,
    transforms,
    vggt,
    vipe,
    write,
)
from lingbot_world.camera import camera_embedding, load_poses
from lingbot_world.camera.formats import CONVENTIONS, FORMATS, read_camera, write_camera
from lingbot_world.camera.formats.sniff import format_of
from lingbot_world.camera.moves import PRESETS, preset_path
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.errors import CameraError


def assert_there(path: CameraPath, lens=LENS) -> None:
    np.testing.assert_allclose(path.c2w, [START, THERE], atol=1e-9)
    np.testing.assert_allclose(path.intrinsics, [lens, lens], atol=1e-9)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_matrices_under_each_convention(tmp_path, convention):
    file = write(tmp_path / "m.json", json.dumps(MATRICES[convention]))
    path, notes = read_camera(file, "matrices", convention=convention, fov_deg=79)
    assert_there(path, lens_from_fov(79))
    assert notes == []


def test_matrices_as_rows_of_sixteen_and_as_three_by_four(tmp_path):
    flat = [np.ravel(matrix).tolist() for matrix in MATRICES["opencv_c2w"]]
    short = [matrix[:3] for matrix in MATRICES["opencv_c2w"]]
    for entries in (flat, short):
        file = write(tmp_path / "m.json", json.dumps({"matrices": entries, "fps": 24}))
        path, notes = read_camera(file, "matrices", convention="opencv_c2w")
        assert_there(path, lens_from_fov(79))
        assert path.fps == 24
        assert "No lens" in notes[0]


def test_realestate10k(tmp_path):
    for text in (RE10K, RE10K.split("\n", 1)[1]):
        path, notes = read_camera(write(tmp_path / "clip.txt", text), "realestate10k")
        assert_there(path)
        assert notes == []


@pytest.mark.parametrize(
    ("cameras", "note"),
    [
        ("7 PINHOLE 1664 960 1000 1000 832 480", None),
        ("7 SIMPLE_PINHOLE 832 480 500 416 240", None),
        ("7 SIMPLE_RADIAL 832 480 500 416 240 0.1", "distortion (up to 0.1)"),
        ("7 OPENCV 832 480 500 500 416 240 0.01 -0.2 0 0", "distortion (up to 0.2)"),
    ],
)
def test_colmap(tmp_path, cameras, note):
    path, notes = read_camera(colmap(tmp_path, cameras=cameras), "colmap")
    assert_there(path)
    assert (note in notes[0]) if note else not notes


def test_transforms(tmp_path):
    path, notes = read_camera(write(tmp_path / "t.json", json.dumps(transforms())), "transforms")
    assert_there(path)
    assert notes == []


def test_transforms_with_distortion_and_a_lens_for_each_frame(tmp_path):
    data = transforms(k1=0.25)
    data["frames"][0]["fl_x"] = 1100
    path, notes = read_camera(write(tmp_path / "t.json", json.dumps(data)), "transforms")
    assert "distortion" in " ".join(notes)
    assert "varies by 10.0%" in " ".join(notes)
    np.testing.assert_allclose(path.intrinsics[:, 0], [500, 550])


def test_transforms_with_an_angle_of_view(tmp_path):
    data = transforms(camera_angle_x=2 * np.arctan(0.832))
    for key in ("fl_x", "fl_y", "cx", "cy"):
        del data[key]
    assert_there(read_camera(write(tmp_path / "t.json", json.dumps(data)), "transforms")[0])


def test_transforms_of_blender_nerf_have_an_angle_and_no_size(tmp_path):
    data = transforms(camera_angle_x=2 * np.arctan(0.832))
    for key in ("fl_x", "fl_y", "cx", "cy", "w", "h"):
        del data[key]
    path, notes = read_camera(write(tmp_path / "t.json", json.dumps(data)), "transforms")
    assert_there(path)
    assert notes == ["No image size in the file: camera_angle_x is taken across 832x480."]


def test_camera_path(tmp_path):
    path, notes = read_camera(write(tmp_path / "p.json", json.dumps(camera_path())), "camera_path")
    assert_there(path)
    assert path.fps == 24
    assert notes == []


def test_vipe(tmp_path):
    file = vipe(tmp_path)
    path, notes = read_camera(file, "vipe", image_size=(1664, 960))
    assert_there(path)
    assert notes == []
    with pytest.raises(CameraError, match="width and height of the video"):
        read_camera(file, "vipe")
    assert_there(read_camera(file, "vipe", fov_deg=79)[0], lens_from_fov(79))
    (tmp_path / "intrinsics" / "clip.npz").unlink()
    assert "No lens" in read_camera(file, "vipe")[1][0]


def test_another_shape_of_picture_is_remarked_on(tmp_path):
    _, notes = read_camera(vipe(tmp_path), "vipe", image_size=(960, 960))
    assert "960x960" in notes[0]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_from_its_export(tmp_path, name):
    path = preset_path(name, frames=9)
    size = {"frames": 9, "height": 16, "width": 32}
    write_camera(path, tmp_path / "folder")
    exported = camera_embedding(*load_poses(tmp_path / "folder"), **size)
    np.testing.assert_array_equal(exported, camera_embedding(path.c2w, path.intrinsics, **size))
    write_camera(path, tmp_path / "transforms.json")
    for target, format in (("folder", "lingbot"), ("transforms.json", "transforms")):
        back, notes = read_camera(tmp_path / target, format)
        np.testing.assert_allclose(back.c2w, path.c2w, atol=1e-12)
        np.testing.assert_allclose(back.intrinsics, path.intrinsics, atol=1e-9)
        assert notes == []


def test_official_example_reads_as_lingbot(example00):
    path, _ = read_camera(example00, "lingbot")
    np.testing.assert_allclose(path.c2w, load_poses(example00)[0], atol=1e-4)


def test_colmap_in_binary_is_colmap_in_text(tmp_path):
    text, notes = read_camera(colmap(tmp_path / "text"), "colmap")
    folder = colmap_binary(tmp_path / "binary")
    for path in (folder, folder / "images.bin"):
        binary, said = read_camera(path, "colmap")
        np.testing.assert_array_equal(binary.c2w, text.c2w)
        np.testing.assert_array_equal(binary.intrinsics, text.intrinsics)
        assert said == notes


def test_kitti_rows(tmp_path):
    rows = "\n".join(" ".join(f"{value:e}" for value in np.ravel(pose[:3])) for pose in (START, THERE))
    path, notes = read_camera(write(tmp_path / "00.txt", rows), "kitti")
    np.testing.assert_allclose(path.c2w, [START, THERE])
    assert "No lens in the file" in notes[0]


def test_the_format_is_told_by_the_file(tmp_path):
    lingbot = tmp_path / "lingbot"
    write_camera(preset_path("pan_left", frames=5), lingbot)
    files = {
        "lingbot": lingbot,
        "vipe": vipe(tmp_path),
        "realestate10k": write(tmp_path / "re10k.txt", RE10K),
        "colmap": colmap(tmp_path / "colmap"),
        "kitti": write(tmp_path / "00.txt", "1 0 0 0 0 1 0 0 0 0 1 0\n"),
        "transforms": write(tmp_path / "t.json", json.dumps(transforms())),
        "camera_path": write(tmp_path / "p.json", json.dumps(camera_path())),
        "matrices": write(tmp_path / "m.json", json.dumps(MATRICES["opencv_c2w"])),
        "tum": write(tmp_path / "tum.txt", TUM),
        "megasam": megasam(tmp_path / "megasam.npz"),
        "vggt": vggt(tmp_path / "predictions.npz"),
        "arkit": write(tmp_path / "metadata.json", json.dumps(record3d())),
        "gaussian_splatting": write(tmp_path / "splats" / "cameras.json", json.dumps(splats())),
    }
    assert files.keys() == FORMATS.keys()
    for format, file in files.items():
        assert format_of(file) == format
        given = {"convention": "opencv_c2w" if format == "matrices" else None, "image_size": (1664, 960)}
        told, named = read_camera(file, **given), read_camera(file, format, **given)
        np.testing.assert_array_equal(told[0].c2w, named[0].c2w)
    assert format_of(lingbot / "poses.npy") == "lingbot"
    assert format_of(colmap_binary(tmp_path / "binary") / "cameras.bin") == "colmap"
    assert format_of(write(tmp_path / "a.txt", "notes\n")) is None
