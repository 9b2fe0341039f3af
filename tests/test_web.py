"""The camera editor's JavaScript: its unit tests under node, and the node in a real ComfyUI in a real browser."""

import shutil
import subprocess
from pathlib import Path

import pytest

WEB_TESTS = Path(__file__).parent / "web"
JAVASCRIPT = Path(__file__).parent.parent / "web" / "js"


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed: the camera editor's JavaScript tests do not run")
    return found


def run_tests(node: str, *files: Path) -> None:
    command = [node, "--test", *map(str, files)]
    done = subprocess.run(command, cwd=WEB_TESTS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_unit_tests_pass(node):
    files = sorted(WEB_TESTS.glob("*.test.mjs"))
    assert len(files) >= 4
    run_tests(node, *files)


def test_the_editor_stays_small():
    lines = [line.strip() for path in JAVASCRIPT.glob("*.js") for line in path.read_text(encoding="utf-8").splitlines()]
    assert len([line for line in lines if line and not line.startswith(("//", "/*", "*"))]) < 1000


def test_the_editor_asks_nothing_of_other_sites():
    for path in JAVASCRIPT.iterdir():
        assert "://" not in path.read_text(encoding="utf-8"), path.name
