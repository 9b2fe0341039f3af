"""The command: what it says, what it writes, and what it leaves behind when something is wrong."""

import ctypes
import gc
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import lingbot_world
import numpy as np
import pytest
import torch
from lingbot_world.headless.command import cli
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.stages import draw_noise
from lingbot_world.loaders import find_package
from lingbot_world.pipeline.geometry import explicit_geometry
from PIL import Image

pytestmark = pytest.mark.usefixtures("one_thread")

M_PERTURB = -6
"""glibc's mallopt: fill what is allocated and freed with bytes made from a number."""

WITH_CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit an ignored SIGINT
from lingbot_world.headless.command.cli import main
sys.exit(main())
"""


def test_generate_writes_the_video_that_was_asked_for(command, tmp_path, capsys):
    import av

    assert main(command()) == 0
    with av.open(str(tmp_path / "out/video.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == 16
        assert container.streams.video[0].codec_context.name == "h264"
    assert [frame.shape for frame in frames] == 5 * [(32, 48, 3)]
    assert np.std(frames) > 10
    output = capsys.readouterr().out
    assert output.splitlines()[0] == "48x32, 5 frames, 2 steps on cpu"
    assert re.search(r"^stage +seconds +peak GPU GB$", output, re.MULTILINE)
    for stage in ("text", "VAE encode", "load high-noise expert", "low-noise steps", "VAE decode", "write", "all"):
        assert re.search(rf"^{stage} +\d+\.\d", output, re.MULTILINE), stage
    assert output.rstrip().endswith(f"seed 1\n{tmp_path / 'out/video.mp4'}")
    assert os.listdir(tmp_path / "out") == ["video.mp4"]


def test_standard_output_need_not_take_every_letter_and_errors_may_be_closed(command, tmp_path):
    words = " ".join(f"'{word}'" for word in command(output=tmp_path / "höhe.mp4", sampling_steps=1))
    shell = f"'{sys.executable}' -m lingbot_world {words} 2>&-"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["bash", "-c", shell], capture_output=True, env=environment, cwd=tmp_path)
    assert (done.returncode, os.listdir(tmp_path)) == (0, ["höhe.mp4"]), done.stderr
    assert done.stdout.strip().endswith(rb"h\xf6he.mp4")


@pytest.fixture
def frames_of(command, tmp_path):
    """`frames_of(name, ...)`: the frames of a run of one step."""

    def run(name, **changes):
        assert main(command(output=tmp_path / name, sampling_steps=1, **changes)) == 0
        return np.stack([np.array(Image.open(file)) for file in sorted((tmp_path / name).iterdir())])

    return run


@pytest.mark.parametrize(
    ("option", "exact", "fast", "said"),
    [
        ("arithmetic", "bf16", "fp8", "fp8 on the CPU gives a GPU's quality, and takes longer than without it."),
        ("attention", "exact", "8bit", "Attention in 8 bits on the CPU gives about a GPU's quality"),
    ],
)
def test_8_bits_are_another_video_and_say_what_they_gain(frames_of, capsys, option, exact, fast, said):
    usual = frames_of("auto", **{option: "auto"})
    assert np.array_equal(frames_of("exact", **{option: exact}), usual)
    assert "on the CPU" not in capsys.readouterr().out
    assert not np.array_equal(frames_of("fast", **{option: fast}), usual)
    assert said in capsys.readouterr().out


def test_png_frames_repeat_with_the_seed_and_change_with_it(command, tmp_path, capsys):
    def pixels(name, **changes):
        assert main(command(output=tmp_path / name, sampling_steps=1, **changes)) == 0
        return [np.array(Image.open(file)) for file in sorted(Path(tmp_path, name).parent.glob("**/*.png"))]

    first, again, other = pixels("a/*.png"), pixels("b/f_%03d.png"), pixels("c", seed=2)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [f"f_{index:03}.png" for index in range(5)]
    assert all(np.array_equal(*pair) for pair in zip(first, again[:5], strict=True))
    assert not np.array_equal(first, other[-5:])
    assert "longer video" not in capsys.readouterr().out


def test_prompt_camera_solver_and_scale_reach_the_video(frames_of):
    base = frames_of("base")
    for name, changes in {
        "prompt": {"prompt": "a lake"},
        "negative": {"negative": ""},
        "camera": {"action_path": None},
        "solver": {"solver": "dpmpp"},
        "scale": {"guide_scale": "1,3"},
    }.items():
        assert not np.array_equal(frames_of(name, **changes), base), name


@pytest.mark.parametrize(
    ("causal", "option", "value"),
    [(False, "preset", "dolly_in"), (False, "keys", "w-4,l-5"), (True, "keys", "w-4,l-5")],
)
def test_a_camera_may_be_a_move_or_keys(causal, option, value, command, toy_package, tmp_path):
    """Over as many frames as the video has; the folder that `camera make` writes gives the same."""
    given = {"frame_num": 9, "action_path": None, "sampling_steps": None if causal else 1}
    given["ckpt_dir"] = toy_package / ("lingbot_world_fast" if causal else ".")
    frames = ["--frames", "9"] if option == "preset" else []
    assert main(["camera", "make", str(tmp_path / "path"), f"--{option}", value, *frames]) == 0
    for name, camera in (("said", {option: value}), ("made", {"action_path": tmp_path / "path"})):
        assert main(command(**given | camera, output=tmp_path / name)) == 0
    said, made = (sorted((tmp_path / name).iterdir()) for name in ("said", "made"))
    assert np.array_equal(*([np.array(Image.open(file)) for file in files] for files in (said, made)))
    assert len(said) == 9
    assert main(command(**given | {"action_path": toy_package / "example", option: value}, output=tmp_path / "x")) == 2


def test_a_short_pose_file_shortens_the_video_and_says_so(command, toy_package, tmp_path, capsys):
    poses = tmp_path / "poses"
    poses.mkdir()
    np.save(poses / "poses.npy", np.load(toy_package / "example/poses.npy")[:7])
    np.save(poses / "intrinsics.npy", np.load(toy_package / "example/intrinsics.npy"))
    assert main(command(action_path=poses, frame_num=9, sampling_steps=1, output=tmp_path / "png")) == 0
    assert f"{poses} holds 7 poses: the video has 5 frames, not 9." in capsys.readouterr().out
    assert len(os.listdir(tmp_path / "png")) == 5


def test_ctrl_c_ends_the_run_within_a_step_and_leaves_nothing(command, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_CTRL_C, *command(sampling_steps=2000)],
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=tmp_path,
    )
    shown = ""
    while "high-noise steps" not in shown and (letter := process.stderr.read(1)):
        shown += letter
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=300)
    assert process.returncode == 130, shown + rest
    assert "low-noise" not in rest, "it went on for hundreds of steps"
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("usual_signals")
def test_ctrl_c_twice_while_the_video_is_written_says_what_stays(command, tmp_path, monkeypatch, capsys):
    from lingbot_world.headless.files import video

    close = video._VideoFile.close

    def interrupted(file):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        return close(file)

    monkeypatch.setattr(video._VideoFile, "close", interrupted)
    assert main(command()) == 130
    assert (tmp_path / "out/video.mp4").is_file()
    assert capsys.readouterr().err.endswith(f"interrupted; finished files stay: {tmp_path / 'out/video.mp4'}\n")


@pytest.mark.usefixtures("usual_signals")
def test_a_second_ctrl_c_while_a_state_is_saved_does_not_say_that_nothing_was_written(
    command, toy_package, tmp_path, monkeypatch, capsys
):
    from lingbot_world.pipeline.state import WorldState

    save, video, state = WorldState.save, tmp_path / "cut.mp4", tmp_path / "cut.state"

    def interrupted(*arguments):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        return save(*arguments)

    monkeypatch.setattr(WorldState, "save", interrupted)
    given = {"frame_num": 9, "sampling_steps": None, "ckpt_dir": toy_package / "lingbot_world_fast"}
    assert main(command(**given, output=video, save_state=state)) == 130
    assert capsys.readouterr().err.endswith(f"interrupted; finished files stay: {video}, {state}\n")


@pytest.mark.parametrize("sub_command", ["generate", "batch", "live"])
def test_only_a_process_of_its_own_spares_imports_its_collections(sub_command, command, tmp_path, monkeypatch):
    jobs = tmp_path / "jobs.jsonl"
    jobs.touch()
    words = command(image=tmp_path / "none.png")
    checkpoint = words[words.index("--ckpt_dir") + 1]
    if sub_command == "batch":
        words = ["batch", str(jobs), str(tmp_path / "out"), "--ckpt_dir", checkpoint]
    elif sub_command == "live":
        words = ["live", checkpoint, "--image", str(tmp_path / "none.png")]
    froze = []
    monkeypatch.setattr(gc, "freeze", lambda: froze.append(True))
    assert main(words) == 2, "there is nothing to make"
    assert not froze
    monkeypatch.setattr(sys, "argv", ["lingbot-world", *words])
    assert main() == 2
    assert froze == [True]


def test_an_exception_while_writing_leaves_the_old_file(tmp_path):
    from lingbot_world.headless.files.target import find_target
    from lingbot_world.headless.files.video import FRAMES_AT_ONCE, write_frames

    def interrupt(done, total):
        assert done < total
        raise KeyboardInterrupt

    frames = np.zeros((FRAMES_AT_ONCE + 2, 48, 64, 3), np.uint8)
    for name in ("video.mp4", "png"):
        target = find_target(tmp_path / name)
        write_frames(frames, target)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(KeyboardInterrupt):
            write_frames(frames + 99, target, progress=interrupt)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_the_same_frames_are_the_same_bytes_whatever_lay_in_memory(tmp_path):
    from lingbot_world.headless.files.target import find_target
    from lingbot_world.headless.files.video import write_frames

    draw, fill_memory = np.random.default_rng(3), partial(ctypes.CDLL(None).mallopt, M_PERTURB)
    picture = np.kron(draw.uniform(0, 255, (19, 30, 3)), np.ones((16, 16, 1)))
    frames = np.stack([picture[2 * index : 2 * index + 240, 3 * index : 3 * index + 416] for index in range(13)])
    frames = np.clip(frames + draw.normal(0, 4, frames.shape), 0, 255).astype(np.uint8)
    found = set()
    for value in (0, 1, 37, 85, 0):
        fill_memory(value)
        found.add(write_frames(frames, find_target(tmp_path / f"{value}.mp4")).read_bytes())
    assert len(found) == 1


def test_inspect_describes_packages_and_parts(toy_package, capsys):
    assert main(["inspect", str(toy_package), "--size", "240*416"]) == 0
    report = capsys.readouterr().out
    for part in (
        "416x240, 81 frames (8190 tokens)",
        "quantization nf4",
        "camera (6 values",
        "umt5, 2 blocks",
        "width 8",
        "steps, both experts resident",
        "steps, 0 of 3 blocks resident, used if memory is short",
        "VAE encode, tiled, used if memory is short",
        "VAE decode, tiled",
    ):
        assert part in report, part
    for name in ("Wan2.1_VAE.pth", "models_t5_umt5-xxl-enc-bf16.pth", "low_noise_model_bnb_nf4"):
        assert main(["inspect", str(toy_package / name)]) == 0
    assert main(["inspect", str(toy_package), "--width", "100", "--height", "96"]) == 2
    assert main(["inspect", str(toy_package / "nothing")]) == 2


def test_inspect_takes_a_release_where_it_can_and_leaves_nothing_aside(toy_package, capsys):
    for model in (
        "lingbot_world_fast",
        "lingbot_world_fast/model.safetensors",
        "high_noise_model_bnb_nf4/model.safetensors",
    ):
        assert main(["inspect", str(toy_package / model), "--release", "v2"]) == 0
        assert "LingBot-World 2.0 (CC BY-NC-SA 4.0, for non-commercial use)" in capsys.readouterr().out
    for option, value in (("release", "v2"), ("window", "18"), ("sink", "3")):
        assert main(["inspect", str(toy_package), f"--{option}", value]) == 2
        assert f"--{option} has no effect: {toy_package} is not a causal model" in capsys.readouterr().err
    assert main(["inspect", str(toy_package), "--width", "64"]) == 2
    assert "--width and --height go together" in capsys.readouterr().err


def test_an_interrupt_while_the_command_reads_its_words_is_one_line(monkeypatch, capsys):
    def interrupted(_argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupted)
    assert main(["camera", "show", "nowhere"]) == 130
    assert capsys.readouterr().err == "\nlingbot-world: interrupted\n"


LIST = [sys.executable, "-m", "lingbot_world", "queue", lingbot_world.__path__[0] + "/workflows/api/toy.json", "--list"]
"""A command that prints and that imports no torch."""


def test_output_that_nobody_reads_any_more_ends_the_command_quietly(tmp_path):
    with subprocess.Popen(LIST, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize("needed", [True, False])
def test_an_output_that_is_closed_is_one_line_where_it_is_needed(needed, command):
    words = [*LIST[:3], *command(output="-")] if needed else LIST
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True)
    said = "lingbot-world: --output -: standard output is closed; redirect it to a program or a file\n"
    assert (done.returncode, done.stderr) == ((2, said) if needed else (0, ""))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_named():
    with open("/dev/full", "w") as full:
        done = subprocess.run(LIST, stdout=full, stderr=subprocess.PIPE, text=True)
    reason = "standard output: No space left on device; make room, or write elsewhere"
    assert (done.returncode, done.stderr) == (2, f"lingbot-world: {reason}\n")


def test_the_toy_package_is_small_and_the_same_every_time(toy_package, tmp_path, capsys):
    again = tmp_path / "again"
    assert main(["toy", str(again), "--random"]) == 0
    files = sorted(path.relative_to(toy_package) for path in toy_package.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert all((toy_package / file).read_bytes() == (again / file).read_bytes() for file in files)
    assert sum((toy_package / file).stat().st_size for file in files) < 20e6
    (tmp_path / "file").write_text("")
    assert main(["toy", str(tmp_path / "file/toy")]) == 2
    assert "file/toy: the folder cannot be made (Not a directory); write elsewhere" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="^2$"):
        main(["toy", ""])
    assert "the path is empty" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [[], ["--maze"], ["--random"]])
@pytest.mark.parametrize(
    "name", ["lingbot_world_fast/diffusion_pytorch_model-00001-of-00008.safetensors", "Wan2.1_VAE.pth"]
)
def test_a_toy_does_not_take_the_place_of_real_weights(tmp_path, capsys, name, kind):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    with (tmp_path / name).open("wb") as file:
        file.truncate(500_000_000)
    assert main(["toy", str(tmp_path), *kind]) == 2
    assert f"{tmp_path / name}: 0.5 GB, which no toy has; name another folder" in capsys.readouterr().err
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == [Path(name).name]


def test_the_seed_of_a_trained_toy_is_refused(tmp_path, capsys):
    assert main(["toy", str(tmp_path / "toy"), "--seed", "4"]) == 2
    assert "--seed is the seed of random weights: give --random too" in capsys.readouterr().err


def test_a_path_may_begin_with_ones_own_folder(command, toy_package, tmp_path, monkeypatch):
    """Shells leave the ~ of --image=~/a.png as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "image.png").write_bytes((toy_package / "example/image.png").read_bytes())
    assert main(command(image="~/image.png", output="~/new/video.mp4", sampling_steps=1)) == 0
    assert (tmp_path / "new/video.mp4").is_file()


