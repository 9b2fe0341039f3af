"""A new user's first minutes on a server without models: what ComfyUI offers to download, and that it runs from there.

Tests go from the empty folders to the downloaded ones, in the order in which they stand here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_runner import run_script
from comfy_server import ComfyServer, RejectedPromptError, write_toy_package
from comfy_tree import Host
from refused_prompts import refuses
from safetensors.torch import save_file
from torch import zeros
from toy_prompt import CANVAS_FILES, as_toy

pytestmark = pytest.mark.host

PACKAGE = "lingbot-world-base-cam-nf4"
T5, VAE = "models_t5_umt5-xxl-enc-bf16.pth", "Wan2.1_VAE.pth"
EXPERTS = [f"{level}_noise_model_bnb_nf4/model.safetensors" for level in ("high", "low")]
FILES = [*EXPERTS, T5, VAE]
SMALL = "lingbot-world-v2-1.3b-causal-fast"
UMT5 = "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
FAST_LORA = "Wan2.2-Fun-A14B-InP-high-noise-HPS2.1.safetensors"
LORAS = [f"wan2.2_i2v_lightx2v_4steps_lora_v1_{level}_noise.safetensors" for level in ("high", "low")]


@pytest.fixture(scope="module")
def server(comfy_host: Host, tmp_path_factory) -> Iterator[ComfyServer]:
    """A server with nothing in its model folders, and a toy package beside them to download from."""
    base = tmp_path_factory.mktemp("fresh")
    (base / "input").mkdir()
    shutil.move(write_toy_package(base), base / "hub")
    with ComfyServer(comfy_host, base) as server:
        yield server


def offered(server: ComfyServer, *files: Path) -> list[dict]:
    """What the front-end misses of each workflow, opened on one page, and what its "Download all" asks for. The dialog
    is the same in both renderers."""
    vue = os.environ.get("LINGBOT_TESTS") == "all"
    return run_script("missing_models.mjs", server.url, json.dumps({"files": [*map(str, files)], "vue": vue}))


@pytest.fixture(scope="module")
def at_first(server: ComfyServer) -> dict[str, dict]:
    """What is offered of these workflows while the server has no model."""
    names = ["camera", "core_nodes", "lora_four_steps", "fast_lora", "real_time", "walk"]
    return dict(zip(names, offered(server, *(CANVAS_FILES[name] for name in names)), strict=True))


def wanted(names: list[str], directory: str) -> list[list[str]]:
    return [[name, directory, "Download"] for name in names]


def test_the_dialog_offers_every_file_of_the_package(at_first):
    report = at_first["camera"]
    assert sorted(report["missing"]) == sorted(wanted([f"{PACKAGE}/{file}" for file in FILES], "lingbot_world"))
    address = f"https://huggingface.co/cahlen/{PACKAGE}/resolve/main"
    assert sorted(report["asked"], key=str) == sorted(
        ({"url": f"{address}/{file}", "name": f"{PACKAGE}/{file}"} for file in FILES), key=str
    )


@pytest.mark.parametrize(
    ("name", "others"),
    [("core_nodes", wanted([UMT5], "text_encoders")), ("lora_four_steps", wanted(LORAS, "loras"))],
)
def test_the_dialog_offers_what_other_workflows_need(at_first, name, others):
    missing = at_first[name]["missing"]
    assert [row for row in missing if row[1] != "lingbot_world"] == others
    assert {row[0] for row in missing} >= {f"{PACKAGE}/{file}" for file in [*EXPERTS, VAE]}


@pytest.mark.parametrize(
    ("name", "model", "files", "loras"),
    [
        ("fast_lora", f"{PACKAGE}/lingbot_world_fast/model.safetensors", [T5, VAE], [FAST_LORA]),
        ("real_time", f"{SMALL}/*.safetensors", [T5, VAE], []),
        ("walk", f"{SMALL}/*.safetensors", FILES, []),
    ],
)
def test_a_causal_model_is_marked_beside_what_the_dialog_offers(at_first, name, model, files, loras):
    offers = wanted([f"{PACKAGE}/{file}" for file in files], "lingbot_world") + wanted(loras, "loras")
    marked = [model, "Unknown", "Load LingBot-World Causal Model"]
    assert sorted(at_first[name]["missing"]) == sorted([*offers, marked])


def test_without_models_each_loader_says_which_file_goes_where(server):
    prompt = as_toy("first_last")
    with pytest.raises(RejectedPromptError) as refused:
        server.queue(prompt)
    errors = refused.value.node_errors
    kinds = {"LingBotWorldLoadExperts": EXPERTS[0], "LingBotWorldLoadVAE": VAE, "LingBotWorldTextEncode": T5}
    assert errors.keys() == {prompt.node_id(kind) for kind in kinds}
    for kind, file in kinds.items():
        problem = errors[prompt.node_id(kind)]["errors"][0]
        assert f"{PACKAGE}/{file}" in problem["details"]
        assert str(server.base / "models" / "lingbot_world") in problem["details"]
        assert "put it there" in problem["details"]


@pytest.fixture(scope="module")
def downloaded(server: ComfyServer) -> ComfyServer:
    """The same server after the downloads: each file at models/<directory>/<name>. Files of other models lie about."""
    for file in FILES:
        place = server.base / "models" / "lingbot_world" / PACKAGE / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(server.base / "hub" / file, place)
    for other in ("text_encoders/clip_l.safetensors", "vae/ae.safetensors", "diffusion_models/a/flux.safetensors"):
        (server.base / "models" / other).parent.mkdir(parents=True, exist_ok=True)
        save_file({"a": zeros(1)}, server.base / "models" / other)
    return server


def test_after_the_download_only_what_was_not_downloaded_is_missing(downloaded, tmp_path):
    """The workflow with another one's text encoder on its canvas, or there would be nothing to wait for."""
    canvas, other = (json.loads(CANVAS_FILES[name].read_text(encoding="utf-8")) for name in ("camera", "core_nodes"))
    (loader,) = (node for node in other["nodes"] if node["type"] == "CLIPLoader")
    for slot in loader["outputs"]:
        slot["links"] = []
    canvas["nodes"].append({**loader, "id": canvas["last_node_id"] + 1})
    (tmp_path / "both.json").write_text(json.dumps(canvas), encoding="utf-8")
    (report,) = offered(downloaded, tmp_path / "both.json")
    assert report["missing"] == wanted([UMT5], "text_encoders")


