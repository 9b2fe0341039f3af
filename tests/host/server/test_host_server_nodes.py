"""What a user sees of the nodes: words on everything, a help page each, and the ids that saved workflows rely on."""

from __future__ import annotations

import re
import urllib.request

import pytest
from comfy_server import PACK_NAME, ComfyServer
from comfy_tree import PACK

pytestmark = pytest.mark.host

IDS = {
    "LingBotWorldLoadExperts",
    "LingBotWorldLoadVAE",
    "LingBotWorldTextEncode",
    "LingBotWorldLoadTextEncoder",
    "LingBotWorldPrepareImage",
    "LingBotWorldLoadPoses",
    "LingBotWorldApplyCamera",
    "LingBotWorldGuider",
    "LingBotWorldSolver",
    "LingBotWorldSigmas",
    "LingBotWorldSampler",
    "LingBotWorldCameraPreset",
    "LingBotWorldCameraKeys",
    "LingBotWorldCameraKeyframes",
    "LingBotWorldCameraChain",
    "LingBotWorldCameraEditor",
    "LingBotWorldCameraImport",
    "LingBotWorldCameraPreview",
    "LingBotWorldLoadCausal",
    "LingBotWorldRollout",
    "LingBotWorldQuantize",
    "LingBotWorldMeasureCamera",
    "LingBotWorldCameraFromVideo",
    "LingBotWorldMeasureDrift",
    "LingBotWorldToyPackage",
    "LingBotWorldSaveState",
    "LingBotWorldLoadState",
    "LingBotWorldCheckMachine",
    "LingBotWorldExport3D",
    "LingBotWorldLive",
}


@pytest.fixture(scope="module")
def nodes(comfy_server: ComfyServer) -> dict[str, dict]:
    return {name: info for name, info in comfy_server.object_info().items() if name.startswith("LingBotWorld")}


def test_no_node_id_is_lost_and_none_is_unexplained(nodes):
    assert set(nodes) == IDS


@pytest.mark.parametrize("name", sorted(IDS))
def test_a_node_explains_itself(nodes, comfy_server, name):
    node = nodes[name]
    assert node["display_name"] != name
    assert re.match(r"LingBot-World(/|$)", node["category"])
    assert len(node["description"]) > 20
    assert "lingbot" in node["search_aliases"]
    inputs = {key: spec for kind in ("required", "optional") for key, spec in node["input"].get(kind, {}).items()}
    silent = [key for key, spec in inputs.items() if not (len(spec) > 1 and spec[1].get("tooltip"))]
    assert silent == []
    assert all(node["output_tooltips"] or []), "an output without a tooltip"
    labels = [spec[1].get("display_name") or key for key, spec in inputs.items()]
    assert [label for label in labels if "_" in label] == []
    with urllib.request.urlopen(f"{comfy_server.url}/extensions/{PACK_NAME}/docs/{name}.md") as answer:
        page = answer.read().decode("utf-8")
    assert len(page) > 300
    assert [label for label in labels if f"**{label}**" not in page] == []


def test_no_help_page_is_about_a_node_that_does_not_exist(nodes):
    pages = {path.stem for path in (PACK / "web" / "docs").glob("LingBot*.md")}
    assert pages <= set(nodes)
