"""`lingbot-world camera measure`: on rendered rooms whose camera is known, it finds that camera and no other."""

import json
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from lingbot_world.camera.formats import write_camera
from lingbot_world.camera.moves import preset_path
from lingbot_world.camera.path import CameraPath, lens_from_fov
from lingbot_world.camera.plucker import scaled_lens
from lingbot_world.errors import CameraError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.files.target import find_target
from lingbot_world.headless.files.video import write_frames
from lingbot_world.measure import (
    VideoCamera,
    camera_messages,
    find_camera,
    measure_camera,
    render_measurement,
    summary,
    video_path,
)
from lingbot_world.measure.measurement import compare, median_errors_deg
from lingbot_world.measure.tracks import Tracks
from lingbot_world.tools.toy.paths import STEP
from lingbot_world.tools.toy.render import render
from lingbot_world.tools.toy.rooms import scenes_around
from rendered_room import render_room
from torch.nn import functional as F

HEIGHT, WIDTH, FRAMES = 96, 160, 9
AMOUNTS = {"pan": 6, "tilt": 6, "roll": 6, "dolly": 0.4, "truck": 0.4, "pedestal": 0.4, "orbit": 6}
"""Degrees or world units over the video; the walls are 3 units away."""
REACH = 3.0
MOVES = ["pan_left", "pan_right", "tilt_up", "tilt_down", "roll_clockwise", "roll_counterclockwise"]
MOVES += ["dolly_in", "dolly_out", "truck_left", "truck_right", "pedestal_up", "pedestal_down"]
MOVES += ["orbit_left", "orbit_right"]
OPPOSITE = {name: other for pair in zip(MOVES[::2], MOVES[1::2], strict=True) for name, other in (pair, pair[::-1])}
TURN_BOUND_DEG, DIRECTION_BOUND_DEG = 0.4, 4.0
"""Measured on videos of these moves: at most 0.15 and 1.7 degrees, but for a dolly 0.70 and 10.0."""
DOLLY_BOUNDS_DEG = 1.0, 12.0

SOFT_AMOUNTS = {"pan": 25, "tilt": 15, "roll": 20}
"""Degrees over 33 frames in the toy world's rooms; other moves go as far as its own paths do."""


def path_of(name: str, frames: int = FRAMES, **options) -> CameraPath:
    return preset_path(name, frames=frames, amount=AMOUNTS.get(name.split("_")[0]), **options)


def video_of(path: CameraPath, noise: float = 3.0) -> list[np.ndarray]:
    """A noisy video of a room along a path."""
    random = np.random.default_rng(0)
    pictures = render_room(path.c2w, scaled_lens(path.intrinsics[0], HEIGHT, WIDTH), HEIGHT, WIDTH, REACH)
    return [np.clip(each + random.normal(0, noise, each.shape), 0, 255).astype(np.uint8) for each in pictures]


@cache
def seen(name: str) -> VideoCamera:
    """The camera that is found in a video of a move. All moves have one lens, and so each can be compared with it."""
    return find_camera(video_of(path_of(name)), path_of(name).intrinsics[0])


def soft_path(name: str) -> CameraPath:
    return preset_path(name, frames=33, amount=SOFT_AMOUNTS.get(name.split("_")[0], 8 * STEP))