def test_without_a_tokenizer_the_text_node_says_where_to_get_it(downloaded):
    prompt = as_toy("first_last")
    words = str(refuses(downloaded, prompt, prompt.node_id("LingBotWorldTextEncode")))
    assert "tokenizer.json (https://huggingface.co/" in words
    assert str(downloaded.base / "models" / "lingbot_world" / PACKAGE / "tokenizer") in words


@pytest.fixture(scope="module")
def complete(downloaded: ComfyServer) -> ComfyServer:
    """The same after tokenizer.json was put where the node said."""
    place = downloaded.base / "models" / "lingbot_world" / PACKAGE / "tokenizer"
    place.mkdir()
    shutil.copy(downloaded.base / "hub" / "tokenizer" / "tokenizer.json", place)
    return downloaded


def test_what_the_dialog_downloaded_runs(complete):
    run = complete.queue(as_toy("first_last"))
    assert [path.suffix for path in run.files(complete.base / "output")] == [".mp4"]
    assert all(f"{file}: " in complete.log() for file in EXPERTS)  # the log tells them apart


def test_what_hf_download_leaves_runs_with_the_same_workflow(complete):
    package = complete.base / "models" / "lingbot_world" / PACKAGE
    shutil.rmtree(package)
    shutil.copytree(complete.base / "hub", package)
    run = complete.queue(as_toy("camera"))
    assert any(path.suffix == ".mp4" for path in run.files(complete.base / "output"))


def test_new_nodes_choose_the_package_by_themselves(complete):
    defaults = {}
    for node in ("LingBotWorldLoadExperts", "LingBotWorldLoadVAE", "LingBotWorldTextEncode"):
        for name, spec in complete.object_info(node)[node]["input"]["required"].items():
            defaults[name] = spec[1].get("default")
    assert defaults["package"] == PACKAGE
    assert defaults["high_noise_expert"] == defaults["low_noise_expert"] == "from the package"
    assert (defaults["vae_name"], defaults["text_encoder"]) == (f"{PACKAGE}/{VAE}", f"{PACKAGE}/{T5}")


def test_a_graph_of_defaults_runs(complete):
    """Everything that a new node shows is left as it is; only the video is small."""
    prompt = as_toy("easy_cache")
    nodes = [node for node in prompt.values() if node["class_type"].startswith("LingBotWorld")]
    for node in nodes:
        inputs = complete.object_info(node["class_type"])[node["class_type"]]["input"]
        widgets = {name: spec[1] for kind in ("required", "optional") for name, spec in inputs.get(kind, {}).items()}
        for name in node["inputs"].keys() - {"size", "width", "height", "frames"}:
            if "default" in widgets[name]:
                node["inputs"][name] = widgets[name]["default"]
    assert complete.queue(prompt).outputs


@pytest.mark.parametrize(
    "saved",
    [
        {"package": PACKAGE, "high_noise_expert": "from the package", "low_noise_expert": "from the package"},
        {
            "package": "none (choose both experts)",
            "high_noise_expert": f"{PACKAGE}/high_noise_model_bnb_nf4",
            "low_noise_expert": f"{PACKAGE}\\low_noise_model_bnb_nf4",
        },
    ],
    ids=["package", "folders"],
)
def test_experts_as_earlier_workflows_name_them_load(complete, saved):
    prompt = as_toy("first_last").set("LingBotWorldLoadExperts", **saved)
    assert complete.queue(prompt.set("LingBotWorldSampler", seed=11)).outputs
