"""A video says how it was made, and `generate --like` makes it again."""

import json
from pathlib import Path

import av
import numpy as np
import pytest
from lingbot_world.headless.command.cli import main
from PIL import Image

pytestmark = pytest.mark.usefixtures("one_thread")


def recorded(file):
    if Path(file).suffix == ".png":
        return json.loads(Image.open(file).info["lingbot_world"])
    with av.open(str(file)) as container:
        return json.loads({key.lower(): text for key, text in container.metadata.items()}["lingbot_world"])


def frames(file):
    with av.open(str(file)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.mov"])
def test_a_video_is_repeated_to_the_byte_with_the_seed_that_was_drawn(name, command, tmp_path, capsys):
    video, again = tmp_path / name, tmp_path / f"again{Path(name).suffix}"
    given = {"seed": None, "sampling_steps": 1, "negative": "dull", "guide_scale": "2,3", "output": video}
    assert main([*command(**given), "--quiet"]) == 0
    seed = int(capsys.readouterr().out.removeprefix("seed "))
    assert recorded(video)["seed"] == seed
    assert main(["generate", "--like", str(video), "--output", str(again)]) == 0
    assert f"seed {seed}\n" in capsys.readouterr().out
    assert again.read_bytes() == video.read_bytes()


def test_a_causal_video_and_png_files_are_repeated_too(command, toy_package, tmp_path):
    given = {"ckpt_dir": toy_package / "lingbot_world_fast", "sampling_steps": None, "frame_num": 9, "seed": None}
    given |= {"window": 4, "sink": 1, "schedule": "0,500", "action_path": None, "keys": "w-4,iw-5"}
    assert main(command(**given, output=tmp_path / "a")) == 0
    assert main(["generate", f"--like={tmp_path / 'a'}", "--output", str(tmp_path / "b")]) == 0
    first, again = (sorted((tmp_path / name).iterdir()) for name in "ab")
    assert len(first) == 9
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in first]
    assert recorded(first[0])["options"]["schedule"] == "0,500"


def test_an_option_that_is_given_besides_replaces_the_videos(command, tmp_path, capsys):
    assert main(command(sampling_steps=1, output=tmp_path / "a.mp4")) == 0
    like = ["generate", "--like", str(tmp_path / "a.mp4"), "--overwrite"]
    changes = [["--prompt", "a lake"], ["--seed", "9"], ["--keys", "w-5"], ["--size", "64*96"], ["--siz=64*96"]]
    for number, words in enumerate(changes):
        assert main([*like, *words, "--output", str(tmp_path / f"{number}.mp4")]) == 0
        assert not np.array_equal(frames(tmp_path / f"{number}.mp4"), frames(tmp_path / "a.mp4")), words
    assert recorded(tmp_path / "0.mp4")["options"]["prompt"] == "a lake"


def test_the_record_may_be_left_out(command, tmp_path, monkeypatch):
    monkeypatch.setenv("LINGBOT_WORLD_RECORD", "")
    assert main(command(sampling_steps=1, output=tmp_path / "a")) == 0
    assert all("lingbot_world" not in Image.open(file).info for file in (tmp_path / "a").iterdir())


def test_a_file_that_has_changed_since_is_named(command, toy_package, tmp_path, capsys):
    image = tmp_path / "image.png"
    Image.open(toy_package / "example/image.png").save(image)
    assert main(command(image=image, sampling_steps=1, output=tmp_path / "a.mp4")) == 0
    Image.new("RGB", (48, 32), "red").save(image)
    capsys.readouterr()
    assert main(["generate", "--like", str(tmp_path / "a.mp4"), "--output", str(tmp_path / "b.mp4"), "--dry-run"]) == 0
    assert "The content of --image has changed since that video was made." in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["nothing", "text", "png", "video", "canvas", "newer"])
def test_what_has_no_record_is_refused_in_a_line(kind, tmp_path, capsys):
    file = tmp_path / ("x.mp4" if kind in ("nothing", "text", "video") else "x.png")
    if kind == "text":
        file.write_text("no video")
    elif kind == "video":
        with av.open(str(file), "w") as container:
            stream = container.add_stream("libx264", rate=16)
            stream.width = stream.height = 32
            container.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
            container.mux(stream.encode())
    elif kind != "nothing":
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        record = {"seed": 1, "files": {}, "options": {"prompt": "x", "magic": 2}}
        info.add_text(
            *{"png": ("a", "b"), "canvas": ("prompt", "{}"), "newer": ("lingbot_world", json.dumps(record))}[kind]
        )
        Image.new("RGB", (8, 8)).save(file, pnginfo=info)
    assert main(["generate", "--like", str(file), "--output", str(tmp_path / "y.mp4")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert {
        "nothing": "no such file",
        "text": "not a video",
        "canvas": "drop it onto the canvas",
        "newer": "--magic",
    }.get(kind, "no record of a run") in said


RECORD = {"version": "1.0.0", "seed": 1, "files": {}, "options": {"prompt": "x"}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"prompt": "x", "lora": lora}}, "no record of a run")
        for lora in ([1], [{"x": 1}], [{"path": 1, "strength": 1, "expert": None}], 5)
    ]
    + [({"files": files}, "no record of a run") for files in ([], "x", None)]
    + [
        ({"options": {"prompt": "x", name: value}}, f"--{name}")
        for name, value in {"overwrite": True, "output": "/x.mp4", "save_state": "/x", "device": "cpu"}.items()
    ],
)
def test_records_of_strangers_cannot_break_or_replace_anything(changes, message, tmp_path, capsys):
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("lingbot_world", json.dumps(RECORD | changes))
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png", pnginfo=info)
    assert main(["generate", "--like", str(tmp_path / "x.png"), "--output", str(tmp_path / "y.mp4")]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), message in said) == (1, True), said