@cache
def soft_video(name: str, room: int) -> np.ndarray:
    """Grey frames uint8 [33, H, W] of a room of the toy world along a path, as the renderer draws them."""
    poses = torch.from_numpy(np.stack([soft_path(name).c2w] * 5)).float()
    scenes = scenes_around(poses, torch.Generator().manual_seed(4242 + room // 5))
    index = slice(room % 5, room % 5 + 1)
    small = render(scenes.rooms[index], scenes.asked[index], HEIGHT // 2, WIDTH // 2)[0]
    pictures = F.interpolate(small, (HEIGHT, WIDTH), mode="bicubic")
    levels = ((pictures.clamp(-1, 1) + 1) * 127.5).round().permute(0, 2, 3, 1).numpy()
    return (levels @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)


@pytest.fixture(autouse=True)
def _has_the_library():
    pytest.importorskip("cv2")
    pytest.importorskip("pycolmap")


@pytest.mark.parametrize("name", MOVES[::2])
def test_a_rendered_move_is_found_and_its_opposite_is_not(name):
    measured, other = (compare(seen(name), path_of(asked)) for asked in (name, OPPOSITE[name]))
    assert len(measured.judged) == len(measured.pairs) == 1
    assert measured.follows
    turn, direction = DOLLY_BOUNDS_DEG if name.startswith("dolly") else (TURN_BOUND_DEG, DIRECTION_BOUND_DEG)
    assert median_errors_deg(measured.judged)[0] < turn
    if name.startswith(("pan", "tilt", "roll")):
        assert np.isnan(median_errors_deg(measured.judged)[1])
    else:
        assert median_errors_deg(measured.judged)[1] < direction
    assert other.follows is False
    assert other.following == 0


@pytest.mark.parametrize(
    ("name", "room", "verdicts"),
    [("dolly_in", 2, {True}), ("dolly_out", 3, {True}), ("dolly_out", 0, {True, None}), ("pedestal_up", 2, {True})],
)
def test_the_truth_of_a_soft_room_is_never_refused_and_other_paths_are(name, room, verdicts):
    measured = measure_camera(soft_video(name, room), soft_path(name))
    assert measured.follows in verdicts
    if measured.follows is None:
        assert any("the path fits the tracks about as well" in sentence for sentence in summary(measured))
    for other in (OPPOSITE[name], "tilt_up"):
        assert compare(measured.camera, soft_path(other)).follows is False


@pytest.mark.parametrize(
    ("shown", "asked", "said"),
    [
        ("static", "pan_left", "turns otherwise"),
        ("static", "dolly_in", "no parallax"),
        ("truck_left", "static", "moves, and is not to"),
        ("truck_left", "pan_left", "turns otherwise"),
        ("pan_left", "truck_left", "turns otherwise"),
        ("pedestal_up", "dolly_in", "goes elsewhere"),
    ],
)
def test_another_move_is_told_from_the_one_asked_for(shown, asked, said):
    measured = compare(seen(shown), path_of(asked))
    assert measured.follows is False
    assert any(said in sentence for sentence in summary(measured))


def test_a_camera_that_stands_still_as_asked_follows():
    measured = compare(seen("static"), path_of("static"))
    assert measured.follows
    assert any("does not move" in sentence for sentence in summary(measured))


@pytest.mark.parametrize(("values", "said"), [((0, 256), "tracks"), ((90, 91), "fewer than 20 tracks")])
def test_noise_and_flat_pictures_are_not_judged(values, said):
    random = np.random.default_rng(0)
    video = [random.integers(*values, (HEIGHT, WIDTH), dtype=np.uint8) for _ in range(FRAMES)]
    measured = measure_camera(video, path_of("pan_left"))
    assert measured.follows is None
    assert not measured.judged
    assert all(said in pair.note for pair in measured.pairs)
    assert render_measurement(measured).size == (800, 500)


def test_the_errors_are_those_of_the_field_after_alignment_of_the_scale():
    path = path_of("orbit_left")
    measured = compare(seen("orbit_left"), path)
    frames, asked, found = measured.poses
    np.testing.assert_array_equal(frames, measured.camera.tracks.frames)
    np.testing.assert_allclose(asked[-1], np.linalg.inv(path.c2w[0]) @ path.c2w[8], atol=1e-12)
    np.testing.assert_allclose(found[:, :3, 3], asked[:, :3, 3], atol=0.1)
    traces = np.trace(np.swapaxes(found[:, :3, :3], 1, 2) @ asked[:, :3, :3], axis1=1, axis2=2)
    np.testing.assert_allclose(
        np.deg2rad(measured.rotation_errors_deg), np.arccos(np.clip((traces - 1) / 2, -1, 1)), atol=1e-6
    )
    assert measured.rotation_errors_deg.max() < TURN_BOUND_DEG
    closer = [np.linalg.norm(found[:, :3, 3] * scale - asked[:, :3, 3]) for scale in (0.98, 1, 1.02)]
    assert closer[1] < min(closer[0], closer[2])


@pytest.mark.parametrize("name", ["orbit_right", "pan_left"])
def test_the_path_of_a_video_is_followed_by_the_video(name):
    path = path_of(name, 17)
    video = video_of(path)
    camera = find_camera(video, None)
    found = video_path(camera)
    assert "assumed: the video shows none (the view has to turn" in camera_messages(camera, False)[-1]
    assert len(found) == 17
    np.testing.assert_allclose(found.c2w[0], np.eye(4), atol=1e-9)
    assert measure_camera(video, found).follows
    camera = find_camera(video, path.intrinsics[0])
    known = video_path(camera)
    assert known.fov_deg == pytest.approx(path.fov_deg, abs=1e-6)
    assert compare(camera, known).follows


@pytest.mark.parametrize(("move", "fov_deg"), [("pan_left", 55), ("orbit_left", 60)])
def test_the_lens_is_found_where_the_view_turns(move, fov_deg):
    path = preset_path(move, frames=17, amount=30, fov_deg=fov_deg)
    camera = find_camera(video_of(path))
    made = video_path(camera)
    assert made.intrinsics[0, 0] == pytest.approx(path.intrinsics[0, 0], rel=0.05)
    assert "found in the video" in camera_messages(camera, False)[-1]


@pytest.mark.parametrize("flat", [True, False])
def test_a_flat_wall_which_two_motions_fit_is_said(flat):
    random, c2w = np.random.default_rng(0), preset_path("dolly_in", frames=9, amount=1.0).c2w
    points = random.uniform([-3, -2, 4], [3, 2, 4 if flat else 8], (200, 3))
    seen = np.stack([(points - pose[:3, 3]) @ pose[:3, :3] for pose in c2w])
    pixels = seen[..., :2] / seen[..., 2:] * 290 + [240, 135] + random.normal(0, 0.1, (9, 200, 2))
    lens = np.array([290.0, 290, 240, 135])
    camera = VideoCamera(c2w, True, lens, Tracks(np.arange(9), pixels, (480, 270)), 9, 270, 480)
    said = summary(compare(camera, CameraPath(c2w, lens_from_fov())))
    assert any("lies on one plane" in sentence for sentence in said) is flat


def test_pairs_are_eight_frames_long_or_as_asked():
    frames = [np.zeros((48, 64), np.uint8)] * 17
    measured = [measure_camera(frames, path_of("static", 17), every) for every in (None, 6)]
    assert [(pair.first, pair.last) for pair in measured[0].pairs] == [(0, 8), (8, 16)]
    assert [(pair.first, pair.last) for pair in measured[1].pairs] == [(0, 6), (6, 12), (12, 16)]


@pytest.mark.parametrize(
    ("frames", "every", "complaint"),
    [
        ([(48, 64)] * 1, None, "a video of 1 frames: expected at least 2"),
        ([(48, 64)] * 10, None, "more frames than the path has poses, 9"),
        ([(48, 64), (48, 80)], None, "frame 1 is 80x48, the one before 64x48"),
        ([(48, 64)] * 9, -1, "every -1 frames"),
    ],
)
def test_what_cannot_be_measured_is_refused(frames, every, complaint):
    with pytest.raises(CameraError, match=complaint):
        measure_camera([np.zeros(shape, np.uint8) for shape in frames], path_of("static"), every)


def test_the_command_measures_a_video_file_and_a_folder_of_pictures(tmp_path, capsys):
    pytest.importorskip("av")
    path = path_of("truck_left")
    write_camera(path, tmp_path / "path")
    frames = np.repeat(np.stack(video_of(path))[..., None], 3, -1)
    for name in ("video.mp4", "folder"):
        write_frames(frames, find_target(tmp_path / name))
    drawing = tmp_path / "drawing.png"
    poses = str(tmp_path / "path")
    assert main(["camera", "measure", str(tmp_path / "video.mp4"), poses, "--drawing", str(drawing)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("The camera was found in 9 of 9 keyframes: RotErr 0.")
    assert "The video follows its path: 1 of 1 judged pairs of keyframes do, of 1 in 9 frames." in said
    assert drawing.read_bytes().startswith(b"\x89PNG")
    assert main(["camera", "measure", str(tmp_path / "folder"), poses, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["follows"] is True
    assert [pair["frames"] for pair in values["pairs"]] == [[0, 8]]
    assert 0 < values["rot_err_rad"] < np.deg2rad(9 * TURN_BOUND_DEG)
    assert [each["frame"] for each in values["frame_errors"]] == list(range(9))
    assert main(["camera", "from-video", str(tmp_path / "folder"), str(tmp_path / "made")]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("Scale:", "Axes:", "Lens:"))


def test_a_path_that_goes_on_after_the_video_is_used_as_far_as_the_video_goes():
    path = path_of("truck_left")
    measured = measure_camera(video_of(path)[:5], path)
    assert measured.follows
    assert "The path has 9 poses: the first 5, the video's, were used." in summary(measured)


@pytest.mark.parametrize("broken", ["nothing", "no video", "cut off", "an empty folder"])
def test_a_video_that_cannot_be_read_is_one_line_and_exit_code_2(tmp_path, capsys, broken):
    pytest.importorskip("av")
    write_camera(path_of("truck_left"), tmp_path / "path")
    video = tmp_path / "video.mp4"
    if broken == "no video":
        video.write_text("not a video")
    if broken == "cut off":
        write_frames(np.zeros((9, 48, 64, 3), np.uint8), find_target(video))
        video.write_bytes(video.read_bytes()[:-200])
    if broken == "an empty folder":
        video.mkdir()
    assert main(["camera", "measure", str(video), str(tmp_path / "path")]) == 2
    said = capsys.readouterr().err
    assert str(video) in said
    assert said.count("\n") == 1


def test_a_missing_opencv_is_said_with_the_command_that_installs_it(tmp_path, capsys, monkeypatch):
    write_camera(path_of("truck_left"), tmp_path / "path")
    (tmp_path / "video").mkdir()
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert main(["camera", "measure", str(tmp_path / "video"), str(tmp_path / "path")]) == 2
    said = capsys.readouterr().err
    assert f'"{sys.executable}" -m pip install --upgrade opencv-python-headless' in said
    assert said.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that is handled")
def test_sigterm_is_heard_by_python_once_pycolmap_is_there():
    """Its own handler prints a trace and ends the process before the command can say what it did."""
    ask = (
        "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(143));"
        "from lingbot_world.measure import pycolmap; pycolmap(); os.kill(os.getpid(), signal.SIGTERM);"
        "signal.pause()"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (143, b"")
