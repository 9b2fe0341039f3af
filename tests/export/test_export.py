"""Exports for nerfstudio and COLMAP: exact poses and lens, the sharpest frames, bad input."""

import json
import os
import shutil

import numpy as np
import pytest
from lingbot_world.camera.formats.files import read_camera, write_camera
from lingbot_world.camera.moves.presets import preset_path
from lingbot_world.errors import LingBotError
from lingbot_world.export import export_scene
from lingbot_world.export.choice import find_blurred, pick_sharpest, sharpness
from lingbot_world.headless.command.cli import main
from lingbot_world.outputs import lock_output
from live_cases import chunks, walking
from PIL import Image

OPENGL = np.diag([1.0, -1, -1, 1])


@pytest.fixture
def video(tmp_path):
    """Nine frames 64x48 of noise, of which frames 2 and 5 are the sharpest of their four, and a path."""
    generator, folder = np.random.default_rng(1), tmp_path / "video"
    folder.mkdir()
    for number in range(9):
        noise = generator.integers(0, 255, (48, 64, 3), np.uint8)
        small = Image.fromarray(noise).resize((32, 24)).resize((64, 48))
        (Image.fromarray(noise) if number in (2, 5, 8) else small).save(folder / f"{number}.png")
    path = preset_path("orbit_left", frames=9, amount=1)
    write_camera(path, tmp_path / "path")
    return folder, tmp_path / "path", path


def test_nerfstudio_has_the_paths_poses_and_the_frames_size(video, tmp_path, capsys):
    folder, camera, path = video
    assert main(["export", str(folder), str(tmp_path / "out"), "--action_path", str(camera)]) == 0
    assert "3 of 9 frames" in capsys.readouterr().out
    data = json.loads((tmp_path / "out/transforms.json").read_text())
    assert (data["camera_model"], data["w"], data["h"]) == ("PINHOLE", 64, 48)
    assert np.allclose([data["fl_x"], data["cy"]], path.intrinsics[0, [0, 3]] * [64 / 832, 48 / 480], rtol=1e-12)
    assert all((tmp_path / "out" / frame["file_path"]).is_file() for frame in data["frames"])
    # The keys, and no others, that nerfstudio 1.1.5's parser reads: it sorts frames by file, and a lens key of the head
    # is for all frames. Run by hand, it returned these poses, this lens and, by ply_file_path, the points.
    assert data.keys() == {"camera_model", "fl_x", "fl_y", "cx", "cy", "w", "h", "ply_file_path", "frames"} - (
        set() if (tmp_path / "out/points.ply").is_file() else {"ply_file_path"}
    )
    assert all(frame.keys() == {"file_path", "transform_matrix"} for frame in data["frames"])
    assert [frame["file_path"] for frame in data["frames"]] == sorted(frame["file_path"] for frame in data["frames"])
    found = np.array([frame["transform_matrix"] for frame in data["frames"]]) @ OPENGL
    assert np.allclose(found, path.c2w[[2, 5, 8]], rtol=1e-6, atol=1e-7)
    first = np.array(Image.open(tmp_path / "out" / data["frames"][0]["file_path"]))
    assert np.array_equal(first, np.array(Image.open(folder / "2.png")))
    again, _ = read_camera(tmp_path / "out/transforms.json")
    assert np.allclose(again.intrinsics, path.intrinsics[:3])


def test_colmaps_model_is_read_back_by_pycolmap(video, tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    folder, camera, path = video
    words = ["export", folder, tmp_path / "out", "--action_path", camera, "--format", "colmap", "--every", 1]
    assert main(list(map(str, words))) == 0
    model = pycolmap.Reconstruction(tmp_path / "out/sparse/0")
    images = sorted(model.images.values(), key=lambda image: image.name)
    numbers = [
        int(np.argmin([_apart(folder, number, tmp_path / "out/images" / image.name) for number in range(9)]))
        for image in images
    ]
    poses = [np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]]) for image in images]
    assert np.allclose(poses, np.linalg.inv(path.c2w[numbers]), rtol=1e-6, atol=1e-6)
    lens = next(iter(model.cameras.values()))
    assert (lens.width, lens.height) == (64, 48)
    assert np.allclose(lens.params, path.intrinsics[0] * np.array([64 / 832, 48 / 480] * 2))
    again, _ = read_camera(tmp_path / "out", "colmap")
    assert np.allclose(again.c2w, path.c2w[numbers], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"frames": [np.zeros((8, 8, 3))]}, "frame 0 is"),
        ({"frames": [np.zeros((8, 8), np.uint8)]}, "expected an array uint8"),
        ({"frames": [np.zeros((side, 8, 3), np.uint8) for side in (8, 9)]}, "frame 1 has the size"),
        ({"frames": [np.zeros((0, 8, 3), np.uint8)]}, "expected an array uint8"),
        ({"frames": None}, "`frames` None: expected Iterable"),
        ({"every": "4"}, "`every` '4': expected a whole number"),
        ({"folder": 5}, "`folder` 5: expected text or a path"),
        ({"folder": "/dev/null"}, "/dev/null/images: the folder cannot be made"),
        ({"lens": np.ones((1, 4))}, "`lens` has 1 rows, and `c2w` 2 poses"),
        ({"c2w": np.full((2, 4, 4), np.nan)}, "is not finite"),
    ],
)
def test_arrays_of_another_kind_are_refused(changes, reason, tmp_path):
    given = {"frames": [np.zeros((8, 8, 3), np.uint8)] * 2, "c2w": np.stack([np.eye(4)] * 2), "lens": np.ones((2, 4))}
    given |= {"folder": str(tmp_path / "out"), "format": "nerfstudio"}
    with pytest.raises(LingBotError, match=reason):
        export_scene(**given | changes)


