"""The shipped workflows as files: both formats say the same, and each has its notes, thumbnail and model addresses."""

import re

import pytest
from PIL import Image
from toy_prompt import CANVAS_FILES, CANVAS_VALUES, NAMES, WORKFLOWS, canvas_file, canvas_nodes, shipped

MOST = 20
CANVAS_ONLY = {"MarkdownNote"}
MUTED = 2
NODES = WORKFLOWS.parent / "nodes"
IN_NO_WORKFLOW = {
    "LingBotWorldQuantize",  # sleeps on the canvas of 07
    "LingBotWorldLoadState",  # its file is one's own
    "LingBotWorldMeasureCamera",  # needs OpenCV, which ComfyUI does not bring: a template with it would be refused
    "LingBotWorldMeasureDrift",  # the same
    "LingBotWorldExport3D",  # needs pycolmap, as above
    "LingBotWorldCheckMachine",  # used once, before a workflow
}
REPOSITORY = "https://huggingface.co/cahlen/lingbot-world-base-cam-nf4/resolve/main/"


def read(name: str) -> tuple[dict, dict]:
    """A workflow in canvas format and in API format."""
    return canvas_file(name), shipped(name)


def test_the_list_is_complete():
    assert sorted(path.stem for path in (WORKFLOWS / "api").glob("*.json")) == sorted(NAMES)
    assert len(NAMES) == len(CANVAS_FILES) <= MOST
    assert NAMES[0] == "camera"
    assert NAMES[-5:] == ["toy", "fast_lora", "real_time", "walk", "walk_toy"], (
        "later ones are last: the others keep their numbers"
    )


def test_titles_are_words_in_the_order_of_their_numbers():
    titles = [path.stem for path in CANVAS_FILES.values()]
    assert titles == sorted(titles)
    for number, title in enumerate(titles, 1):
        assert re.fullmatch(rf"{number:02} [A-Z][\w ,.'-]+", title)
        assert "_" not in title


def test_the_simple_workflow_has_at_most_six_nodes():
    nodes = [node for node in canvas_file("simple")["nodes"] if node["type"] not in CANVAS_ONLY]
    assert 3 <= len(nodes) <= 6
    assert len(shipped("simple")) > len(nodes), "the rest is inside one of them"


def test_the_main_workflow_needs_no_file_but_the_models_and_the_image():
    nodes = [node["class_type"] for node in shipped("camera").values()]
    assert "LingBotWorldCameraEditor" in nodes
    assert not {"LingBotWorldLoadPoses", "LingBotWorldCameraImport"} & set(nodes)


def test_a_workflow_shows_every_node_of_the_pack():
    sources = "".join(path.read_text(encoding="utf-8") for path in NODES.rglob("*.py"))
    ours = set(re.findall(r'node_id="(\w+)"', sources))
    shown = {node["class_type"] for name in NAMES for node in shipped(name).values()}
    assert len(ours) > 10
    assert ours - shown == IN_NO_WORKFLOW


@pytest.mark.parametrize("name", NAMES)
def test_both_formats_have_the_same_nodes_links_and_values(name):
    ui, api = read(name)
    nodes = {key: node for key, node in canvas_nodes(ui) if node["type"] not in CANVAS_ONLY and node["mode"] != MUTED}
    assert {key: node["type"] for key, node in nodes.items()} == {key: node["class_type"] for key, node in api.items()}
    for key, node in nodes.items():
        inputs, links = api[key]["inputs"], Links(ui, key)
        sources = {slot["name"]: links.source(slot["link"]) for slot in node["inputs"]}
        linked = {slot: source for slot, source in sources.items() if source is not None}
        assert linked == {name: value for name, value in inputs.items() if isinstance(value, list)}
        shown = [value for value in node["widgets_values"] if value not in CANVAS_VALUES]
        widgets = [slot["name"] for slot in node["inputs"] if "widget" in slot]
        assert len(shown) == len(widgets)
        plain = {name: value for name, value in zip(widgets, shown, strict=True) if name not in linked}
        assert plain == {name: value for name, value in inputs.items() if not isinstance(value, list)}


class Links:
    """Where the links of a node's own canvas begin, in the API form's ids."""

    def __init__(self, ui: dict, key: str):
        self.ui, self.outer = ui, key.rpartition(":")[0]
        self.top = {link[0]: (link[1], link[2]) for link in ui["links"]}
        self.inner = {link["id"]: (link["origin_id"], link["origin_slot"]) for link in self._of(self.outer)["links"]}

    def _of(self, outer: str) -> dict:
        kind = next((node["type"] for node in self.ui["nodes"] if str(node["id"]) == outer), None)
        known = {each["id"]: each for each in self.ui.get("definitions", {}).get("subgraphs", [])}
        return known.get(kind, {"links": []})

    def source(self, link: int | None) -> list | None:
        """None: nothing comes in, or what a field of the outer node holds."""
        if link is None:
            return None
        if not self.outer:
            return self._outlet(*self.top[link])
        node, slot = self.inner[link]
        if node != -10:
            return [f"{self.outer}:{node}", slot]
        outer = next(node for node in self.ui["nodes"] if str(node["id"]) == self.outer)
        given = outer["inputs"][slot]["link"]
        return None if given is None else self._outlet(*self.top[given])

    def _outlet(self, node: int, slot: int) -> list:
        """What a subgraph gives out comes from a node inside it."""
        links = self._of(str(node))["links"]
        inside = [link for link in links if (link["target_id"], link["target_slot"]) == (-20, slot)]
        return [f"{node}:{inside[0]['origin_id']}", inside[0]["origin_slot"]] if inside else [str(node), slot]