def test_the_trained_toy_is_a_whole_package(tmp_path, capsys):
    assert main(["toy", str(tmp_path / "toy")]) == 0
    assert main(["inspect", str(tmp_path / "toy"), "--width", "256", "--height", "144", "--frame_num", "33"]) == 0
    assert "256x144, 33 frames (1296 tokens)" in capsys.readouterr().out
    files = [path for path in (tmp_path / "toy").rglob("*") if path.is_file()]
    assert sum(file.stat().st_size for file in files) < 55e6
    assert find_package(tmp_path / "toy").experts is not None
    assert find_package(tmp_path / "toy/lingbot_world_fast").causal is not None
    assert np.load(tmp_path / "toy/example/poses.npy").shape == (129, 4, 4)
    assert (tmp_path / "toy/example/prompt.txt").read_text().startswith("a maze with red")


def test_the_toy_tokenizer_reads_words_and_spells_the_rest(toy_package):
    from lingbot_world.text import load_tokenizer

    tokenizer = load_tokenizer(toy_package / "tokenizer")
    words = tokenizer.encode("the castle")
    assert len(words) == 3
    assert words[-1] == 1
    assert len(tokenizer.encode("the castl\u00e9")) > 4
    assert 3 not in tokenizer.encode("\u57ce\u5821 castle")


