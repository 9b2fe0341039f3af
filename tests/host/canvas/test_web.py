"""The camera editor's JavaScript: its unit tests under node, and the node in a real ComfyUI in a real browser."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from browser_runner import FOLDER, run_tests

UNIT_TESTS = Path(__file__).parents[2] / "web"
IN_A_BROWSER = sorted((path.name for path in FOLDER.glob("[ce]*.test.mjs")), reverse=True)  # the editor's first
JAVASCRIPT = Path(__file__).parents[3] / "web" / "js"


def test_unit_tests_pass():
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the camera editor's JavaScript tests do not run")
    files = sorted(UNIT_TESTS.glob("*.test.mjs"))
    assert len(files) >= 4
    done = subprocess.run([node, "--test", *map(str, files)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_editor_stays_small():
    sizes = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in JAVASCRIPT.rglob("*.js")}
    assert max(sizes.values()) <= 300, sizes


def test_the_editor_stays_readable():
    for path in JAVASCRIPT.rglob("*.js"):
        long = [line for line in path.read_text(encoding="utf-8").splitlines() if len(line) > 120]
        assert not long, (path.name, long)
    assert "<script" not in (JAVASCRIPT / "editor.html").read_text(encoding="utf-8")


def test_the_editor_asks_nothing_of_other_sites():
    for path in filter(Path.is_file, JAVASCRIPT.rglob("*")):
        assert "://" not in path.read_text(encoding="utf-8"), path.name


def test_one_script_alone_knows_the_front_end():
    """Another extension API of ComfyUI is a second implementation of frontend.js."""
    known = re.compile(
        r"/scripts/|\b(LiteGraph|comfyAPI|extensionManager)\.|\b(app|api)\.\w|\.(addDOMWidget|addWidget)\("
    )
    for path in [*JAVASCRIPT.rglob("*.js"), *JAVASCRIPT.parent.joinpath("live").glob("*.mjs")]:
        lines = [
            line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith(("//", "*"))
        ]
        found = [line for line in lines if known.search(line)]
        assert bool(found) is (path.name == "frontend.js"), (path.name, found)


@pytest.fixture(scope="module")
def told(comfy_server):
    """What the tests in the browser say, by file."""
    return run_tests(IN_A_BROWSER, comfy_server.url)


@pytest.mark.host
@pytest.mark.slow
@pytest.mark.parametrize("name", IN_A_BROWSER)
def test_the_node_works_in_a_browser(name, told):
    passed, text = told[name]
    assert passed, text[max(text.find("not ok"), 0) :][:6000]
