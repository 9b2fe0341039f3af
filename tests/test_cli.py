"""The command: what it says, what it writes, and what it leaves behind when something is wrong."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from lingbot_world.cli import main
from lingbot_world.toy import write_toy_package
from PIL import Image

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy_package(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def command(toy, tmp_path):
    """`generate` on the toy package at its smallest; keywords replace options, None drops one."""

    def build(**changes):
        options = {
            "ckpt_dir": toy,
            "image": toy / "example/image.png",
            "prompt": "a castle",
            "action_path": toy / "example",
            "width": 64,
            "height": 48,
            "frame_num": 5,
            "sampling_steps": 2,
            "seed": 1,
            "device": "cpu",
            "output": tmp_path / "out" / "video.mp4",
        } | changes
        given = {name: value for name, value in options.items() if value is not None}
        return ["generate", *(word for name, value in given.items() for word in (f"--{name}", str(value)))]

    return build


def refusal(arguments, capsys):
    """The one line that a refused command says."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("lingbot-world: ")
    assert error.count("\n") == 1, error
    return error


def test_generate_writes_the_video_that_was_asked_for(command, tmp_path, capsys):
    import av

    assert main(command()) == 0
    with av.open(str(tmp_path / "out/video.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == 16
        assert container.streams.video[0].codec_context.name == "h264"
    assert [frame.shape for frame in frames] == 5 * [(48, 64, 3)]
    assert np.std(frames) > 10
    output = capsys.readouterr().out
    assert output.splitlines()[0] == "64x48, 5 frames, 2 steps on cpu"
    for stage in ("text", "VAE encode", "load high-noise expert", "low-noise steps", "VAE decode", "write", "all"):
        assert re.search(rf"^{stage} +\d+\.\d", output, re.MULTILINE), stage
    assert output.rstrip().endswith(f"seed 1\n{tmp_path / 'out/video.mp4'}")
    assert os.listdir(tmp_path / "out") == ["video.mp4"]


def test_png_frames_repeat_with_the_seed_and_change_with_it(command, tmp_path):
    def pixels(name, **changes):
        assert main(command(output=tmp_path / name, **changes)) == 0
        return [np.array(Image.open(file)) for file in sorted(Path(tmp_path, name).parent.glob("**/*.png"))]

    first, again, other = pixels("a/*.png"), pixels("b/f_%03d.png"), pixels("c", seed=2)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [f"f_{index:03}.png" for index in range(5)]
    assert all(np.array_equal(*pair) for pair in zip(first, again[:5], strict=True))
    assert not np.array_equal(first, other[-5:])


@pytest.fixture
def frames_of(command, tmp_path):
    def run(name, **changes):
        assert main(command(output=tmp_path / name, sampling_steps=1, **changes)) == 0
        return np.stack([np.array(Image.open(file)) for file in sorted((tmp_path / name).iterdir())])

    return run


def test_prompt_camera_and_solver_reach_the_video(frames_of):
    base = frames_of("base")
    for name, changes in {
        "prompt": {"prompt": "a lake"},
        "negative": {"negative": ""},
        "camera": {"action_path": None},
        "solver": {"solver": "dpmpp"},
        "scale": {"guide_scale": "1,3"},
    }.items():
        assert not np.array_equal(frames_of(name, **changes), base), name


def test_streamed_experts_make_the_same_video(frames_of):
    assert np.array_equal(frames_of("streamed", residency="stream"), frames_of("base"))


def test_a_short_pose_file_shortens_the_video_and_says_so(command, toy, tmp_path, capsys):
    poses = tmp_path / "poses"
    poses.mkdir()
    np.save(poses / "poses.npy", np.load(toy / "example/poses.npy")[:7])
    np.save(poses / "intrinsics.npy", np.load(toy / "example/intrinsics.npy"))
    assert main(command(action_path=poses, frame_num=9, sampling_steps=1, output=tmp_path / "png")) == 0
    assert f"{poses} holds 7 poses: the video has 5 frames, not 9." in capsys.readouterr().out
    assert len(os.listdir(tmp_path / "png")) == 5


def test_frames_that_are_not_4n_plus_1_are_rounded_and_said(command, tmp_path, capsys):
    assert main(command(frame_num=8, sampling_steps=1, output=tmp_path / "png")) == 0
    assert "Frames come in 4n+1: the video has 5 frames, not 8." in capsys.readouterr().out


def spoil(folder, toy, **arrays):
    """A camera folder like the toy's with some arrays replaced by what `change(array)` makes of them."""
    folder.mkdir()
    for name in ("poses", "intrinsics"):
        array = np.load(toy / f"example/{name}.npy")
        np.save(folder / f"{name}.npy", arrays[name](array) if name in arrays else array)
    return folder


def with_value(index, value):
    def change(array):
        array[index] = value
        return array

    return change


CAMERAS = {
    "shape": ({"poses": lambda poses: poses[:, :3]}, r"\[81, 3, 4\]"),
    "scaled": ({"poses": with_value((3, 0, 0), 2.0)}, "frame 3 .*rigid"),
    "nan": ({"poses": with_value((4, 0, 3), np.nan)}, "frame 4 .*finite"),
    "few": ({"poses": lambda poses: poses[:4]}, "4 poses"),
    "focal": ({"intrinsics": with_value((0, 0), 0.0)}, "focal length"),
}


@pytest.mark.parametrize("case", CAMERAS)
def test_bad_cameras_are_refused(case, command, toy, tmp_path, capsys):
    changes, message = CAMERAS[case]
    folder = spoil(tmp_path / "poses", toy, **changes)
    error = refusal(command(action_path=folder), capsys)
    assert re.search(message, error)
    assert str(folder) in error
    assert not (tmp_path / "out").exists()


OPTIONS = {
    "no package": ({"ckpt_dir": "nowhere"}, "nowhere"),
    "no image": ({"image": "nowhere.png"}, "nowhere.png: no such file"),
    "no vae": ({"vae": "nowhere.pth"}, "nowhere.pth"),
    "width": ({"width": 65}, "width 65 is not a multiple of 16"),
    "width alone": ({"height": None}, "--width and --height"),
    "boundary": ({"boundary": 947}, "--boundary 947"),
    "steps": ({"sampling_steps": 0}, "steps=0"),
    "frames": ({"frame_num": 0}, "frames"),
    "scale": ({"guide_scale": "1,2,3"}, "guide scale"),
    "seed": ({"seed": -1}, "--seed -1"),
    "device": ({"device": "abacus"}, "--device abacus"),
    "suffix": ({"output": "video.txt"}, "video.txt"),
    "one png": ({"output": "frame.png"}, "frame.png"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_bad_options_are_refused(case, command, tmp_path, capsys, monkeypatch):
    changes, message = OPTIONS[case]
    monkeypatch.chdir(tmp_path)
    assert message in refusal(command(**changes), capsys)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", ["--size 480", "--size 0*9", "--guide_scale much", "--solver euler"])
def test_words_that_mean_nothing_are_refused_with_the_usage(words, command, capsys):
    words = words.split()
    with pytest.raises(SystemExit) as stop:
        main([*command(), *words])
    assert stop.value.code == 2
    assert words[1] in capsys.readouterr().err


def test_an_unreadable_image_is_refused(command, toy, tmp_path, capsys):
    image = tmp_path / "image.png"
    for content in (b"", b"not an image", (toy / "example/image.png").read_bytes()[:3000]):
        image.write_bytes(content)
        assert f"{image}: not an image" in refusal(command(image=image), capsys)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_loaded(command, toy, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "dir.mp4").mkdir()
    for output in ("file/video.mp4", "file/png/*.png", "dir.mp4", "file"):
        assert str(tmp_path / output.split("/")[0]) in refusal(command(output=tmp_path / output), capsys)
    assert "cannot be written" in refusal(command(output="/proc/video.mp4"), capsys)


def test_a_full_disk_is_refused(command, tmp_path, capsys, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "the disk has 0 MB free" in refusal(command(), capsys)


def test_a_broken_package_is_refused_before_the_first_stage(command, toy, tmp_path, capsys):
    package = tmp_path / "package"
    low = package / "low_noise_model_bnb_nf4/model.safetensors"
    for file, spoilt in (
        (low, lambda data: data[:-100]),
        (package / "Wan2.1_VAE.pth", lambda data: data[:1000]),
        (package / "models_t5_umt5-xxl-enc-bf16.pth", lambda data: b"x" * 100),
        (package / "tokenizer/tokenizer.json", lambda data: data[:500]),
    ):
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(toy, package)
        file.write_bytes(spoilt(file.read_bytes()))
        error = refusal(command(ckpt_dir=package), capsys)
        assert file.name in error or file.parent.name in error
        file.unlink()
        refusal(command(ckpt_dir=package), capsys)
    assert not (tmp_path / "out").exists()


def test_one_expert_twice_and_swapped_experts_are_refused(command, toy, capsys):
    high, low = (toy / f"{name}_noise_model_bnb_nf4" for name in ("high", "low"))
    assert "swapped" in refusal(command(high=low, low=high), capsys)
    refusal(command(low=high), capsys)


def test_a_camera_for_a_plain_wan_checkpoint_is_refused_and_without_one_it_runs(command, toy, tmp_path, capsys):
    from lingbot_world.loaders.writer import write_expert_folder
    from lingbot_world.toy_weights import EXPERT, expert_tensors

    plain = EXPERT.__class__(**vars(EXPERT) | {"control": None})
    for name, seed in (("high", 1), ("low", 2)):
        wanted = plain.parameter_shapes()
        tensors = ((key, tensor) for key, tensor in expert_tensors(seed) if key in wanted)
        write_expert_folder(tmp_path / f"{name}_noise_model", plain, tensors)
    experts = {name: tmp_path / f"{name}_noise_model" for name in ("high", "low")}
    assert "no camera layers" in refusal(command(**experts), capsys)
    assert main(command(**experts, action_path=None, output=tmp_path / "png")) == 0


def test_missing_diffusers_names_the_interpreter_and_what_to_install(command, capsys, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "diffusers" else find(name))
    error = refusal(command(), capsys)
    assert sys.executable in error
    assert 'pip install "lingbot-world[cli]"' in error


def test_ctrl_c_ends_the_run_within_a_step_and_leaves_nothing(command, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "lingbot_world", *command(sampling_steps=2000)],
        stderr=subprocess.PIPE, text=True, bufsize=1, cwd=tmp_path,
    )  # fmt: skip
    shown = ""
    while "high-noise steps" not in shown:
        shown += process.stderr.read(1)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - sent < 20
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert os.listdir(tmp_path) == []


def test_an_exception_while_writing_leaves_the_old_file(tmp_path):
    from lingbot_world.video import find_target, write_frames

    def interrupt(done, total):
        if done == 2:
            raise KeyboardInterrupt

    frames = np.zeros((4, 48, 64, 3), np.uint8)
    for name in ("video.mp4", "png"):
        target = find_target(tmp_path / name)
        write_frames(frames, target)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(KeyboardInterrupt):
            write_frames(frames + 99, target, progress=interrupt)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_inspect_describes_packages_and_parts(toy, capsys):
    assert main(["inspect", str(toy), "--size", "240*416"]) == 0
    report = capsys.readouterr().out
    for part in ("416x240, 81 frames (8190 tokens)", "quantization nf4", "camera (6 values", "umt5, 2 blocks",
                 "width 8", "steps, both experts resident", "steps, 0 of 3 blocks resident, used where memory is short",
                 "VAE encode, tiled, used where memory is short", "VAE decode, tiled"):  # fmt: skip
        assert part in report, part
    for name in ("Wan2.1_VAE.pth", "models_t5_umt5-xxl-enc-bf16.pth", "low_noise_model_bnb_nf4"):
        assert main(["inspect", str(toy / name)]) == 0
    assert main(["inspect", str(toy), "--width", "100", "--height", "96"]) == 2
    assert main(["inspect", str(toy / "nothing")]) == 2


def test_the_toy_package_is_small_and_the_same_every_time(toy, tmp_path, capsys):
    again = tmp_path / "again"
    assert main(["toy", str(again)]) == 0
    files = sorted(path.relative_to(toy) for path in toy.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert all((toy / file).read_bytes() == (again / file).read_bytes() for file in files)
    assert sum((toy / file).stat().st_size for file in files) < 20e6
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal(["toy", str(tmp_path / "file/toy")], capsys)


def test_the_toy_tokenizer_reads_words_and_spells_the_rest(toy):
    from lingbot_world.text import load_tokenizer

    tokenizer = load_tokenizer(toy / "tokenizer")
    words = tokenizer.encode("the castle")
    assert len(words) == 3
    assert words[-1] == 1
    assert len(tokenizer.encode("the castl\u00e9")) > 4
    assert 3 not in tokenizer.encode("\u57ce\u5821 castle")


def test_camera_commands_are_there(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["camera", "--help"])
    assert stop.value.code == 0
    assert "convert" in capsys.readouterr().out


def test_cpu_noise_repeats_the_official_generator(golden):
    arrays = np.load(golden / "e2e/inputs.npz")
    noise = torch.randn(16, 3, 8, 12, generator=torch.Generator().manual_seed(int(arrays["noise_seed"])))
    np.testing.assert_array_equal(noise, arrays["noise"])
