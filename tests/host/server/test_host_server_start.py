"""How the pack starts: with hardly an import, without bitsandbytes too, without asking the network for anything, and on
a ComfyUI whose code lacks what some of its nodes need."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from comfy_server import PACK_NAME, ComfyServer, RejectedPromptError
from comfy_tree import PACK, Host
from lingbot_world import __version__
from lingbot_world.toy import write_toy_package as write_random_toy
from test_host_server_nodes import IDS
from toy_prompt import toy_prompt

pytestmark = pytest.mark.host

SCRIPT = Path(__file__).parents[2] / "host_scripts" / "imports_at_start.py"
# Runs before ComfyUI imports anything of note: bitsandbytes cannot be imported, and whoever looks for the network is
# written down and refused. Two names of ComfyUI's own are gone by the time this pack is loaded.
CRIPPLED = """
import importlib.util, socket, sys, traceback
sys.modules["bitsandbytes"] = None
LOCAL = ("127.0.0.1", "0.0.0.0", "localhost", "::1", "::", "", None)
look_up, connect = socket.getaddrinfo, socket.socket.connect

def refuse(address):
    with open({log!r}, "a") as log:
        log.write(repr(address) + "\\n" + "".join(traceback.format_stack()))
    raise OSError("no network in this test")

def checked_look_up(host, *rest, **more):
    return look_up(host, *rest, **more) if host in LOCAL else refuse(host)

def checked_connect(self, address):
    return connect(self, address) if not isinstance(address, tuple) or address[0] in LOCAL else refuse(address)

socket.getaddrinfo, socket.socket.connect = checked_look_up, checked_connect
find = importlib.util.spec_from_file_location

def find_on_another_core(name, location=None, **options):
    if str(location).endswith({pack!r}):
        import latent_preview
        from comfy_api.latest import io
        del latent_preview.LatentPreviewer, io.Load3DCamera
    return find(name, location, **options)

