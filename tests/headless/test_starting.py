"""What starts beside other work, and what a walk does not wait for."""

import gc
import subprocess
import sys

import pytest
import torch
from lingbot_world.headless.process import starting

WALK = """
import sys
import numpy as np
from lingbot_world.live.camera import WalkingCamera, relative_poses
from lingbot_world.live.controls import FrameInputs

camera = WalkingCamera()
poses = camera.move(FrameInputs(np.ones((8, 4)), np.zeros(2), None))
steps = relative_poses(poses[3::4], np.eye(4), camera.unit)
assert steps.shape == (2, 4, 4) and abs(steps - np.eye(4)).max() > 0.01
print("scipy" in sys.modules)
"""


@pytest.fixture
def started(monkeypatch):
    """The GPUs that Triton was started for."""
    gpus = []
    monkeypatch.setattr(starting, "_start_triton", gpus.append)
    starting._triton.cache_clear()
    yield gpus
    starting._triton.cache_clear()


def test_triton_starts_once_and_who_needs_it_waits(started):
    device = torch.device("cuda")
    with starting.triton_starting(device):
        starting.wait_for_triton(device)
        assert started == [0]
    starting.wait_for_triton(torch.device("cuda", 0))
    assert started == [0]


def test_on_a_cpu_nothing_starts(started):
    with starting.triton_starting(torch.device("cpu")):
        starting.wait_for_triton(torch.device("cpu"))
    assert not started


def test_a_walk_needs_no_scipy():
    """Importing it takes longer than a chunk."""
    done = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_garbage_is_looked_for_after_imports_alone():
    """In this process, another's, nothing changes."""
    with starting.pause_collection(own_process=False):
        assert gc.isenabled()
    code = """
import gc
from lingbot_world.headless.process.starting import pause_collection

for error in (None, ImportError):
    try:
        with pause_collection(own_process=True):
            assert not gc.isenabled()
            if error is not None:
                raise error
    except ImportError:
        print("an error")
    print(gc.isenabled(), gc.get_freeze_count() > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["True True", "an error", "True True", ""]
