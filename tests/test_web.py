"""The camera editor's JavaScript: its unit tests under node, and the node in a real ComfyUI in a real browser."""

import os
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


def run_tests(node: str, *files: Path, environment: dict[str, str] | None = None) -> None:
    command = [node, "--test", *map(str, files)]
    done = subprocess.run(command, cwd=WEB_TESTS, env=environment, capture_output=True, text=True, timeout=400)
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


@pytest.mark.host
@pytest.mark.slow
def test_the_node_works_in_a_browser(node, request):
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser is None:
        pytest.skip("BROWSER TESTS SKIPPED: no chromium on the path; set CHROMIUM")
    if not (WEB_TESTS / "node_modules" / "playwright-core").is_dir():
        pytest.skip("BROWSER TESTS SKIPPED: playwright-core is missing; run npm install in tests/web")
    server = request.getfixturevalue("comfy_server")
    environment = {**os.environ, "COMFY_URL": server.url, "CHROMIUM": browser}
    run_tests(node, WEB_TESTS / "editor.browser.mjs", environment=environment)