importlib.util.spec_from_file_location = find_on_another_core
"""
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
LACKING = {
    "camera/make": "comfy_api.latest.io.Load3DCamera",
    "camera/export": "comfy_api.latest.io.Load3DCamera",
    "sampling/rollout": "latent_preview.LatentPreviewer",
    "sampling/live": "latent_preview.LatentPreviewer",
}


def without_all_rights(host: Host, folder: Path) -> Host:
    """The same for root, who may look into every folder, without that right."""
    if os.geteuid() != 0:
        return host
    if shutil.which("setpriv") is None:
        pytest.skip("root may look into every folder, and there is no setpriv")
    caps = "-dac_override,-dac_read_search"
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec setpriv --bounding-set {caps} --inh-caps {caps} "{host.python}" "$@"\n')
    python.chmod(0o755)
    return replace(host, python=python)


@pytest.fixture(scope="module")
def untidy(comfy_host: Host, tmp_path_factory) -> Iterator[ComfyServer]:
    """A server with two copies of the pack, a file in its input folder, and folders that nobody may look into: a drive
    that is mounted as models/lingbot_world has a `lost+found` of root's. It has no OpenCV of the tests. Its libgomp
    prints its settings, and its C library returns large blocks at once; by itself it keeps tens of MB, or not, by
    chance."""
    base = tmp_path_factory.mktemp("untidy")
    for name in ("input", "custom_nodes"):
        (base / name).mkdir()
    (base / "input" / "mine.png").write_bytes(b"")
    (base / "custom_nodes" / "another-copy").symlink_to(PACK, target_is_directory=True)
    models = base / "models" / "lingbot_world"
    write_random_toy(models / "toy")
    closed = [models / name for name in ("lost+found", "mine/transformer", "toy/loras")]
    for folder in closed:
        folder.mkdir(parents=True)
        folder.chmod(0)
    with pytest.MonkeyPatch.context() as patch:
        for name in CHOICES:
            patch.delenv(name, raising=False)
        patch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
        patch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")
        try:
            with ComfyServer(without_all_rights(comfy_host, base), base) as server:
                yield server
        finally:
            for folder in closed:
                folder.chmod(0o755)


def test_of_two_copies_one_works_and_the_log_names_both(untidy):
    (said,) = re.findall("LingBot-World is installed twice: (.+) works, (.+) \\(version .+delete", untidy.log())
    scripts = {address.split("/")[2] for address in untidy.get("/extensions")}
    node = untidy.object_info("LingBotWorldSampler")["LingBotWorldSampler"]
    assert set(map(Path, said)) == {untidy.base / "custom_nodes" / name for name in (PACK_NAME, "another-copy")}
    assert scripts == {"core", f"{Path(said[0]).name}@{__version__}"}
    assert node["python_module"] == f"custom_nodes.{Path(said[0]).name}"


def test_nothing_is_laid_beside_the_files_that_an_input_folder_holds(untidy):
    assert [path.name for path in (untidy.base / "input").iterdir() if path.is_file()] == ["mine.png"]


def test_a_folder_that_nobody_may_look_into_costs_no_other(untidy):
    info = untidy.object_info()
    assert set(IDS) <= set(info)
    assert info["LingBotWorldLoadExperts"]["input"]["required"]["package"][1]["options"][0] == "toy"
    closed = untidy.base / "models" / "lingbot_world" / "lost+found"
    assert f"{closed}: Permission denied; files there are not listed" in untidy.log()


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is the OpenMP of Linux")
def test_openmps_waiting_threads_sleep_on_a_cpu(untidy):
    assert "GOMP_SPINCOUNT = '0'" in untidy.log()
    assert "PRESTARTUP FAILED" not in untidy.log()


def test_a_missing_opencv_is_said_on_the_node_before_anything_runs(comfy_host: Host, untidy):
    if subprocess.run([str(comfy_host.python), "-c", "import cv2"], capture_output=True).returncode == 0:
        pytest.skip("ComfyUI's Python has OpenCV: nothing is missing")
    move = {"preset": "pan_left", "frames": 9, "amount": 0, "easing": "linear", "radius": 4, "shake": 0, "seed": 0}
    asked = {"images": ["black", 0], "camera": ["path", 0], "every": 0, "width": 800, "height": 500}
    nodes = {
        "path": ("LingBotWorldCameraPreset", move | {"fov_deg": 79}),
        "black": ("EmptyImage", {"width": 64, "height": 48, "batch_size": 9, "color": 0}),
        "measure": ("LingBotWorldMeasureCamera", asked),
        "report": ("PreviewAny", {"source": ["measure", 1]}),
    }
    with pytest.raises(RejectedPromptError, match="-m pip install --upgrade opencv-python-headless"):
        untidy.queue({key: {"class_type": kind, "inputs": inputs} for key, (kind, inputs) in nodes.items()})


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_prompts_do_not_grow_the_server(untidy):
    package = untidy.base / "models/lingbot_world/toy"
    (package / "loras").chmod(0o755)
    shutil.copy(package / "example/image.png", untidy.base / "input/example.png")

    def after(count: int) -> int:
        for _ in range(count):
            untidy.queue(toy.set("LingBotWorldSampler", seed=random.randrange(2**32)))
        return untidy.anonymous_bytes()

    # Frames large enough to be seen, if they stayed.
    toy = toy_prompt().set("LingBotWorldPrepareImage", width=96, height=64).set("LingBotWorldSampler", steps=2)
    settled = after(3)
    assert after(3) < settled * 1.01  # 6 MB: a video has 6 MB a prompt


def test_the_start_imports_no_other_package_and_no_model(comfy_host: Host):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"COMFYUI_PATH": str(comfy_host.root), "OMP_NUM_THREADS": "1"}
    command = [comfy_host.python, SCRIPT]
    done = subprocess.run(command, cwd=SCRIPT.parent, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    names = json.loads(done.stdout.splitlines()[-1])
    assert "pack.nodes.sampling.experts" in names
    assert [name for name in names if name.split(".")[0] != "pack"] == []
    assert not {"pack.model.dit", "pack.loaders.load", "pack.sampling"} & set(names)


@pytest.fixture(scope="module")
def crippled(comfy_host: Host, comfy_base: Path, tmp_path_factory) -> Iterator[ComfyServer]:
    """A server without bitsandbytes, network and two names of core, with previews, its packages where
    extra_model_paths.yaml says."""
    base = tmp_path_factory.mktemp("crippled")
    hook = base / "custom_nodes" / "a-crippled-python"
    hook.mkdir(parents=True)
    (hook / "__init__.py").write_text("NODE_CLASS_MAPPINGS = {}\n")
    pack = str(Path(PACK_NAME) / "__init__.py")
    (hook / "prestartup_script.py").write_text(CRIPPLED.format(log=str(base / "asked.txt"), pack=pack))
    paths = base / "extra_model_paths.yaml"
    paths.write_text(f"elsewhere:\n    base_path: {comfy_base / 'models'}\n    lingbot_world: lingbot_world\n")
    options = ["--extra-model-paths-config", str(paths), "--preview-method", "latent2rgb"]
    with ComfyServer(comfy_host, base, *options) as server:
        yield server


def test_a_fresh_base_directory_gets_the_image_that_the_workflows_begin_with(crippled):
    assert [path.name for path in (crippled.base / "input").iterdir() if path.is_file()] == ["example.png"]


def asked(server: ComfyServer) -> str:
    """Addresses of the network that were looked for, with the code that did."""
    log = server.base / "asked.txt"
    return log.read_text() if log.exists() else ""


def test_the_toy_runs_without_bitsandbytes_and_without_a_network(crippled):
    before = asked(crippled)
    run = crippled.queue(toy_prompt().set("LingBotWorldSampler", seed=random.randrange(2**32)))
    assert any(path.suffix == ".mp4" for path in run.files(crippled.base / "output"))
    assert asked(crippled) == before
    assert PACK_NAME not in before
    assert str(PACK) not in before
    assert re.search(r"python\S* -m pip install --upgrade bitsandbytes", crippled.log().replace('"', ""))


def test_sampling_shows_previews(crippled):
    run = crippled.queue(toy_prompt().set("LingBotWorldSampler", seed=random.randrange(2**32)))
    assert run.previews > 0


def test_what_comfyui_lacks_is_said_once_with_both_versions(crippled):
    theirs = crippled.get("/system_stats")["system"]["comfyui_version"]
    said = [line[line.index("LingBot-World") :] for line in crippled.log().splitlines() if "lacks" in line]
    names = ", ".join(sorted({*LACKING.values()}))
    assert sorted(said) == [
        f"LingBot-World {__version__} needs ComfyUI 0.33 or newer, and this ComfyUI {theirs} lacks "
        f"{names}: update the older of the two; the nodes that do without it are there",
        *(
            f"LingBot-World left out the nodes of nodes/{module}.py: ComfyUI lacks {name}"
            for module, name in sorted(LACKING.items())
        ),
    ]


def test_only_the_nodes_that_need_it_are_left_out(crippled):
    left_out = {node for node in IDS if not crippled.object_info(node)}
    text = "".join((PACK / "nodes" / f"{module}.py").read_text(encoding="utf-8") for module in LACKING)
    assert left_out == {node for node in IDS if f"class {node}(" in text}
    assert {"LingBotWorldCameraEditor", "LingBotWorldRollout"} <= left_out
