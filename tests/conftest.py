"""Shared fixtures. `golden` holds outputs of the official implementation (see tests/golden/README.md)."""

from pathlib import Path

import pytest
import torch
from comfy_server import comfy_base, comfy_host, comfy_server  # noqa: F401

HERE = Path(__file__).parent
BESIDE = HERE.parent.parent / "shared"


@pytest.fixture(scope="session")
def golden() -> Path:
    """The official implementation's inputs and outputs that travel with the repository."""
    return HERE / "golden"


@pytest.fixture(scope="session")
def example00() -> Path:
    """A real image with a real camera path; lies beside the repository on developers' machines only."""
    folder = BESIDE / "examples" / "00"
    if not folder.is_dir():
        pytest.skip("the official example 00 is not beside this checkout")
    return folder


@pytest.fixture(scope="module")
def one_thread():
    """Many small operations: more threads only get in one another's way on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
