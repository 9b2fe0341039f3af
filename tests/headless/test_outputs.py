"""An output belongs to one run at a time: two runs into one file, folder of PNG files or state leave it whole."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import av
import pytest
from lingbot_world.errors import InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.files.target import find_target
from lingbot_world.outputs import lock_output, name_whole, part_of, written_whole
from lingbot_world.pipeline.state import load_state
from lingbot_world.toy import write_toy_package
from PIL import Image
from rollout_run_cases import small_options, words_of

PAIRS = int(os.environ.get("LINGBOT_PAIRS", 1))
REFUSED = "another run is writing it; wait for its end, or write elsewhere"
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")

# For each line of JSON, commands that are begun some seconds apart, each in a fork that need not import torch again.
RUNS = """
import gc, json, os, sys, time
import torch
import lingbot_world.headless.run, lingbot_world.pipeline.state, av, filelock, tokenizers, safetensors.torch
from lingbot_world import outputs
from lingbot_world.headless.command.cli import main
held = []  # when a lock was taken or given back

def noted(function):
    def work(*arguments):
        try:
            return function(*arguments)
        finally:
            held.append(time.monotonic())
    return work

outputs._acquire, outputs._release = noted(outputs._acquire), noted(outputs._release)
torch.set_num_threads(1)
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    children = []
    for pause, errors, arguments in json.loads(line):
        if (child := os.fork()) == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
            time.sleep(pause)
            code = main(arguments)
            os.write(2, f"\\n{min(held, default=0)} {max(held, default=0)}".encode())
            os._exit(code)
        children.append(child)
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)
"""


@pytest.fixture(scope="module")
def together():
    """`together([(seconds, errors' file, arguments), ...])`: the exit codes of commands begun so many seconds later."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", RUNS], env=environment, **pipes) as parent:
        assert parent.stdout.readline() == "ready\n"

        def run(commands):
            parent.stdin.write(json.dumps(commands) + "\n")
            parent.stdin.flush()
            return [int(code) for code in parent.stdout.readline().split()]

        yield run
        parent.stdin.close()


def arguments(toy_package, output, state=None):
    size = {"width": 32, "height": 32, "frame_num": 45}
    given = small_options(toy_package, output.parent)
    return words_of(given, **size, schedule="0,500", output=output, save_state=state)


def check_whole(output: Path, state: Path | None, frames: int = 45) -> None:
    if output.suffix == ".mp4":
        with av.open(str(output)) as video:
            assert sum(1 for _ in video.decode(video=0)) == frames
    else:
        files = sorted(output.glob("*.png"))
        assert [file.name for file in files] == [f"frame_{number:05d}.png" for number in range(frames)]
        for file in files:
            Image.open(file).load()
    if state is not None:
        assert load_state(state).frames == frames


@posix
@pytest.mark.parametrize("pair", range(PAIRS))
@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("kind", ["video", "PNG", "state"])
def test_of_two_runs_into_one_output_one_is_refused(together, toy_package, tmp_path, kind, overwrite, pair):
    """The runs have videos of their own where they share the state alone. A run that takes the output after the other
    has given it back may replace what it finds."""
    pauses = 0, random.Random(f"{kind} {overwrite} {pair}").uniform(0, 3 if pair else 0.3)
    outputs = [tmp_path / ("png" if kind == "PNG" else "video.mp4")] * 2
    state = tmp_path / "a.state" if kind == "state" else None
    if state is not None:
        outputs = [tmp_path / "first.mp4", tmp_path / "second.mp4"]
    errors = [tmp_path / f"{number}.txt" for number in range(2)]
    words = [arguments(toy_package, output, state) + ["--overwrite"] * overwrite for output in outputs]
    codes = together([(pause, str(file), given) for pause, file, given in zip(pauses, errors, words, strict=True)])
    said = [file.read_text() for file in errors]
    (taken_first, returned), (taken_second, _) = sorted(tuple(map(float, text.split()[-2:])) for text in said)
    print(f"{kind}, {pauses[1]:.2f} s later: {codes}")
    if codes == [0, 0]:
        assert overwrite
        assert taken_first < returned < taken_second
    else:
        assert sorted(codes) == [0, 2]
        refusal = said[codes.index(2)]
        assert REFUSED in refusal or (
            not overwrite and re.search(r"(?<!\.part)\.(mp4|png|state) exists already", refusal)
        )
        assert refusal.count("lingbot-world:") == 1
    done = [output for output, code in zip(outputs, codes, strict=True) if code == 0]
    for output in done:
        check_whole(output, state)
    own = {output.name for output in done} | ({"a.state"} if kind == "state" else set())
    assert {file.name for file in tmp_path.iterdir()} == own | {"0.txt", "1.txt"}


def test_a_run_is_refused_before_anything_heavy(toy_package, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lingbot_world.headless.run.draw_noise", lambda *_: pytest.fail("the run has begun"))
    words = arguments(toy_package, tmp_path / "x.mp4", tmp_path / "a.state")
    for file in ("x.mp4", "a.state"):
        with lock_output(tmp_path / file):
            assert main(words) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 1
        assert f"{tmp_path / file}: {REFUSED}" in said[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "taking"),
    [
        (["camera", "make", "{}/poses", "--preset", "dolly_in"], "poses/poses.npy"),
        (["toy", "--random", "{}/toy"], "toy/toy"),
    ],
    ids=["camera", "toy"],
)
def test_other_outputs_are_taken_too(tmp_path, capsys, words, taking):
    with lock_output(tmp_path / taking):
        assert main([word.format(tmp_path) for word in words]) == 2
    assert REFUSED in capsys.readouterr().err
    assert main([word.format(tmp_path) for word in words]) == 0
    assert not list(tmp_path.rglob("*.lock"))


