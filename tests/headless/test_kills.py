"""`kill -9` at random moments of generate: there is no output, or a whole one, and the next run makes it."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import av
import pytest
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.rollout import SECONDS_BETWEEN_STATES
from lingbot_world.pipeline.state import load_state
from live_cases import wait_for
from rollout_run_cases import small_options, words_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")

KILLS = int(os.environ.get("LINGBOT_KILLS", 4))

# A command for each line of JSON, in a process of its own that need not import torch again: it says its id and its end.
RUNS = """
import gc, json, os, sys
import torch
import lingbot_world.headless.rollout, lingbot_world.headless.run, lingbot_world.pipeline.state
import av, tokenizers, safetensors.torch
from lingbot_world.headless.command.cli import main
torch.set_num_threads(1)
gc.freeze()  # as conftest.py does for the tests
say = lambda text: os.write(1, (text + chr(10)).encode())

say("ready")
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        words, lingbot_world.headless.rollout.SECONDS_BETWEEN_STATES = json.loads(line)
        os._exit(main(words))
    say(str(child))
    say(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""


class Runs:
    """Commands in processes that can be killed."""

    def __init__(self):
        self._parent = subprocess.Popen(
            [sys.executable, "-c", RUNS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._said() == "ready"

    def _said(self):
        return self._parent.stdout.readline().strip()

    def run(self, arguments, killed_after=None, between_states=SECONDS_BETWEEN_STATES):
        """The exit code; -9 where `killed_after()` returned in time."""
        self._parent.stdin.write(json.dumps([arguments, between_states]) + "\n")
        self._parent.stdin.flush()
        child = int(self._said())
        if killed_after is not None:
            killed_after()
            with contextlib.suppress(ProcessLookupError):  # it is done
                os.kill(child, signal.SIGKILL)
        return int(self._said())

    def close(self):
        self._parent.stdin.close()
        self._parent.wait(120)


@pytest.fixture(scope="module")
def runs():
    made = Runs()
    yield made
    made.close()


def options(kind, toy_package, folder):
    """Arguments of a small run, and the files that it makes."""
    given = {"width": 32, "height": 32, "seed": 1, "action_path": toy_package / "example"}
    given |= {"output": folder / "video.mp4"}
    if kind == "base":
        given |= {"ckpt_dir": toy_package, "frame_num": 5, "sampling_steps": 2}
    else:
        given |= {"save_state": folder / "a.state", "schedule": "0,500"}
    return [*words_of(small_options(toy_package, folder), **given), "--overwrite"]


@pytest.fixture(scope="module", params=["base", "causal"])
def whole(request, runs, toy_package, tmp_path_factory):
    """What an undisturbed run makes, by name, and how long it takes."""
    folder = tmp_path_factory.mktemp(request.param)
    begin = time.monotonic()
    assert runs.run(options(request.param, toy_package, folder)) == 0
    seconds = time.monotonic() - begin
    return request.param, {file.name: file.read_bytes() for file in folder.iterdir()}, seconds


@pytest.mark.parametrize("moment", range(KILLS // 2))
def test_a_killed_run_leaves_nothing_or_all_of_it(runs, whole, toy_package, tmp_path, moment):
    kind, wanted, seconds = whole
    pause = seconds * random.Random(f"{kind} {moment}").uniform(0.02, 1.02)
    code = runs.run(options(kind, toy_package, tmp_path), killed_after=lambda: time.sleep(pause))
    assert code in (0, -9)
    unfinished = (".part", ".lock")
    files = (file for file in tmp_path.iterdir() if file.suffix not in unfinished and not file.name.startswith(".tmp"))
    made = {file.name for file in files if file.name != "video.part.mp4"}
    print(f"{kind}: killed after {pause:.2f} of {seconds:.2f} s, left {sorted(made) or 'nothing'}")
    assert made <= wanted.keys()
    for name in made:
        check(tmp_path / name, frames=5 if kind == "base" else 21)
    assert runs.run(options(kind, toy_package, tmp_path)) == 0
    assert {name: (tmp_path / name).read_bytes() for name in wanted} == wanted
    assert not [*tmp_path.glob("*.part*"), *tmp_path.glob("*.lock")]


def test_a_killed_run_loses_what_was_made_since_the_last_state(runs, toy_package, tmp_path):
    """Here a state is saved after each chunk. The video beside it plays, and another run goes on from the state."""
    words, saved = options("causal", toy_package, tmp_path), tmp_path / "a.state"
    words[words.index("--frame_num") + 1] = "1209"
    camera = words.index("--action_path")
    words = [*words[:camera], *words[camera + 2 :], "--window", "6"]

    def long_enough():
        wait_for(lambda: saved.exists() and load_state(saved).frames >= 33)

    assert runs.run(words, long_enough, between_states=0) == -signal.SIGKILL
    names = {file.name for file in tmp_path.iterdir() if file.suffix not in (".part", ".lock")}
    assert names == {"video.part.mp4", "a.state"}
    with av.open(str(tmp_path / "video.part.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) >= 32
    on = options("causal", toy_package, tmp_path)
    on[on.index("--output") + 1] = str(tmp_path / "next.mp4")
    assert main([*on, "--continue_from", str(saved), "--frame_num", "12"]) == 0
    refused = [word for word in words if word != "--overwrite"]
    assert main(refused) == 2  # it would replace what the killed one has left


def check(file, frames):
    """Whole, or an error."""
    if file.suffix == ".state":
        assert load_state(file).latent.shape[2] == 6
        return
    with av.open(str(file)) as video:
        assert sum(1 for _ in video.decode(video=0)) == frames
