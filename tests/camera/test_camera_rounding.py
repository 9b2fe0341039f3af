"""Cameras that stand still in files of few digits, and lenses of RealEstate10K."""

import json

import numpy as np
import pytest
from camera_cases import LENS, colmap, image_lines, line, walk, write
from lingbot_world.camera.formats import read_camera
from lingbot_world.camera.origin_report import report_origin
from lingbot_world.camera.plucker import model_poses
from lingbot_world.errors import CameraError


def tripod(frames=81, place=(3.0, 1.0, -4.0)) -> np.ndarray:
    poses = walk(frames, 0.5)
    poses[:, :3, 3] = place
    return poses


def re10k(w2c: np.ndarray, digits: str) -> str:
    lens = "0.6 1.04 0.5 0.5 0 0"
    rows = [f"{i} {lens} " + " ".join(format(value, digits) for value in m[:3].ravel()) for i, m in enumerate(w2c)]
    return "\n".join(rows)


@pytest.mark.parametrize("digits", [".3f", ".4f", ".6f", ".6g", ".8e", ".17g"])
@pytest.mark.parametrize("away", [1, 30])
def test_a_tripod_stays_where_it_is_whatever_the_digits(tmp_path, digits, away):
    w2c = np.linalg.inv(tripod(place=np.multiply((3.0, 1.0, -4.0), away)))
    path, _ = read_camera(write(tmp_path / "clip.txt", re10k(w2c, digits)))
    assert not model_poses(path.c2w, 81)[:, :3, 3].any()
    assert "the camera stays where it is" in " ".join(report_origin(path))


@pytest.mark.parametrize("convention", ["opencv_w2c", "opencv_c2w"])
def test_a_tripod_in_float32(tmp_path, convention):
    matrices = np.linalg.inv(tripod()).astype(np.float32)
    matrices = np.linalg.inv(matrices) if convention == "opencv_c2w" else matrices
    file = write(tmp_path / "m.json", json.dumps(matrices.astype(float).tolist()))
    path, _ = read_camera(file, convention=convention)
    assert not model_poses(path.c2w, 81)[:, :3, 3].any()
    np.save(tmp_path / "poses.npy", np.linalg.inv(np.linalg.inv(tripod()).astype(np.float32)))
    np.save(tmp_path / "intrinsics.npy", np.float32(LENS))
    assert not model_poses(read_camera(tmp_path)[0].c2w, 81)[:, :3, 3].any()


def test_a_tripod_in_colmaps_quaternions(tmp_path):
    lines = [line.split() for line in image_lines(tripod(), "{:03d}")]
    lines = [" ".join(f"{float(field):.5f}" if "." in field else field for field in fields) for fields in lines]
    path, _ = read_camera(colmap(tmp_path, "\n".join(lines)))
    assert not model_poses(path.c2w, 81)[:, :3, 3].any()


def test_a_slow_dolly_stays_one(tmp_path):
    poses = tripod()
    poses[:, 2, 3] += 0.001 * np.arange(81)
    path, _ = read_camera(write(tmp_path / "clip.txt", re10k(np.linalg.inv(poses), ".6f")))
    steps = np.linalg.norm(model_poses(path.c2w, 81)[1:, :3, 3], axis=1)
    assert len(steps) == 20
    assert (np.abs(steps - 1) < 0.1).all()


def test_rotations_of_few_digits_are_rotations(tmp_path):
    path, _ = read_camera(write(tmp_path / "clip.txt", re10k(np.linalg.inv(walk(41, 1)), ".2f")))
    assert len(path) == 41
    sheared = walk(41, 1)
    sheared[:, 0, 1] = 0.1
    with pytest.raises(CameraError, match="not rigid"):
        read_camera(write(tmp_path / "clip.txt", re10k(np.linalg.inv(sheared), ".2f")))


def test_realestate10k_distortion_is_reported_and_pixels_have_a_way_out(tmp_path):
    text = re10k(np.linalg.inv(walk(9, 1)), ".6f")
    _, notes = read_camera(write(tmp_path / "a.txt", text.replace("0.5 0.5 0 0", "0.5 0.5 0.1 0")))
    assert "distortion (up to 0.1)" in " ".join(notes)
    pixels = write(tmp_path / "a.txt", text.replace("0.6 1.04 0.5 0.5", "500 500 416 240"))
    with pytest.raises(CameraError, match="in pixels"):
        read_camera(pixels)
    assert read_camera(pixels, fov_deg=90)[0].fov_deg == pytest.approx(90)


@pytest.mark.parametrize("name", ["00.txt", "traj.txt", "p.npz", "poses"])
def test_a_tripod_in_a_direction_that_the_user_names_stands_still(tmp_path, name):
    """World-to-camera matrices with six decimals in formats of camera-to-world ones."""
    angles = np.deg2rad(np.arange(20))
    w2c = np.tile(np.eye(4), (20, 1, 1))
    w2c[:, 0, 0] = w2c[:, 2, 2] = np.cos(angles)
    w2c[:, 2, 0], w2c[:, 0, 2] = np.sin(angles), -np.sin(angles)
    w2c[:, :3, 3] = w2c[:, :3, :3] @ [3, 1, -4]
    file, w2c = tmp_path / name, np.round(w2c, 6)
    turns = zip(*np.round([np.sin(-angles / 2), np.cos(angles / 2)], 6), w2c[:, :3, 3], strict=True)
    if name == "p.npz":
        np.savez(file, c2w=w2c.astype(np.float32))
    elif name == "poses":
        file.mkdir()
        np.save(file / "poses.npy", w2c.astype(np.float32))
        np.save(file / "intrinsics.npy", np.float32(LENS))
    elif name == "traj.txt":
        rows = (line(i, *place, 0, y, 0, w) for i, (y, w, place) in enumerate(turns))
        write(file, "# timestamp tx ty tz qx qy qz qw\n" + "".join(rows))
    else:
        write(file, "".join(line(*np.ravel(each[:3])) for each in w2c))
    path, _ = read_camera(file, convention="opencv_w2c", fov_deg=60)
    assert not np.diff(path.c2w[:, :3, 3], axis=0).any()
    np.testing.assert_allclose(path.c2w[0, :3, 3], [-3, -1, 4], atol=1e-3)
