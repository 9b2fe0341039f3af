"""What a registry looks at: comfy-test's static levels, `comfy node validate` and comfy-import-guard on the tree as it
is checked out. The test extra has all three."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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
    pytest.importorskip("comfy_test")
    done = run(Path(sys.executable).with_name("comfy-test"), "lint", ".", "--strict", cwd=checkout)
    said = done.stdout + done.stderr
    assert "[SYNTAX] PASSED" in said, said[-3000:]
    assert "[JAVASCRIPT] PASSED" in said, said[-3000:]


def test_comfy_node_validate_passes(checkout):
    pytest.importorskip("comfy_cli")
    done = run(sys.executable, "-m", "comfy_cli", "--skip-prompt", "node", "validate", cwd=checkout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "All validation checks passed" in done.stdout + done.stderr


@pytest.mark.host
def test_comfy_import_guard_finds_every_name_of_comfyui(comfy_host: Host, checkout, tmp_path):
    """It looks into a clone: one is made of the ComfyUI that is here. What is shipped is looked at."""
    pytest.importorskip("comfy_import_guard")
    clone, packs = tmp_path / "ComfyUI", tmp_path / "install/custom_nodes"
    ignored = (checkout / ".comfyignore").read_text().replace("/", "").split()
    shutil.copytree(
        checkout, packs / "lingbot-world", ignore=lambda folder, _: ignored if folder == str(checkout) else []
    )
    root = comfy_host.root
    for file in root.rglob("*.py"):
        place = file.relative_to(root)
        if place.parts[0] not in ("custom_nodes", ".venv"):
            (clone / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, clone / place)
    who = "-c", "user.name=test", "-c", "user.email=test@example.org"
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "as it is"]):
        assert run("git", *words, cwd=clone).returncode == 0
    done = run(
        Path(sys.executable).with_name("comfy-import-guard"),
        "--offline",
        "--cache-dir",
        tmp_path,
        "check",
        "--comfy-dir",
        packs.parent,
        "--target",
        "HEAD",
        "--no-update",
        "--strict",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "1 safe" in done.stdout + done.stderr
