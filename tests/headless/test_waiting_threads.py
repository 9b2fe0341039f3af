"""OpenMP's threads sleep while they wait, wherever models run on a CPU, and other programs' cores are left to them.
libgomp prints its settings as it loads."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch
from comfy_server import ComfyServer, Host
from lingbot_world.pipeline import threads
from PIL import Image

SLEEPING = "GOMP_SPINCOUNT = '0'"
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libgomp is the OpenMP of Linux")


def settings_of(tmp_path, *words, **chosen):
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", **chosen}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_command_lets_them_sleep(toy_package, tmp_path):
    words = ("-m", "lingbot_world", "inspect", str(toy_package))
    assert SLEEPING in settings_of(tmp_path, *words)
    assert "GOMP_SPINCOUNT = '1000'" in settings_of(tmp_path, *words, GOMP_SPINCOUNT="1000")


def test_a_program_that_imports_this_first_lets_them_sleep(tmp_path):
    assert SLEEPING in settings_of(tmp_path, "-c", "from lingbot_world import generate")


@pytest.mark.host
def test_comfyui_on_a_cpu_lets_them_sleep(comfy_host: Host, tmp_path, monkeypatch):
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
    with ComfyServer(comfy_host, tmp_path) as server:
        log = server.log()
    assert SLEEPING in log
    assert "PRESTARTUP FAILED" not in log


@pytest.fixture
def busy_cores(monkeypatch):
    """Programs that keep all cores busy, and an environment that sets no number of threads."""
    for name in threads.USERS_CHOICES:
        monkeypatch.delenv(name, raising=False)
    spin = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    deadline = time.monotonic() + 60
    while threads.idle_cores() > 1 and time.monotonic() < deadline:
        pass
    yield
    for program in programs:
        program.kill()
        program.wait()


def test_a_busy_machine_gets_fewer_threads_which_the_record_keeps(busy_cores, command, tmp_path, monkeypatch):
    def generate(*words):
        made = subprocess.run([sys.executable, "-m", "lingbot_world", *words], cwd=tmp_path, capture_output=True)
        assert made.returncode == 0, made.stderr
        return made.stdout.decode()

    own = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    most = int(subprocess.run(own, capture_output=True, check=True).stdout)
    fewer = (most + 1) // 2
    if fewer == most:
        pytest.skip("torch has one thread here")
    note = re.search(r"threads are (\d+), not (\d+)", generate(*command(sampling_steps=1, output=tmp_path / "a")))
    assert note.groups() == (str(fewer), str(most))
    monkeypatch.setenv("OMP_NUM_THREADS", str(most))
    again = generate("generate", "--like", str(tmp_path / "a"), "--output", str(tmp_path / "b"))
    assert "threads" not in again
    for folder in "ab":
        picture = min((tmp_path / folder).iterdir())
        assert json.loads(Image.open(picture).info["lingbot_world"])["threads"] == fewer
    assert threads.use_idle_cores(torch.device("cpu")) == ""
