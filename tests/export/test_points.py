"""Sparse points of an export: triangulated with exact poses, in each format, with their agreement by second."""

import json
import sys

import numpy as np
import pytest
from lingbot_world.camera.formats import read_camera, write_camera
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.export import add_points, export_scene, points
from lingbot_world.export.preview import ALONG, CAMERAS, EDGES, draw_preview
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.live.opening import open_live
from lingbot_world.live import Session
from PIL import Image
from rendered_room import render_room

pytest.importorskip("pycolmap")
pytest.importorskip("cv2")
SIZE = HEIGHT, WIDTH = 240, 416
FRAMES = 33
OF_CAMERA = len(EDGES) * len(ALONG)


@pytest.fixture(scope="module")
def room():
    """A walk forward and sideways through a room: 33 coloured frames 416x240 of 16 a second, and their path."""
    path = CameraPath(_poses(0.03), lens_from_fov(79.0))
    lens = path.intrinsics[0] * np.array([WIDTH / 832, HEIGHT / 480] * 2)
    return [_coloured(grey) for grey in render_room(path.c2w, lens, HEIGHT, WIDTH, 2.0)], path


def _poses(step):
    poses = np.tile(np.eye(4), (FRAMES, 1, 1))
    poses[:, 0, 3], poses[:, 2, 3] = np.arange(FRAMES) * step, np.arange(FRAMES) * 0.03
    return poses


def _coloured(grey):
    return np.stack([grey, grey // 2, np.zeros_like(grey)], -1)


@pytest.fixture
def video(room, tmp_path):
    (tmp_path / "video").mkdir()
    for number, frame in enumerate(room[0]):
        Image.fromarray(frame).save(tmp_path / f"video/{number}.png", compress_level=1)
    write_camera(room[1], tmp_path / "path")
    return [str(tmp_path / "video"), str(tmp_path / "out"), "--action_path", str(tmp_path / "path")]


def test_colmap_has_points_on_the_walls_and_the_paths_poses(room, tmp_path):
    import pycolmap

    frames, path = room
    made = export_scene(frames, path.c2w, path.intrinsics, tmp_path, "colmap", every=2)
    found = add_points(made, 16)
    _, rows = found.preview.cloud.split(b"end_header\n")
    rows = np.frombuffer(rows, [("place", "<f4", 3), ("colour", "u1", 3)])
    red = rows[(rows["colour"] == [255, 0, 0]).all(1)]
    assert 1 < len(red) / OF_CAMERA <= CAMERAS
    assert len(red) % OF_CAMERA == 0
    assert len(rows) - len(red) > 0.9 * found.count
    assert np.allclose(red["place"][0] * [1, -1, -1], path.c2w[made.frames[0], :3, 3], atol=1e-6)
    model = pycolmap.Reconstruction(tmp_path / "sparse/0")
    poses = [
        np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]])
        for image in sorted(model.images.values(), key=lambda image: image.name)
    ]
    assert np.allclose(poses, np.linalg.inv(path.c2w[list(made.frames)]), rtol=1e-6, atol=1e-6)
    assert found.count == model.num_points3D() > 200
    again, _ = read_camera(tmp_path, "colmap")
    assert np.allclose(again.c2w, path.c2w[list(made.frames)], atol=1e-6)
    assert found.error < 0.5
    places = np.array([point.xyz for point in model.points3D.values()])
    low, high = path.c2w[:, :3, 3].min(0), path.c2w[:, :3, 3].max(0)
    walls = np.stack([low, high]) + 2.0 * np.array([1.0, 0.6, 1.3]) * [[-1], [1]]
    assert np.median(np.abs(places[:, None] - walls).min((1, 2))) < 0.05  # of a room 4 to 6 wide
    assert all(point.color[0] > 0 and abs(point.color[0] / 2 - point.color[1]) < 3 for point in model.points3D.values())


def test_a_long_video_is_tracked_in_parts(room, tmp_path, monkeypatch):
    frames, path = room
    monkeypatch.setattr(points, "TRACKED_AT_ONCE", 8)  # of 17 exported frames: two parts, and a frame alone
    found = add_points(export_scene(frames, path.c2w, path.intrinsics, tmp_path, "ply", every=2), 16)
    assert found.count > 200
    assert found.error < 0.5
    assert all(second.inlier_share > 0.6 for second in found.seconds[:2])


