"""Fixtures of the tests that queue prompts at a real server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from comfy_server import ComfyServer
from toy_prompt import PACKAGE


@pytest.fixture(scope="module")
def server(comfy_server: ComfyServer) -> Iterator[ComfyServer]:
    """The shared server with the toy under the name that the workflows want."""
    package = comfy_server.base / "models" / "lingbot_world"
    shutil.copytree(package / "toy", package / PACKAGE)
    yield comfy_server
    shutil.rmtree(package / PACKAGE)
