"""OpenMP's threads sleep while they wait, wherever models run on a CPU. libgomp prints its settings as it loads."""

import os
import subprocess
import sys

import pytest
from comfy_server import ComfyServer, Host

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