def test_the_report_shows_from_which_second_on_the_world_disagrees(room, tmp_path):
    frames, path = room
    seconds = []
    for name, poses in (("exact", path.c2w), ("drifts", np.concatenate([path.c2w[:16], _poses(0.06)[16:]]))):
        made = export_scene(frames, poses, path.intrinsics, tmp_path / name, "ply", every=2)
        seconds.append(add_points(made, 16).seconds)
    exact, drifts = seconds
    assert all(second.inlier_share > 0.7 and second.error < 0.5 for second in exact[:2])
    assert drifts[1].error > 3 * exact[1].error or drifts[1].inlier_share < 0.5 * exact[1].inlier_share
    assert drifts[0].inlier_share > 0.5


def test_a_preview_leaves_out_far_points_and_cameras_that_cover_each_other():
    poses = np.tile(np.eye(4), (41, 1, 1))
    poses[:, 2, 3] = np.repeat(np.linspace(0, 4, 5), 9)[:41]
    path = CameraPath(poses, lens_from_fov(79.0))
    points = np.random.default_rng(0).uniform(-3, 3, (200, 3))
    points[0] = 1e4
    shown = draw_preview(points, np.zeros((200, 3), np.uint8), path)
    count = len(shown.cloud.split(b"end_header\n")[1]) // 15
    assert count == 199 + 5 * OF_CAMERA
    assert shown.radius < 10


def test_nerfstudio_names_the_points_and_ply_is_the_points_alone(video, tmp_path, capsys):
    import pycolmap

    assert main(["export", *video]) == 0
    printed = capsys.readouterr().out
    assert "points; mean reprojection error" in printed
    assert "second" in printed
    data = json.loads((tmp_path / "out/transforms.json").read_text())
    assert data["ply_file_path"] == "points.ply"
    assert len(read_camera(tmp_path / "out")[0]) == len(data["frames"])
    assert main(["export", video[0], str(tmp_path / "cloud"), *video[2:], "--format", "ply"]) == 0
    assert [file.name for file in (tmp_path / "cloud").iterdir()] == ["points.ply"]
    model = pycolmap.Reconstruction()
    model.import_PLY(tmp_path / "cloud/points.ply")
    assert f"{model.num_points3D()} points;" in capsys.readouterr().out


def test_without_pycolmap_a_sentence_says_so(video, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert main(["export", *video]) == 0
    assert "no points: pycolmap cannot be imported" in capsys.readouterr().out
    assert "ply_file_path" not in (tmp_path / "out/transforms.json").read_text()
    assert main(["export", video[0], str(tmp_path / "cloud"), *video[2:], "--format", "ply"]) == 2
    error = capsys.readouterr().err
    assert "pycolmap cannot be imported" in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "cloud").exists()


def test_a_camera_that_only_rotates_has_no_points(video, room, tmp_path, capsys):
    still = CameraPath(np.tile(np.eye(4), (FRAMES, 1, 1)), room[1].intrinsics)
    write_camera(still, tmp_path / "still")
    assert main(["export", video[0], video[1], "--action_path", str(tmp_path / "still")]) == 0
    assert "no points: no point can be triangulated" in capsys.readouterr().out
    assert (tmp_path / "out/transforms.json").is_file()
    words = ["export", video[0], str(tmp_path / "cloud"), "--action_path", str(tmp_path / "still"), "--format", "ply"]
    assert main(words) == 2
    assert "no point can be triangulated" in capsys.readouterr().err
    assert not (tmp_path / "cloud").exists() or not any((tmp_path / "cloud").iterdir())
    assert main([*words, "--no_points"]) == 2
    assert "`no_points`" in (error := capsys.readouterr().err) or "--no_points" in error


@pytest.mark.slow
def test_the_toys_walk_agrees_with_its_poses_in_its_first_three_seconds(toy_world, tmp_path, capsys):
    engine, start = open_live(toy_world, chunk=1, device="cpu")
    with Session(engine, start, folder=tmp_path / "walks", fps=0) as session:
        session.press("w")
        for frames in session:
            if frames.chunk == 6:
                session.hold(["w", "l"])
            if frames.last and frames.first >= 48:
                break
        walk = session.walk.store.folder
    assert main(["export", str(walk), str(tmp_path / "out"), "--format", "colmap"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:1] == " "][:3]
    assert [int(row[0]) for row in rows] == list(range(3))
    assert all(float(row[1]) < 1.5 for row in rows)
    assert all(int(row[3]) > 50 for row in rows)
