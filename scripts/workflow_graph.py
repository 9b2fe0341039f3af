"""Describe a ComfyUI graph in Python; write it as the canvas saves it and as the queue takes it.

    graph = Graph(Server(object_info, {"comfy-core": "0.33.0"}), "example")
    with graph.group("Models", column=0):
        vae = graph.add("VAELoader", vae_name="toy/Wan2.1_VAE.pth")
        decoded = graph.add("VAEDecode", samples=latent["LATENT"], vae=vae["VAE"])
    graph.ui(), graph.api()

Names of inputs and outputs, the order of widgets and their defaults come from a server's /object_info. Nodes are
stacked inside groups, groups inside columns.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from workflow_inputs import default, is_text, kind_of, split
from workflow_wires import Wires

PACK, CORE = "lingbot-world", "comfy-core"
API_NAME = "lingbot_world_api"  # where a canvas file says which file of workflows/api/ is the same graph
SEEDS = ("seed", "noise_seed")  # the canvas puts a "control after generate" below these, asked or not
COLUMN_GAP, NODE_GAP, GROUP_GAP, GROUP_PAD, GROUP_TITLE = 64, 16, 26, 14, 40
BADGE_HEIGHT, BUTTON_HEIGHT = 20, 26  # of Nodes 2.0
TITLE_HEIGHT, SLOT_HEIGHT, WIDGET_HEIGHT, TEXT_HEIGHT, PREVIEW_HEIGHT = 30, 20, 24, 110, 200


@dataclass(frozen=True)
class Server:
    """What a ComfyUI offers: its /object_info, and the version of each pack in the registry's names. Nodes are saved
    with their pack's, so that ComfyUI can offer a missing pack, and tell a workflow's age."""

    nodes: dict[str, dict]
    versions: dict[str, str]

    def origin(self, kind: str) -> dict[str, str]:
        """The properties that say where a node comes from."""
        own = self.nodes.get(kind, {}).get("python_module", "").startswith("custom_nodes.")
        pack = PACK if own else CORE
        return {"cnr_id": pack, "ver": self.versions[pack]}


@dataclass(frozen=True)
class Output:
    """A node's output slot."""

    node: Node
    slot: int
    type: str


@dataclass
class Node:
    id: int
    kind: str
    title: str | None
    width: int
    inputs: dict[str, object]
    widgets: dict[str, tuple]
    sockets: dict[str, str]
    outputs: list[tuple[str, str]]
    models: list[dict]
    extra_height: int = 0
    color: str | None = None
    collapsed: bool = False
    room: int = 0
    position: tuple[int, int] = (0, 0)

    def __getitem__(self, name: str) -> Output:
        """The output of this name or, failing that, of this type; the first one counts."""
        for slot, (label, kind) in enumerate(self.outputs):
            if name in (label, kind):
                return Output(self, slot, kind)
        raise KeyError(f"{self.kind} has no output {name!r}: {self.outputs}")

    @property
    def height(self) -> int:
        texts = sum(is_text(spec) for spec in self.widgets.values())
        plain = len(self.widget_values()) - texts
        slots = max(len(self.sockets), len(self.outputs))
        return 20 + slots * SLOT_HEIGHT + plain * WIDGET_HEIGHT + texts * TEXT_HEIGHT + self.extra_height

    @property
    def below(self) -> int:
        """Pixels that are kept free below: for what Nodes 2.0 adds, and for pictures that come while it runs."""
        return self.room + (0 if self.collapsed else self.footer)

    @property
    def drawn_height(self) -> int:
        return 0 if self.collapsed else self.height

    @property
    def footer(self) -> int:
        """Pixels that Nodes 2.0 needs below: the pack's name, and a button where there are advanced inputs."""
        advanced = any(options.get("advanced") for _, options in self.widgets.values())
        return BADGE_HEIGHT * ("LingBot" in self.kind) + BUTTON_HEIGHT * advanced

    def widget_values(self) -> list:
        """Values in the canvas's order, with the extra widgets that it adds to seeds and uploads."""
        values = []
        for name, (kind, options) in self.widgets.items():
            value = self.inputs[name]
            values.append(default((kind, options)) if isinstance(value, Output) else value)
            if kind == "INT" and (options.get("control_after_generate") or name in SEEDS):
                control = options.get("control_after_generate", "fixed")
                values.append("randomize" if control is True else control)
            if options.get("image_upload"):
                values.append("image")
        return values


@dataclass
class Group:
    title: str
    column: int
    color: str
    nodes: list[Node] = field(default_factory=list)
    box: tuple[int, int, int, int] = (0, 0, 0, 0)