def test_a_dry_run_checks_everything_and_makes_nothing(command, tmp_path, capsys):
    assert main([*command(frame_num=8), "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("48x32, 5 frames, 2 steps on cpu\nFrames come in 4n+1: the video has 5 frames, not 8.")
    assert (said.err, os.listdir(tmp_path)) == ("", [])
    assert main([*command(), "--dry_run", "-v"]) == 0
    assert "\nWhat computes on" in capsys.readouterr().out
    assert main([*command(image="nowhere.png"), "--dry_run"]) == 2


@pytest.mark.parametrize("causal", [False, True])
def test_a_run_says_what_the_last_one_of_its_kind_took(causal, command, toy_package, tmp_path, monkeypatch, capsys):
    """A causal one by its frames. Another size is another kind."""
    times = tmp_path / "times.json"
    monkeypatch.setenv("LINGBOT_WORLD_TIMES", str(times))
    given = {"action_path": None, "ckpt_dir": toy_package / ("lingbot_world_fast" if causal else ".")}
    given |= {"sampling_steps": None, "frame_num": 9} if causal else {}

    def first_line(name, **changes):
        assert main(command(**given | changes, output=tmp_path / name)) == 0
        return capsys.readouterr().out.splitlines()[0]

    assert first_line("a").endswith("on cpu")
    ((kind, took),) = json.loads(times.read_text()).items()
    times.write_text(json.dumps({kind: {"once": 60, "per_frame": 10 if causal else 0}}))
    told = "about 2 min, by the last run of this kind" if causal else "about 60 s, by the last run of this kind"
    assert first_line("b", seed=2, prompt="a lake").endswith(f"on cpu; {told}")
    assert first_line("c", width=32).endswith("on cpu")
    assert took["once"] > 0
    times.write_text("[broken")
    assert first_line("d").endswith("on cpu")


@pytest.mark.parametrize(("first", "second"), [([], ["--random"]), (["--random"], ["--maze"])])
def test_a_toy_is_not_written_among_the_models_of_another_one(tmp_path, capsys, first, second):
    """Which of the models is meant could not be told; the older one was run. A toy of the same kind is replaced."""
    folder = str(tmp_path / "toy")
    assert main(["toy", folder, *first]) == main(["toy", folder, *first]) == 0
    before = {file: file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}
    assert main(["toy", folder, *second]) == 2
    assert "a model that is not this toy's; name another folder" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()} == before


def test_a_state_that_is_computed_again_counts_by_its_own_frames(command, toy_package, tmp_path, monkeypatch, capsys):
    """A long one made every later run of its kind look long."""
    times, state = tmp_path / "times.json", tmp_path / "a.state"
    monkeypatch.setenv("LINGBOT_WORLD_TIMES", str(times))
    causal = {"ckpt_dir": toy_package / "lingbot_world_fast", "action_path": None, "sampling_steps": None}
    given = causal | {"frame_num": 9}
    assert main(command(**given, output=tmp_path / "a", save_state=state)) == 0
    times.write_text(times.read_text().replace("}}", ', "per_frame_before": 30}}'))
    capsys.readouterr()
    goes_on = given | {"continue_from": state, "frame_num": 12}
    assert main([*command(**goes_on, output=tmp_path / "b"), "--dry_run"]) == 0
    assert "about 5 min, by the last run of this kind" in capsys.readouterr().out.splitlines()[0]  # for 9 frames
    assert main(command(**goes_on, output=tmp_path / "b")) == 0
    (took,) = json.loads(times.read_text()).values()
    assert 0 < took["per_frame_before"] < 30
    assert main(command(**given, output=tmp_path / "c")) == 0
    (kept,) = json.loads(times.read_text()).values()
    assert kept["per_frame_before"] == took["per_frame_before"]


def test_a_quiet_run_says_nothing(command, tmp_path, capsys):
    assert main([*command(), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "out/video.mp4").is_file()
    assert main([*command(), "--quiet"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_one_is_not_many(command, tmp_path, capsys):
    assert main([*command(sampling_steps=1), "--dry-run"]) == 0
    assert "5 frames, 1 step on cpu" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"lingbot-world {lingbot_world.__version__}\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ba", "batch"), ("generate --kv", "--kv_cache"), ("generate --kv_cache h", "host"), ("camera me", "measure")],
)
def test_bash_completes_the_words(typed, offered, tmp_path, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    words = ["lingbot-world", *typed.split()]
    asked = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_lingbot_world; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", capsys.readouterr().out + asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [offered]


@pytest.mark.parametrize("command", ["generate", "batch", "inspect"])
def test_help_says_defaults_as_they_are_given(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "(default: 480x832)" in said
    assert "None" not in said


def test_cpu_noise_repeats_the_official_generator(golden):
    arrays = np.load(golden / "e2e/inputs.npz")
    generator = torch.Generator().manual_seed(int(arrays["noise_seed"]))
    noise = draw_noise(explicit_geometry(width=96, height=64, frames=9), generator)
    np.testing.assert_array_equal(noise[0], arrays["noise"])


def test_noise_is_drawn_from_the_generator_that_is_given():
    """Causal models draw more from the same generator afterwards."""
    geometry, generator = explicit_geometry(64, 48, 5), torch.Generator().manual_seed(3)
    first, second = draw_noise(geometry, generator), draw_noise(geometry, generator)
    assert first.shape == (1, 16, 2, 6, 8)
    assert first.dtype == torch.float32
    assert not torch.equal(first, second)
    assert torch.equal(first, draw_noise(geometry, generator.manual_seed(3)))
    assert torch.equal(second, draw_noise(geometry, generator))
