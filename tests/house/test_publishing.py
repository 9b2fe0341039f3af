"""What a registry looks at: comfy-test's static levels, `comfy node validate` and comfy-import-guard on the tree as it
is checked out, and what `comfy node pack` and `python -m build` would upload. The test extra has all of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
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
    """The tracked files as they stand, and nothing else, as a repository of their own."""
    if not (PACK / ".git").exists():
        pytest.skip("REGISTRY CHECKS SKIPPED: this is no git checkout")
    folder = tmp_path_factory.mktemp("checkout")
    for name in tracked_in(PACK):
        if (PACK / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PACK / name, folder / name)
    for words in (["init", "-q"], ["add", "-A"]):
        assert run("git", *words, cwd=folder).returncode == 0
    return folder


def tracked_in(folder: Path) -> list[str]:
    return list(filter(None, run("git", "ls-files", "-z", cwd=folder).stdout.split("\0")))


def test_every_tracked_name_can_be_checked_out_on_windows(checkout):
    names = tracked_in(checkout)
    assert "pyproject.toml" in names
    assert not [name for name in names if set(name) & set('<>:"|?*\\{}') or len(name) > 160]
    assert len({name.lower() for name in names}) == len(names)


def test_no_file_holds_what_comfy_test_refuses():
    for path in WATCHED:
        text = path.read_text(encoding="utf-8")
        assert [line for line in text.splitlines() if REFUSED.search(line)] == [], path
        assert text == text.encode("cp1252", "replace").decode("cp1252"), path


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


def shipped(names: list[str]) -> set[str]:
    """The files that the code reads at run time, and the modules."""
    kinds = re.compile(r"(web|workflows|subgraphs|locales|toy/maze|text)/.+|model/kernels/.+\.cuh?|.+\.py|py\.typed")
    kept_out = re.compile(r"(tests|tools|scripts|docs|\.ci|\.github)/")
    return {name for name in names if kinds.fullmatch(name) and not kept_out.match(name)}


def test_comfy_node_pack_makes_the_archive_of_the_registry(checkout):
    """`comfy node publish` of comfy-cli has no dry run: it packs this archive and uploads it."""
    pytest.importorskip("comfy_cli")
    done = run(sys.executable, "-m", "comfy_cli", "--skip-prompt", "node", "pack", cwd=checkout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    names = zipfile.ZipFile(checkout / "node.zip").namelist()
    assert shipped(tracked_in(checkout)) - set(names) == set()
    assert {"pyproject.toml", "requirements.txt", "README.md", "LICENSE"} <= set(names)
    assert [name for name in names if name.startswith(("tests/", "tools/", "scripts/", "docs/", ".ci/"))] == []


@pytest.fixture(scope="module")
def built(checkout, tmp_path_factory) -> Path:
    """The folder with the source archive and the wheel of `python -m build`."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("built")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ".", cwd=checkout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return folder


def test_python_build_makes_a_source_archive_and_a_wheel(checkout, built):
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = {name.removeprefix("lingbot_world/") for name in zipfile.ZipFile(wheel).namelist()}
    tracked = tracked_in(checkout)
    assert shipped(tracked) - names == set(), "files that pyproject.toml's packages and package-data lack"
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE"} <= inside
    assert shipped(tracked) - inside == set()


CONSUMER = """
from lingbot_world import GenerateOptions, LoraFile, generate

result = generate(GenerateOptions(ckpt_dir="x", prompt="p", output=None, image="a.jpg"), cancel=lambda: False)
seed: int = result.seed
wrong: str = result.seed
GenerateOptions(ckpt_dir="x", prompt="p", output=None, seed="1")
GenerateOptions(ckpt_dir="x", prompt="p", output=None, solver="euler")
generate("x")
"""


def test_pyright_finds_the_types_of_the_installed_wheel(built, tmp_path):
    """In a project with an environment of its own."""
    pytest.importorskip("basedpyright")
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    site = next(tmp_path.glob("venv/lib/python*/site-packages"), tmp_path / "venv/Lib/site-packages")
    zipfile.ZipFile(next(built.glob("*.whl"))).extractall(site)
    (tmp_path / "pyrightconfig.json").write_text('{"venvPath": ".", "venv": "venv", "typeCheckingMode": "standard"}')
    (tmp_path / "consumer.py").write_text(CONSUMER)
    said = run(sys.executable, "-m", "basedpyright", "consumer.py", cwd=tmp_path).stdout
    assert "stub" not in said, said  # the package's own types would not have been found
    assert re.findall(r"consumer\.py:(\d+):.*error", said) == ["6", "7", "8", "9"]


@pytest.mark.host
def test_comfy_import_guard_finds_every_name_of_comfyui(comfy_host: Host, checkout, tmp_path):
    """It looks into a clone: one is made of the ComfyUI that is here. What is shipped is looked at."""
    pytest.importorskip("comfy_import_guard")
    clone, packs = tmp_path / "ComfyUI", tmp_path / "install/custom_nodes"
    ignored = [".git", "build", *(checkout / ".comfyignore").read_text().replace("/", "").split()]
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
    guard = Path(sys.executable).with_name("comfy-import-guard")
    words = ["check", "--comfy-dir", packs.parent, "--target", "HEAD", "--no-update", "--strict"]
    done = run(guard, "--offline", "--cache-dir", tmp_path, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "1 safe" in done.stdout + done.stderr
