"""OpenMP's threads sleep while they wait, wherever models run on a CPU, and other programs' cores are left to them.
libgomp prints its settings as it loads."""

import gc
import json
import os
import subprocess
import sys
import time

import pytest
import torch
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.files.recipe import read_recipe
from lingbot_world.headless.process.starting import let_waiting_threads_sleep
from lingbot_world.pipeline import threads
from lingbot_world.toy.weights import EXPERT
from PIL import Image

SLEEPING = "GOMP_SPINCOUNT = '0'"
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libgomp is the OpenMP of Linux")


DOORS = {"command": ("-m", "lingbot_world", "inspect", "."), "import": ("-c", "from lingbot_world import generate")}


@pytest.mark.parametrize("door", DOORS)
def test_they_sleep_behind_either_door(door, toy_package):
    env = {name: value for name, value in os.environ.items() if name not in CHOICES}
    env["OMP_DISPLAY_ENV"] = "VERBOSE"
    done = subprocess.run([sys.executable, *DOORS[door]], cwd=toy_package, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SLEEPING in done.stderr


@pytest.mark.parametrize("choice", CHOICES)
def test_what_the_user_has_chosen_stays(choice, monkeypatch):
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(choice, "1000")
    let_waiting_threads_sleep()
    assert {os.environ[name] for name in CHOICES if name in os.environ} == {"1000"}


class Busy:
    """In place of /proc/stat: other programs keep all cores more than busy."""

    def is_file(self):
        return True

    def read_text(self):
        ticks = round(4 * time.perf_counter() * os.sysconf("SC_CLK_TCK"))
        return "\n".join(f"cpu{core} {ticks} 0 0 0 0 0 0 0" for core in range(os.cpu_count() or 1))


@pytest.mark.usefixtures("one_thread")
def test_a_busy_machine_gets_fewer_threads_which_the_record_keeps(command, tmp_path, monkeypatch, capsys):
    for name in threads.USERS_CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(threads, "STATISTICS", Busy())
    monkeypatch.setattr(threads, "ELEMENTS_PER_THREAD", 1)

    def generate(*words):
        torch.set_num_threads(2)
        monkeypatch.setattr(sys, "argv", ["lingbot-world", *words])
        assert main() == 0
        return capsys.readouterr().out

    assert "threads are 1, not 2" in generate(*command(sampling_steps=1, output=tmp_path / "a"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "threads" not in generate("generate", "--like", str(tmp_path / "a"), "--output", str(tmp_path / "b"))
    for folder in "ab":
        picture = min((tmp_path / folder).iterdir())
        assert json.loads(Image.open(picture).info["lingbot_world"])["threads"] == 1
    assert threads.use_idle_cores(torch.device("cpu")) == ""


@pytest.mark.usefixtures("one_thread")
def test_each_group_of_a_batch_gets_the_threads_of_its_size(toy_package, tmp_path, monkeypatch):
    pytest.importorskip("av")
    for name in threads.USERS_CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(threads, "idle_cores", lambda: 2)
    monkeypatch.setattr(threads, "_quota", lambda: 2)
    jobs, image = tmp_path / "jobs.jsonl", str(toy_package / "example/image.png")
    sizes = {"small": (32, 32), "large": (64, 64), "little": (32, 32)}
    rows = [
        {"name": name, "image": image, "prompt": name, "width": width, "height": height, "fps": 8 + number}
        for number, (name, (width, height)) in enumerate(sizes.items())
    ]
    jobs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(threads, "ELEMENTS_PER_THREAD", 8 * EXPERT.dim)  # a thread for 8 tokens
    torch.set_num_threads(2)
    few = ["--ckpt_dir", toy_package, "--frame_num", "5", "--sampling_steps", "1", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["lingbot-world", "batch", *map(str, [jobs, tmp_path / "out", *few])])
    assert main() == 0
    found = {name: read_recipe(tmp_path / f"out/{name}.mp4")["threads"] for name in sizes}
    assert found == {"small": 1, "large": 2, "little": 1}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("text", "elements", "recorded", "expected"),
    [
        (None, None, 0, 8),
        (None, 3 * threads.ELEMENTS_PER_THREAD, 0, 3),
        (None, threads.ELEMENTS_PER_THREAD // 2, 0, 1),
        (None, None, 5, 5),
        (None, None, 9, 8),
        ("max 100000", None, 0, 8),
        ("250000 100000", None, 0, 3),
        ("-1", None, 0, 8),
        ("150000", None, 0, 2),
        ("150000", None, 5, 5),
    ],
)
def test_the_number_follows_size_quota_and_state(text, elements, recorded, expected, tmp_path, monkeypatch):
    for name in threads.USERS_CHOICES:
        monkeypatch.delenv(name, raising=False)
    quota = tmp_path / "quota"
    (tmp_path / "cpu.cfs_period_us").write_text("100000")
    monkeypatch.setattr(threads, "QUOTAS", (quota,))
    monkeypatch.setattr(threads, "_cores", lambda: set(range(8)))
    monkeypatch.setattr(threads, "_seconds_of_others", lambda _cores: 0.0)
    if text is not None:
        quota.write_text(text)
    torch.set_num_threads(8)
    assert threads.use_idle_cores(torch.device("cpu"), elements, recorded) == ""
    assert torch.get_num_threads() == expected


@pytest.mark.usefixtures("one_thread")
def test_without_statistics_the_load_average_counts(tmp_path, monkeypatch):
    for name in threads.USERS_CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "STATISTICS", tmp_path / "none")
    monkeypatch.setattr(threads, "find_spec", lambda _name: None)
    monkeypatch.setattr(threads, "_cores", lambda: set(range(8)))
    monkeypatch.setattr(os, "getloadavg", lambda: (3.2, 0.0, 0.0))
    torch.set_num_threads(8)
    assert "threads are 5, not 8" in threads.use_idle_cores(torch.device("cpu"))
    assert torch.get_num_threads() == 5