def test_images_of_another_scene_stay(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/mine.png").write_bytes(b"mine")
    frames = [np.zeros((8, 8, 3), np.uint8)] * 2
    with pytest.raises(LingBotError, match="images exists; name a folder without it"):
        export_scene(frames, np.stack([np.eye(4)] * 2), np.ones((2, 4)), tmp_path, "nerfstudio")
    assert (tmp_path / "images/mine.png").read_bytes() == b"mine"


def _apart(folder, number, exported):
    return np.abs(np.array(Image.open(folder / f"{number}.png")).astype(int) - np.array(Image.open(exported))).mean()


def test_a_walk_has_a_path_of_its_own_also_one_that_goes_on(toy_package, tmp_path, capsys):
    with walking(toy_package, tmp_path / "walks") as session:
        session.press("w")
        chunks(session, 6)
        state = session.state()
        walk, poses = session.walk.store.folder, session.walk.store.poses()
    with walking(toy_package, tmp_path / "later", state) as session:
        session.press("d")
        chunks(session, 4)
        later, rest = session.walk.store.folder, session.walk.store.poses()[1:]
    spoil = shutil.copytree(walk, tmp_path / "spoil")
    for text in ("no", "{}", '{"format": "lingbot-world walk 1"}', "[1]"):
        (spoil / "walk.json").write_text(text)
        assert main(["export", str(spoil), str(tmp_path / "none")]) == 2
        assert f"{spoil}: not a walk that was kept" in capsys.readouterr().err
    for folder, expected in ((walk, poses), (later, rest)):
        assert main(["export", str(folder), str(tmp_path / folder.parent.name / "out"), "--every", "1"]) == 0
        data = json.loads((tmp_path / folder.parent.name / "out/transforms.json").read_text())
        found = np.array([frame["transform_matrix"] for frame in data["frames"]]) @ OPENGL
        whole = len(found) == len(expected)
        near = np.abs(found[:, None] - expected[None]).max((2, 3)).min(1)
        assert near.max() < 1e-6
        assert not whole or np.allclose(found, expected, atol=1e-6)


def test_blurred_frames_are_left_out_and_the_sharpest_of_each_few_taken():
    values = [1.0, 0.9, 0.2, 1.1, 1.0]
    assert find_blurred(values) == [2]
    assert find_blurred([1.0]) == []
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    soft = np.array(Image.fromarray(noise).resize((16, 16)).resize((32, 32)))
    assert sharpness(noise) > sharpness(soft) > sharpness(np.zeros_like(noise))
    assert [number for number, _, _ in pick_sharpest([soft, noise, soft, soft, soft], 3)] == [1, 3]


def test_bad_input_is_refused_in_a_sentence(video, tmp_path, capsys):
    folder, camera, path = video
    out = str(tmp_path / "out")

    def told(*words):
        assert main(["export", *map(str, words)]) == 2
        return capsys.readouterr().err

    assert "a video without its camera path" in told(folder, out)
    write_camera(path[:5], tmp_path / "short")
    assert "has more than the 5 frames" in told(folder, tmp_path / "a", "--action_path", tmp_path / "short")
    write_camera(preset_path("orbit_left", frames=13, amount=1), tmp_path / "long")
    assert "has 9 frames, and its path 13 poses" in told(folder, tmp_path / "b", "--action_path", tmp_path / "long")
    assert "exists and is not an empty folder" in told(folder, folder, "--action_path", camera)
    assert "no such file" in told(tmp_path / "none.mp4", tmp_path / "c", "--action_path", camera)
    assert "no such file" in told(tmp_path / "none.mp4", tmp_path / "c")
    (tmp_path / "matrices.json").write_text(json.dumps({"c2w": path.c2w.tolist()}))
    (tmp_path / "notes.txt").write_text("none")
    for name in ("matrices.json", "notes.txt"):
        assert "`lingbot-world camera convert` takes them" in told(folder, out, "--action_path", tmp_path / name)
    for name, target in (("loop", "loop"), ("dangling", "nowhere/x")):
        os.symlink(target, tmp_path / name)
    assert "leads back to itself" in told(folder, tmp_path / "loop", "--action_path", camera)
    assert "exists and is not an empty folder" in told(folder, tmp_path / "dangling", "--action_path", camera)
    with lock_output(tmp_path / "busy"):
        assert "another run is writing it" in told(folder, tmp_path / "busy", "--action_path", camera)
