"""One video made by several processes: the same numbers as one process makes, and one message when something fails."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.process.processes import Processes
from lingbot_world.model.memory import activation_bytes
from lingbot_world.model.parallel import SequenceParallel
from lingbot_world.options import Precision
from model_cases import SMALL
from PIL import Image

GOLDENS = Path(__file__).parents[1] / "parallel_scripts" / "goldens.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def goldens(tmp_path_factory):
    """The folder into which `goldens.py` has written what it found in two processes, and in four."""
    folder = tmp_path_factory.mktemp("goldens")
    command = [sys.executable, GOLDENS, folder, "2", "4"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(params=[2, 4])
def found(request, goldens):
    """How many processes `goldens.py` ran in, and what it found."""
    return request.param, json.loads((goldens / f"{request.param}.json").read_text())


def test_together_they_compute_what_one_process_or_the_official_code_computes(found):
    processes, (cases, *_) = found
    assert len(cases) == {2: 30, 4: 15}[processes]
    assert sum(case["official"] for case in cases.values()) == {2: 12, 4: 3}[processes]
    for name, case in cases.items():
        assert case["difference"] < (1e-4 if case["official"] else 1e-5) < case["scale"], (name, case)
        assert case["same everywhere"], name


def test_together_they_decode_what_one_process_decodes(found):
    _, (_, frames, _) = found
    assert len(frames) == 2
    for name, difference in frames.items():
        assert difference["largest"] <= 1, name  # a last bit may round the other way
        assert difference["share"] < 1e-3, name


def test_each_keeps_its_piece_of_the_weights(found):
    processes, (_, _, held) = found
    assert held["whole"] / processes <= held["kept"] < 1.01 * held["whole"] / processes + 5 * 256


@pytest.mark.parametrize(("grid", "size"), list(product([(1, 2, 2), (3, 5, 3), (21, 3, 7), (2, 8, 8)], [2, 3, 5, 8])))
def test_the_shares_together_are_all_tokens(grid, size):
    frames, rows, columns = grid
    tokens = torch.arange(1.0, frames * rows * columns + 1).view(1, -1, 1)
    latent = tokens.view(1, 1, *grid)
    parts, tables = [], []
    for rank in range(size):
        share = parallel(rank, size).share(grid)
        of_its_frames = share.latent(latent).flatten(1)[..., None]
        parts.append(share.cut(of_its_frames))
        tables.append(share.rope(tokens[0]))
    assert {part.shape for part in parts} == {(1, -(-tokens.shape[1] // size), 1)}
    assert torch.equal(torch.cat(parts, dim=1)[:, : tokens.shape[1]], tokens)
    assert not torch.cat(parts, dim=1)[:, tokens.shape[1] :].any()
    assert torch.equal(torch.cat(tables), torch.cat(parts, dim=1)[0])


def parallel(rank: int, size: int) -> SequenceParallel:
    return SequenceParallel(SimpleNamespace(rank=lambda: rank, size=lambda: size))


def test_what_is_exchanged_between_recorded_kernels_is_handed_over_in_memory_that_stays(monkeypatch):
    """Here the kernels of a recording do run, and the exchanges are made afterwards."""

    def within_the_process(received, sent, **_options):
        received.copy_(sent)
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr("torch.distributed.all_to_all_single", within_the_process)
    share, made = parallel(0, 1).share((1, 2, 3)), []
    for number in range(2):
        actions, given = [], [torch.full((6, 4), 10.0 * number + part) for part in range(4)]
        with share.parallel.exchanges.recorded_by(lambda *more, actions=actions: actions.extend(more)):
            q_k_v = share.to_heads(iter(given[:3]))
            before = actions.copy()
            share.to_tokens(given[3])
        assert (len(before), len(actions)) == (6, 8)
        for action in before:
            action()
        assert all(map(torch.equal, q_k_v, given[:3]))
        made.append([tensor.data_ptr() for tensor in q_k_v])
    assert made[0] == made[1]
    assert torch.equal(share.to_heads(iter(given[:3]))[2], given[2]), "exchanged at once again"


def test_heads_that_do_not_divide_are_refused_with_what_does():
    with pytest.raises(InputError, match="3 processes cannot share the model's 2 heads; 1, 2 can"):
        parallel(0, 3).check(SMALL)


def test_each_process_needs_less_memory():
    each = (Precision(torch.bfloat16, processes=count) for count in (1, 2, 4))
    whole, half, quarter = (activation_bytes(SMALL, 21, 60, 104, precision) for precision in each)
    assert quarter < half < whole


def test_one_gpu_for_all_is_refused():
    with pytest.raises(InputError, match="cuda:1: 2 processes use a GPU each"):
        Processes(0, 2).device("cuda:1")
    assert Processes(0, 2).device("cpu") == "cpu"
    assert Processes().device("cuda:1") == "cuda:1"


def generate(arguments, *more, **settings):
    command = [sys.executable, "-m", "lingbot_world", *map(str, arguments), *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, **settings)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("causal", [False, True], ids=["base", "causal"])
def test_the_command_makes_the_same_pictures(command, toy_package, tmp_path, capsys, causal):
    changes = {"ckpt_dir": toy_package / "lingbot_world_fast", "sampling_steps": None, "frame_num": 9} if causal else {}
    changes |= {"width": 256, "height": 48}  # halves of it are decoded by two processes
    more = ["--shard"] if causal else []
    assert main([*command(**changes, output=tmp_path / "1/*.png"), "--gpus", "1"]) == 0
    process = generate(command(**changes, output=tmp_path / "2/*.png"), "--gpus", "2", *more)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert out.count("stage ") == capsys.readouterr().out.count("stage ") == 1  # one process tells
    folders = [sorted((tmp_path / gpus).glob("*.png")) for gpus in "12"]
    videos = [np.stack([np.array(Image.open(path)) for path in pictures]).astype(int) for pictures in folders]
    assert len(videos[0]) >= 5
    assert np.abs(videos[0] - videos[1]).max() <= 1  # a last bit may round the other way


def test_a_dry_run_says_once_what_all_processes_find_that_cannot_be_divided(command):
    process = generate(command(guide_scale=1), "--gpus", "3", "--dry_run")
    out, errors = process.communicate(timeout=600)
    assert (process.returncode, out) == (2, "")
    assert len(errors.splitlines()) == 1
    assert errors.startswith("lingbot-world: ")
    assert "3 processes cannot share the model's 2 heads; 1, 2 can" in errors


def test_weights_that_nobody_shares_are_refused(command, capsys):
    assert main([*command(), "--shard", "--dry_run"]) == main([*command(), "--shard"]) == 2
    assert "--shard divides the weights among several GPUs: give --gpus too" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_one_process_that_dies_ends_all_with_one_message(command, tmp_path, how):
    out = tmp_path / "out"
    process = generate(command(sampling_steps=900, output=out / "video.mp4"), "--gpus", "2", start_new_session=True)
    shown = ""
    while not shown.endswith("steps:"):  # the bar of the steps has begun
        assert (letter := process.stderr.read(1)), shown
        shown += letter
    if how == "killed":
        os.kill(workers(process.pid)[1], signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    errors = process.communicate(timeout=600)[1].replace("\r", "\n")
    said = [line for line in errors.splitlines() if line and "steps" not in line]
    if how == "killed":
        assert len(said) == 1
        assert said[0].startswith("lingbot-world: process 2 of 2 was ended by SIGKILL, and the others with it")
    else:
        assert said == ["lingbot-world: interrupted; nothing was written"]
    assert process.returncode == (2 if how == "killed" else 130)
    assert list(tmp_path.glob("out/*")) == []
    assert all_ended(process.pid)


def workers(parent: int) -> list[int]:
    """The processes that a process has started, the oldest first."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())


def all_ended(session: int) -> bool:
    """Whether no process of a session is left, in the end."""
    for _ in range(300):
        done = subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True, text=True)
        if not done.stdout.strip():
            return True
        time.sleep(0.1)
    return False