def test_a_package_is_quantized_by_one_run_at_a_time(golden, tmp_path, capsys):
    words = ["quantize", str(golden / "causal/model"), str(tmp_path / "nf4"), "--device", "cpu"]
    with lock_output(tmp_path / "nf4"):
        assert main(words) == 2
    assert REFUSED in capsys.readouterr().err
    assert main(words) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["nf4"]


def test_a_lock_is_one_runs_and_goes_with_it(tmp_path):
    file = tmp_path / "new/folder/x.mp4"
    with lock_output(file):
        assert (tmp_path / "new/folder/x.mp4.lock").exists()
        with pytest.raises(InputError, match=REFUSED), lock_output(file):
            pytest.fail("two have it")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), lock_output(file):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@posix
def test_a_dead_runs_lock_and_unfinished_files_are_taken_over(tmp_path):
    file, other = tmp_path / "x.mp4", tmp_path / "x.mp4.other"
    code = (
        "import sys, time; from pathlib import Path; from lingbot_world.outputs import part_of, lock_output\n"
        "file = Path(sys.argv[1])\n"
        "with lock_output(file):\n part_of(file).touch(); print('taken', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "taken\n"
        with pytest.raises(InputError, match=REFUSED), lock_output(file):
            pytest.fail("two have it")
        run.send_signal(signal.SIGKILL)
    other.touch()
    assert len(list(tmp_path.iterdir())) == 3
    with lock_output(file):
        assert {each.name for each in tmp_path.iterdir()} == {"x.mp4.lock", other.name}
    assert list(tmp_path.iterdir()) == [other]


def test_unfinished_files_of_two_processes_have_names_of_their_own(tmp_path, monkeypatch):
    file = tmp_path / "x.mp4"
    first = part_of(file)
    assert first == part_of(file)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert part_of(file) != first


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a device or a pipe, expected a file"), written_whole(pipe) as (part,):
        part.write_text("text", encoding="utf-8")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_is_followed(tmp_path):
    real, link = tmp_path / "disk/real.txt", tmp_path / "link.txt"
    real.parent.mkdir()
    link.symlink_to(real)
    for text in ("new", "again"):
        with lock_output(link), written_whole(link) as (part,):
            assert part.parent == real.parent
            part.write_text(text, encoding="utf-8")
        assert link.is_symlink()
        assert real.read_text(encoding="utf-8") == text
    part_of(link).write_text("third", encoding="utf-8")
    name_whole(link)
    assert real.read_text(encoding="utf-8") == "third"


def test_a_video_through_a_link_is_written_where_it_leads(toy_package, tmp_path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "video.mp4"
    link.symlink_to(tmp_path / "disk/real.mp4")
    assert main(arguments(toy_package, link)) == 0
    assert link.is_symlink()
    check_whole(tmp_path / "disk/real.mp4", None)
    assert main(arguments(toy_package, link)) == 2


@posix
def test_a_pipe_that_nobody_reads_is_refused(toy_package, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main(arguments(toy_package, tmp_path / "pipe")) == 2
    assert "nobody reads this pipe" in capsys.readouterr().err


def test_a_shorter_video_replaces_all_of_a_longer_one(toy_package, tmp_path, capsys):
    """PNG files of others, and those after a gap, stay."""
    folder = tmp_path / "png"
    words = arguments(toy_package, folder)
    assert main(words) == 0
    for name in ("other_00030.png", "frame_00090.png"):
        (folder / name).touch()
    words[words.index("45")] = "21"
    capsys.readouterr()
    assert main([*words, "--overwrite"]) == 0
    said = f"{folder} holds a longer video: its files from frame_00021.png to frame_00044.png are removed."
    assert said in capsys.readouterr().out
    expected = {f"frame_{number:05d}.png" for number in range(21)} | {"other_00030.png", "frame_00090.png"}
    assert {file.name for file in folder.iterdir()} == expected


def test_a_folder_of_png_files_has_a_lock_for_each_pattern(tmp_path):
    one, other = find_target(tmp_path / "a_*.png"), find_target(tmp_path / "b_*.png")
    dead = [tmp_path / name for name in ("a_00001.png.1234.part", "b_00001.png.1234.part")]
    for file in dead:
        file.touch()
    with one.lock(), contextlib.ExitStack() as stack:
        assert [file.exists() for file in dead] == [False, True]
        stack.enter_context(other.lock())
        with pytest.raises(InputError, match=REFUSED), one.lock():
            pytest.fail("two have it")


def test_toys_of_two_processes_are_whole(tmp_path):
    with lock_output(tmp_path / "toy/toy"), pytest.raises(InputError, match=REFUSED):
        write_toy_package(tmp_path / "toy")


def test_a_circle_of_links_is_refused_and_a_link_to_nothing_is_followed(command, tmp_path, capsys):
    (tmp_path / "a.mp4").symlink_to("b.mp4")
    (tmp_path / "b.mp4").symlink_to("a.mp4")
    assert main(command(output=tmp_path / "a.mp4")) == 2
    assert "a symbolic link that leads back to itself" in capsys.readouterr().err
    assert (tmp_path / "a.mp4").is_symlink()
    (tmp_path / "frames").symlink_to("elsewhere")
    assert main(command(output=tmp_path / "frames", sampling_steps=1)) == 0
    assert len(list((tmp_path / "elsewhere").iterdir())) == 5