class Graph:
    """Nodes, links and groups of one workflow."""

    def __init__(self, server: Server, name: str):
        self.server, self.info, self.name = server, server.nodes, name
        self.nodes: list[Node] = []
        self.groups: list[Group] = []

    @contextmanager
    def group(self, title: str, column: int, color: str = "#3f789e") -> Iterator[None]:
        """Nodes added inside are stacked under this title, below what the column already holds."""
        self.groups.append(Group(title, column, color))
        yield

    def add(
        self,
        kind: str,
        *,
        title: str | None = None,
        box_width: int = 340,
        models: list[dict] = (),
        extra_height: int = 0,
        collapsed: bool = False,
        room: int = 0,
        **inputs,
    ) -> Node:
        """Add a node; widgets that are not named keep their default. Dotted names: `**{"format.codec": "h264"}`.

        `collapsed` shows its title alone; `room` pixels below it stay free.
        """
        if kind not in self.info:
            raise KeyError(f"the server has no node {kind}")
        info = self.info[kind]
        widgets, sockets = split(info["input"], inputs)
        if unknown := set(inputs) - set(widgets) - set(sockets):
            raise KeyError(f"{kind} has no input {sorted(unknown)}; it has {[*widgets, *sockets]}")
        values = {name: inputs.get(name, default(spec)) for name, spec in widgets.items()}
        values |= {name: inputs[name] for name in sockets if name in inputs}
        outputs = list(zip(info["output_name"], info["output"], strict=True))
        number, offers = len(self.nodes) + 1, list(models)
        node = Node(number, kind, title, box_width, values, widgets, sockets, outputs, offers, extra_height)
        node.collapsed, node.room = collapsed, room
        return self._place(node)

    def note(self, text: str, *, title: str = "Note", width: int = 340, height: int = 200) -> Node:
        """A Markdown note; it lives on the canvas only."""
        node = Node(len(self.nodes) + 1, "MarkdownNote", title, width, {"text": text}, {}, {}, [], [])
        node.extra_height, node.color = height, "#432"
        return self._place(node)

    def _place(self, node: Node) -> Node:
        self.nodes.append(node)
        self.groups[-1].nodes.append(node)
        return node

    def _lay_out(self) -> None:
        x = 0
        for column in sorted({group.column for group in self.groups}):
            groups = [group for group in self.groups if group.column == column]
            y = 0
            width = max(node.width for group in groups for node in group.nodes)
            for group in groups:
                top = y
                y += GROUP_TITLE + TITLE_HEIGHT
                for node in group.nodes:
                    node.width = width
                    node.position = (x + GROUP_PAD, y)
                    y += node.drawn_height + node.below + TITLE_HEIGHT + NODE_GAP
                y += GROUP_PAD - TITLE_HEIGHT - NODE_GAP
                group.box = (x, top, width + 2 * GROUP_PAD, y - top)
                y += GROUP_GAP
            x += width + 2 * GROUP_PAD + COLUMN_GAP

    def api(self) -> dict:
        """The API ("prompt") form."""
        prompt = {}
        for node in self.nodes:
            if node.kind == "MarkdownNote":
                continue
            inputs = {
                name: [str(value.node.id), value.slot] if isinstance(value, Output) else value
                for name, value in node.inputs.items()
            }
            title = node.title or self.info[node.kind]["display_name"] or node.kind
            prompt[str(node.id)] = {"class_type": node.kind, "inputs": inputs, "_meta": {"title": title}}
        return prompt

    def ui(self) -> dict:
        """The canvas's own form (schema version 0.4)."""
        self._lay_out()
        links: list[list] = []
        nodes = [self._ui_node(node, links) for node in self.nodes]
        wires = Wires(self, COLUMN_GAP)
        for link, origin, slot, target, *_ in links:
            nodes[origin - 1]["outputs"][slot]["links"].append(link)
            wires.add(link, self.nodes[origin - 1], self.nodes[target - 1])
        return {
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"lingbot-world/{self.name}")),
            "revision": 0,
            "last_node_id": len(nodes),
            "last_link_id": len(links),
            "nodes": nodes,
            "links": links,
            "groups": [self._ui_group(index, group) for index, group in enumerate(self.groups)],
            "config": {},
            "extra": {"ds": {"scale": 0.6, "offset": [130, 150]}, API_NAME: self.name, **wires.extra()},
            "version": 0.4,
        }

    def _ui_group(self, index: int, group: Group) -> dict:
        bounding, color = list(group.box), group.color
        return {
            "id": index + 1,
            "title": group.title,
            "bounding": bounding,
            "color": color,
            "font_size": 24,
            "flags": {},
        }

    def _shown(self, kind: str, name: str) -> str:
        """What a node's socket shows; one of a list, `cameras.camera0`, its own part of the name."""
        inputs = self.info[kind]["input"]
        spec = {**inputs.get("required", {}), **inputs.get("optional", {})}.get(name, ())
        return dict(*spec[1:]).get("display_name") or name.rpartition(".")[2]

    def _ui_node(self, node: Node, links: list[list]) -> dict:
        slots = [_slot(name, kind, self._shown(node.kind, name)) for name, kind in node.sockets.items()]
        for name, spec in node.widgets.items():
            slots.append({"name": name, "type": kind_of(spec), "widget": {"name": name}, "link": None})
        for index, slot in enumerate(slots):
            if isinstance(source := node.inputs.get(slot["name"]), Output):
                slot["link"] = len(links) + 1
                links.append([slot["link"], source.node.id, source.slot, node.id, index, source.type])
        note = node.kind == "MarkdownNote"
        properties = self.server.origin(node.kind) | ({} if note else {"Node name for S&R": node.kind})
        if node.models:
            properties["models"] = node.models
        saved = {
            "id": node.id,
            "type": node.kind,
            "pos": list(node.position),
            "size": [node.width, node.height],
            "flags": {"collapsed": True} if node.collapsed else {},
            "order": node.id - 1,
            "mode": 0,
            "inputs": slots,
            "outputs": [{"name": name, "type": kind, "links": []} for name, kind in node.outputs],
            "properties": properties,
            "widgets_values": [node.inputs["text"]] if note else node.widget_values(),
        }
        if node.title:
            saved["title"] = node.title
        if node.color:
            saved |= {"color": node.color, "bgcolor": "#2a2622"}
        return saved


def _slot(name: str, kind: str, shown: str) -> dict:
    """A socket, labelled where it shows something else than its name."""
    slot = {"name": name, "type": kind, "link": None}
    return slot if shown == name else {"label": shown, **slot}


def dump(graph: dict) -> str:
    return json.dumps(graph, indent=1, ensure_ascii=False) + "\n"
