"""Which ComfyUI host tests run in, and when they are skipped for want of one."""

import subprocess
import sys
from pathlib import Path

import pytest
from comfy_tree import PACK, Host, HostMissingError, find_host


@pytest.fixture
def host(tmp_path, monkeypatch) -> Host:
    """A ComfyUI without code, whose Python has nothing installed."""
    root = tmp_path / "ComfyUI"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True)
    (root / "main.py").touch()
    monkeypatch.setenv("COMFYUI_PATH", str(root))
    monkeypatch.delenv("COMFYUI_PYTHON", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (python,) = (path for place in ("bin/python", "Scripts/python.exe") if (path := root / ".venv" / place).is_file())
    return Host(root, python)


def install(host: Host, *names: str) -> None:
    """As far as the metadata goes."""
    asked = [host.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    for name in names:
        about = Path(packages, f"{name.replace('-', '_')}-1.0.dist-info")
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")


def test_a_python_without_a_requirement_is_no_host_and_the_command_that_installs_it_is_named(host):
    install(
        host,
        "torch",
        "bitsandbytes",
        "safetensors",
        "einops",
        "numpy",
        "pillow",
        "tokenizers",
        "comfy-kitchen",
        "filelock",
        "packaging",
        "tqdm",
    )
    with pytest.raises(HostMissingError) as missing:
        find_host()
    command = f"{host.python} -m pip install 'scipy>=1.10' ftfy"
    assert str(missing.value) == f"ComfyUI's Python lacks scipy>=1.10, ftfy of requirements.txt: {command}"


def test_a_python_with_all_of_them_is_one(host):
    install(host, *(line.split(">")[0] for line in (PACK / "requirements.txt").read_text().split()))
    assert find_host() == host


def test_without_a_comfyui_the_places_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    with pytest.raises(HostMissingError, match="no ComfyUI"):
        find_host()
    (tmp_path / "main.py").touch()
    monkeypatch.setenv("COMFYUI_PYTHON", str(Path(tmp_path, "python")))
    with pytest.raises(HostMissingError, match="no Python for"):
        find_host()


def test_its_host_tests_are_skipped_and_say_so(host):
    test = PACK / "tests/host/canvas/test_host_uploads.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=PACK,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "HOST TESTS SKIPPED: ComfyUI's Python lacks" in done.stdout
    assert " passed" not in done.stdout
