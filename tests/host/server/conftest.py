"""Fixtures of the tests that queue prompts at a real server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from bad_files import write_bad_files
from comfy_server import ComfyServer
from toy_prompt import PACKAGE, fresh_toy


@pytest.fixture(scope="module")
def server(comfy_server: ComfyServer) -> Iterator[ComfyServer]:
    """The shared server with the toy under the name that the workflows want."""
    package = comfy_server.base / "models" / "lingbot_world"
    shutil.copytree(package / "toy", package / PACKAGE)
    yield comfy_server
    shutil.rmtree(package / PACKAGE)


@pytest.fixture(scope="module")
def spoilt(comfy_server: ComfyServer) -> Iterator[ComfyServer]:
    """The shared server with files in its model and input folders that are not what they should be. It lives on."""
    write_bad_files(comfy_server.base)
    yield comfy_server
    assert comfy_server.alive
    assert comfy_server.queue(fresh_toy(steps=2)).outputs
