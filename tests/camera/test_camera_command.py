"""`lingbot-world camera`: made, converted, shown, through the real command."""

from pathlib import Path

import numpy as np
import pytest
from lingbot_world.camera import load_poses
from lingbot_world.camera.moves import path_from_keys, preset_path
from lingbot_world.headless.command.cli import main
from PIL import Image


def test_make_a_preset_and_convert_it_there_and_back(tmp_path, capsys):
    folder, file, again = tmp_path / "orbit", tmp_path / "t.json", tmp_path / "again"
    assert main(["camera", "make", str(folder), "--preset", "orbit_left", "--frames", "17", "--amount", "40"]) == 0
    assert str(folder) in capsys.readouterr().out
    poses, lens = load_poses(folder)
    np.testing.assert_array_equal(poses, preset_path("orbit_left", frames=17, amount=40).c2w)
    assert main(["camera", "convert", str(folder), str(file)]) == 0
    assert main(["camera", "convert", str(file), str(again), "--format", "transforms"]) == 0
    np.testing.assert_allclose(load_poses(again)[0], poses, atol=1e-12)
    np.testing.assert_allclose(load_poses(again)[1], lens, atol=1e-9)


def test_make_from_keys_writes_the_actions_too(tmp_path):
    assert main(["camera", "make", str(tmp_path / "k"), "--keys", "w-10,iw-7"]) == 0
    np.testing.assert_array_equal(load_poses(tmp_path / "k")[0], path_from_keys("w-10,iw-7").c2w)
    assert np.load(tmp_path / "k" / "action.npy").shape == (17, 4)