@pytest.mark.parametrize("name", NAMES)
def test_links_join_outputs_and_inputs_that_know_of_each_other(name):
    ui, _ = read(name)
    nodes = {node["id"]: node for node in ui["nodes"]}
    for link, origin, out_slot, target, in_slot, kind in ui["links"]:
        assert link in nodes[origin]["outputs"][out_slot]["links"]
        assert nodes[target]["inputs"][in_slot]["link"] == link
        assert kind == nodes[origin]["outputs"][out_slot]["type"]


@pytest.mark.parametrize("name", NAMES)
def test_boxes_do_not_overlap(name):
    ui, _ = read(name)
    boxes = [(*node["pos"], node["size"][0], node["size"][1] * (not node["flags"])) for node in ui["nodes"]]
    for index, (x, y, w, h) in enumerate(boxes):
        for ox, oy, ow, oh in boxes[index + 1 :]:
            assert x + w <= ox or ox + ow <= x or y + h <= oy or oy + oh <= y


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_a_note_is_a_line_of_its_own(name):
    """So it is copied as it is typed: not wrapped, not in a box that cuts it off."""
    ui, _ = read(name)
    (note,) = (node["widgets_values"][0] for node in ui["nodes"] if node["type"] == "MarkdownNote")
    assert "`" not in note
    for command in ("hf download", "lingbot-world quantize"):
        for line in (line for line in note.splitlines() if command in line):
            assert re.fullmatch(r"### (hf|lingbot-world) \S+( \S+)+", line), line


@pytest.mark.parametrize("name", NAMES)
def test_wires_pass_between_the_groups(name):
    """A wire's reroutes lie in no group, and between two of them it runs through none."""
    ui, _ = read(name)
    boxes = [group["bounding"] for group in ui["groups"]]
    reroutes = {reroute["id"]: reroute for reroute in ui["extra"].get("reroutes", [])}
    for reroute in reroutes.values():
        x, y = reroute["pos"]
        assert not any(bx < x < bx + bw and by < y < by + bh for bx, by, bw, bh in boxes), reroute
        before = reroutes.get(reroute.get("parentId"), reroute)["pos"]
        left, right, top, bottom = *sorted((x, before[0])), *sorted((y, before[1]))
        assert left == right or top == bottom, "neither level nor upright"
        assert not any(left < bx + bw and bx < right and top < by + bh and by < bottom for bx, by, bw, bh in boxes)


@pytest.mark.parametrize("name", NAMES)
def test_a_wire_that_passes_a_group_is_rerouted(name):
    ui, _ = read(name)
    rerouted = {link for reroute in ui["extra"].get("reroutes", []) for link in reroute["linkIds"]}
    nodes, groups = {node["id"]: node for node in ui["nodes"]}, [group["bounding"] for group in ui["groups"]]
    lefts = sorted({x for x, *_ in groups})
    for link, origin, _, target, _, _ in ui["links"]:
        start, end = (sum(x <= nodes[node]["pos"][0] for x in lefts) for node in (origin, target))
        assert start <= end, "a wire that runs back"
        assert end - start <= 1 or link in rerouted


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_note_and_a_small_thumbnail_that_moves(name):
    ui, _ = read(name)
    notes = [node["widgets_values"][0] for node in ui["nodes"] if node["type"] == "MarkdownNote"]
    assert any(len(note) > 100 for note in notes)
    thumbnail = CANVAS_FILES[name].with_suffix(".jpg")
    assert thumbnail.stat().st_size < 60_000
    with Image.open(thumbnail) as image:
        assert image.width >= 300
        assert image.n_frames > 4


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("toy", "walk_toy")])
def test_every_chosen_model_file_has_an_address(name):
    """The missing-model dialog looks at values that end like weights, and at entries of exactly that name. What
    Quantize makes, and what is in shards, has no address."""
    ui, _ = read(name)
    for _, node in canvas_nodes(ui):
        files = (str(value) for value in node["widgets_values"] if re.search(r"[^*]\.(safetensors|pth)$", str(value)))
        chosen = [name for name in files if "lingbot_world_fast" not in name]
        models = node["properties"].get("models", [])
        assert [model["name"] for model in models] == chosen
        for model in models:
            assert set(model) == {"name", "url", "directory"}
            assert re.fullmatch(r"https://huggingface\.co/[\w./-]+/resolve/main/[\w./-]+", model["url"])
            if model["directory"] == "lingbot_world":
                assert model["url"] == REPOSITORY + model["name"].partition("/")[2]
        if node["type"] == "LingBotWorldLoadExperts":
            assert [name.split("/")[1] for name in chosen] == ["high_noise_model_bnb_nf4", "low_noise_model_bnb_nf4"]


@pytest.mark.parametrize("name", NAMES)
def test_every_node_says_which_pack_and_version_it_is_from(name):
    ui, _ = read(name)
    for _, node in canvas_nodes(ui):
        own = node["type"].startswith("LingBotWorld")
        assert node["properties"]["cnr_id"] == ("lingbot-world" if own else "comfy-core")
        assert re.fullmatch(r"\d+\.\d+\.\d+", node["properties"]["ver"])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_this_machine_is_inside(name):
    for path in (CANVAS_FILES[name], WORKFLOWS / "api" / f"{name}.json"):
        assert not re.search(r"/(?:home|root|tmp|work|Users)/|[A-Z]:\\\\", path.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_sockets_of_our_nodes_are_labelled_in_words(name):
    nodes = [node for node in canvas_file(name)["nodes"] if node["type"].startswith("LingBotWorld")]
    sockets = [slot for node in nodes for slot in node["inputs"] if "widget" not in slot]
    labels = [slot.get("label", slot["name"]) for slot in sockets]
    assert [label for label in labels if "_" in label] == []
