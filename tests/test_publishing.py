"""What a registry looks at: comfy-test's static levels and `comfy node validate` on the tree as it is checked out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from comfy_tree import PACK, Host
from source_files import python_files

# comfy-test looks for these in every Python file, tests and scripts included.
REFUSED = re.compile(
    r"\.cuda\s*\(|\.to\s*\(\s*(torch\.device\s*\(\s*)?[\"']cuda|torch\.(cuda\.)?(amp\.)?autocast\s*\("
    r"|(?<![\w.])(torch\.)?nn\.(Linear|Conv[123]d|ConvTranspose[12]d|LayerNorm|GroupNorm|Embedding)\s*\("
)
WATCHED = python_files("node_modules", "build", "out")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "DO_NOT_TRACK": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """The tracked files as they stand, and nothing else."""
    if not (PACK / ".git").exists():
        pytest.skip("REGISTRY CHECKS SKIPPED: this is no git checkout")
    folder = tmp_path_factory.mktemp("checkout")
    for name in run("git", "ls-files", "-z", cwd=PACK).stdout.split("\0"):
        if name and (PACK / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PACK / name, folder / name)
    assert (folder / "pyproject.toml").is_file()
    return folder


@pytest.mark.parametrize("path", WATCHED, ids=lambda path: str(path.relative_to(PACK)))
def test_no_file_holds_what_comfy_test_refuses(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if REFUSED.search(line)] == []
    path.read_text(encoding="utf-8").encode("cp1252")


def test_the_static_levels_of_comfy_test_pass(checkout):
    tool = os.environ.get("COMFY_TEST") or shutil.which("comfy-test")
    if not tool:
        pytest.skip("COMFY-TEST SKIPPED: not installed; pip install comfy-test, or set COMFY_TEST to its command")
    done = run(tool, "lint", ".", "--strict", cwd=checkout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "[SYNTAX] PASSED" in done.stdout
    assert "[JAVASCRIPT] PASSED" in done.stdout


@pytest.mark.host
def test_comfy_node_validate_passes(comfy_host: Host, checkout):
    if run(comfy_host.python, "-c", "import comfy_cli, ruff", cwd=checkout).returncode:
        pytest.skip("COMFY NODE VALIDATE SKIPPED: ComfyUI's Python has no comfy-cli with ruff")
    done = run(comfy_host.python, "-m", "comfy_cli", "--skip-prompt", "node", "validate", cwd=checkout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "All validation checks passed" in done.stdout + done.stderr