def test_show_draws_and_warns(tmp_path, capsys):
    folder, image = str(tmp_path / "d"), tmp_path / "first.png"
    Image.new("RGB", (40, 30), (200, 30, 30)).save(image)
    main(["camera", "make", folder, "--preset", "dolly_in"])
    target = tmp_path / "out.png"
    arguments = ["--frames", "161", "--image", str(image), "--size", "640*400", "--output", str(target)]
    assert main(["camera", "show", folder, *arguments]) == 0
    assert Image.open(target).size == (640, 400)
    brief = capsys.readouterr().out.splitlines()
    assert brief[-4].startswith("Look at this path before a run. Read as lingbot, opencv_c2w: the path alone does not")
    assert brief[-4].endswith("if the video moves or turns the other way, choose another --convention.")
    assert "Shorter than the video" in brief[-3]
    assert "Even speed" not in brief
    assert main(["camera", "show", folder, *arguments, "-v", "--overwrite"]) == 0
    assert "Even speed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["show", "nowhere"], "no such file"),
        (["make", "out", "--keys", "q-3"], "cannot read 'q-3'"),
        (["make", "out", "--keys", "w-3", "--amount", "4"], "--amount is for presets"),
        (["make", "out", "--preset", "orbit_left", "--radius", "0"], "radius not 0"),
        (["show", "{folder}", "--image", "{folder}/poses.npy"], "not an image"),
        (["show", "{folder}", "--output", "{folder}/nowhere/a.png"], "cannot be written"),
        (["show", "{folder}", "--output", "{folder}/poses.npy"], "poses.npy exists already; write elsewhere"),
        (["show", "{folder}", "--image", "{folder}/poses.npy", "--output", "{folder}/poses.npy"], "is the --image"),
        (["make", "{folder}", "--preset", "static"], "poses.npy exists already"),
        (["convert", "{folder}", "{folder}"], "poses.npy exists already"),
        (["show", "{folder}", "--image", "nowhere.png"], "--image nowhere.png: no such file"),
        (["convert", "{folder}", "out", "--format", "matrices"], "convention None for matrices"),
        (["convert", "{folder}", "{folder}/path.txt"], "path.txt: a path is written as a folder with poses.npy"),
        (["make", "{folder}/path.npy", "--preset", "static"], "path.npy: a path is written as a folder"),
        (["make", "{folder}/photo.png", "--preset", "static", "--overwrite"], "photo.png: a path is written as"),
        (["make", "out", "--preset", "static", "--frames", "1000000000000"], "expected 1 to 100000"),
        (["show", "{folder}", "--size", "100000*100000"], "at least 400x250 and at most 4096x4096"),
        (["show", "{folder}", "--output", "drawing.mp4"], "the suffix is not that of an image"),
        (["from-video", "nowhere.mp4", "{folder}"], "poses.npy exists already; write elsewhere"),
        (["from-video", "nowhere.mp4", "{folder}/poses.npy/a"], "poses.npy/a cannot be written: Not a directory"),
        (["measure", "nowhere.mp4", "{folder}", "--drawing", "{folder}/poses.npy"], "poses.npy exists already"),
        (["measure", "nowhere.mp4", "{folder}", "--drawing", "nowhere/a.png"], "there is no folder nowhere; make it"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, arguments, complaint):
    main(["camera", "make", str(tmp_path), "--preset", "orbit_left"])
    (tmp_path / "photo.png").touch()
    capsys.readouterr()
    assert main(["camera", *(argument.format(folder=tmp_path) for argument in arguments)]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


def test_a_path_that_replaces_another_leaves_none_of_it(tmp_path):
    """The keys of the older path would be read with the poses of the new one."""
    assert main(["camera", "make", str(tmp_path), "--keys", "w-16"]) == 0
    assert main(["camera", "make", str(tmp_path), "--preset", "pan_left", "--overwrite"]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["intrinsics.npy", "poses.npy"]


@pytest.mark.parametrize("name", ["path", "path.json"])
def test_a_path_and_a_drawing_stay_where_the_next_cannot_be_written(tmp_path, monkeypatch, capsys, name):
    path, drawing = str(tmp_path / name), str(tmp_path / "drawing.png")
    assert main(["camera", "make", path, "--keys", "w-16"]) == 0
    assert main(["camera", "show", path, "--output", drawing]) == 0
    before = contents(tmp_path)

    def disk_full(file, *_, **__):
        Path(file if isinstance(file, Path) else file.name).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", disk_full)
    monkeypatch.setattr(Path, "write_text", disk_full)
    monkeypatch.setattr(Image.Image, "save", lambda _self, file, *_: disk_full(file))
    assert main(["camera", "make", path, "--preset", "pan_left", "--overwrite"]) == 2
    assert main(["camera", "show", path, "--output", drawing, "--overwrite"]) == 2
    full = "cannot be written (No space left on device; make room, or write elsewhere)"
    assert capsys.readouterr().err.count(full) == 2
    assert contents(tmp_path) == before


def contents(folder):
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("words", [["toy", "--random"], ["camera", "make", "--preset", "handheld"]])
def test_a_seed_below_nought_is_refused(tmp_path, capsys, words):
    with pytest.raises(SystemExit) as stop:
        main([*words, str(tmp_path / "out"), "--seed=-1"])
    assert (stop.value.code, list(tmp_path.iterdir())) == (2, [])
    assert "--seed: '-1': expected a whole number from 0" in capsys.readouterr().err


def test_the_first_frame_is_drawn_as_generate_turns_it(tmp_path):
    """A photo that lies on its side, as its EXIF data says, is drawn like the same photo upright."""
    camera, upright, lying = tmp_path / "camera", tmp_path / "upright.png", tmp_path / "lying.png"
    main(["camera", "make", str(camera), "--preset", "dolly_in"])
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 104, 3), dtype=np.uint8))
    picture.save(upright)
    turned = Image.Exif()
    turned[274] = 6  # Orientation: turn by 90 degrees clockwise to see it
    picture.transpose(Image.Transpose.ROTATE_90).save(lying, exif=turned)
    for image in (upright, lying):
        assert main(["camera", "show", str(camera), "--image", str(image), "--output", f"{image}.drawn.png"]) == 0
    drawn = [np.asarray(Image.open(f"{image}.drawn.png")) for image in (upright, lying)]
    np.testing.assert_array_equal(*drawn)


def test_a_path_that_is_too_short_for_a_video_is_said(tmp_path, capsys):
    main(["camera", "make", str(tmp_path / "long"), "--preset", "dolly_in"])
    capsys.readouterr()
    assert main(["camera", "convert", str(tmp_path / "long"), str(tmp_path / "short"), "--frames", "2"]) == 0
    assert "! 1 camera poses; at least 5 are needed" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["640", "640*", "-640*400", "640*400*3"])
def test_a_size_that_is_none_is_refused_with_what_one_looks_like(tmp_path, capsys, size):
    with pytest.raises(SystemExit) as stop:
        main(["camera", "show", str(tmp_path), f"--size={size}"])
    assert stop.value.code == 2
    assert f"argument --size: {size!r} is not like 480x832" in capsys.readouterr().err
