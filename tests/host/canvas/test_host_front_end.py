"""The shipped workflows in PyPI's newest front-end, beside the one that this ComfyUI pins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_runner import missing_program, run_script
from comfy_server import ComfyServer
from comfy_tree import Host
from toy_prompt import CANVAS_FILES, NAMES

pytestmark = [pytest.mark.host, pytest.mark.slow]

PACKAGE = "comfyui-frontend-package"


@pytest.fixture(scope="module")
def front_end(tmp_path_factory) -> Path:
    """The static files of the newest release; skips without a package index."""
    if program := missing_program():
        pytest.skip(f"BROWSER TESTS SKIPPED: {program}")
    folder = tmp_path_factory.mktemp("front-end")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        pytest.skip(f"FRONT-END TESTS SKIPPED: pip could not download {PACKAGE}: {done.stderr[-300:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    return folder / PACKAGE.replace("-", "_") / "static"


@pytest.fixture(scope="module")
def newest(comfy_host: Host, comfy_base: Path, front_end: Path) -> Iterator[ComfyServer]:
    with ComfyServer(comfy_host, comfy_base, "--front-end-root", str(front_end)) as server:
        yield server


@pytest.fixture(scope="module")
def found(newest: ComfyServer) -> list[dict]:
    """What a browser sees of the workflows, opened as templates: every other one in each renderer, with
    LINGBOT_TESTS=all every one in both."""
    wishes = []
    for vue in (False, True):
        names = NAMES if os.environ.get("LINGBOT_TESTS") == "all" else NAMES[vue::2]
        files = [str(CANVAS_FILES[name]) for name in names]
        wishes.append({"vue": vue, "files": files, "templates": files})
    return run_script("check_workflows.mjs", newest.url, json.dumps(wishes))


@pytest.fixture(scope="module", params=["classic", "vue"])
def reports(request, found: list[dict]) -> dict[str, dict]:
    """Those of one renderer, by the workflows' names."""
    names = {str(file): name for name, file in CANVAS_FILES.items()}
    return {names[each["file"]]: each for each in found if each["vue"] is (request.param == "vue")}


def test_each_workflow_opens_as_it_does_in_the_pinned_one(reports):
    """Without an error, readable, with the values of its file; no text covers what is below."""
    assert len(reports) >= len(NAMES) // 2
    for name, report in reports.items():
        assert (report["missing"], report["errors"]) == ([], []), name
        assert report["zoom"] * 14 > 8, name
        assert all(height <= saved + 4 for height, saved in report["notes"]), name
        shipped = json.loads((CANVAS_FILES[name].parent / "api" / f"{name}.json").read_text(encoding="utf-8"))
        kinds = {key.replace(":", "_"): node["class_type"] for key, node in shipped.items()}
        assert {key.replace(":", "_"): node["class_type"] for key, node in report["prompt"].items()} == kinds, name
