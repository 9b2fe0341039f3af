"""The parts of a laid-out graph: server, nodes, outputs, groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PACK, CORE = "lingbot-world", "comfy-core"
SEEDS = ("seed", "noise_seed")  # the canvas puts a "control after generate" below these, asked or not
BADGE_HEIGHT, BUTTON_HEIGHT = 20, 26  # of Nodes 2.0
TITLE_HEIGHT, SLOT_HEIGHT, WIDGET_HEIGHT, TEXT_HEIGHT, PREVIEW_HEIGHT = 30, 20, 24, 110, 200
IMAGE_HEIGHT = PREVIEW_HEIGHT + 27  # of Load Image, in which front-end 1.58 draws a box for a file that is missing
WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COMFY_DYNAMICCOMBO_V3", "LOAD_3D"}
PLAIN_DEFAULTS = {"INT": 0, "FLOAT": 0.0, "STRING": "", "BOOLEAN": False}


@dataclass(frozen=True)
class Server:
    """A ComfyUI's node classes by /object_info, and the registry version of each pack."""

    nodes: dict[str, dict]
    versions: dict[str, str]

    def origin(self, kind: str) -> dict[str, str]:
        """Return the properties of a node that name its pack."""
        own = self.nodes.get(kind, {}).get("python_module", "").startswith("custom_nodes.")
        return self.of_pack(PACK if own else CORE)

    def of_pack(self, pack: str = PACK) -> dict[str, str]:
        return {"cnr_id": pack, "ver": self.versions[pack]}


@dataclass(frozen=True)
class Output:
    """A node's output slot."""

    node: Node
    slot: int
    type: str

    def link(self, prefix: str = "") -> list:
        """Return the link in the API form; an output of a subgraph belongs to a node inside it."""
        if self.node.subgraph:
            return self.node.subgraph.outlets[self.slot][1].link(f"{self.node.id}:")
        return [f"{prefix}{self.node.id}", self.slot]


@dataclass(frozen=True)
class Inlet:
    """A socket of the subgraph that this graph becomes."""

    name: str


@dataclass
class Node:
    """A node of a graph; `properties` are saved for its widgets."""

    id: int
    kind: str
    width: int
    inputs: dict[str, object]
    widgets: dict[str, tuple]
    sockets: dict[str, str]
    outputs: list[tuple[str, str]]
    title: str | None = None
    models: list[dict] = field(default_factory=list)
    extra_height: int = 0
    color: str | None = None
    collapsed: bool = False
    muted: bool = False
    room: int = 0
    position: tuple[int, int] = (0, 0)
    subgraph: Any = None  # a Subgraph, which is built of nodes
    properties: dict = field(default_factory=dict)

    def __getitem__(self, name: str) -> Output:
        """Return the first output of this name or type."""
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
    def drawn(self) -> int:
        """The pixels of a node with those that stay free below it, for images during a run, and for Nodes 2.0: the
        pack's name, and buttons for advanced inputs and for a missing model file."""
        if self.collapsed:
            return self.room
        advanced = any(options.get("advanced") for _, options in self.widgets.values())
        footer = BADGE_HEIGHT * ("LingBot" in self.kind) + BUTTON_HEIGHT * (advanced + bool(self.models))
        return self.height + self.room + footer

    def widget_values(self) -> list:
        """Return values in the canvas's order, with its extra widgets for seeds and uploads."""
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


def split(inputs: dict, chosen: dict, prefix: str = "") -> tuple[dict[str, tuple], dict[str, str]]:
    """Return widgets (name to spec) and sockets (name to type) in order, with the members of lists."""
    widgets, sockets = {}, {}
    for section in ("required", "optional"):
        for name, raw in inputs.get(section, {}).items():
            spec = (raw[0], raw[1] if len(raw) > 1 else {})
            more_widgets, more_sockets = _unfold(prefix + name, spec, chosen)
            widgets |= more_widgets
            sockets |= more_sockets
    return widgets, sockets


def _unfold(name: str, spec: tuple, chosen: dict) -> tuple[dict[str, tuple], dict[str, str]]:
    kind, options = spec
    if kind == "COMFY_AUTOGROW_V3":
        return {}, _grown(name, options["template"], chosen)
    if not _is_widget(spec):
        return {}, {name: kind}
    if kind != "COMFY_DYNAMICCOMBO_V3":
        return {name: spec}, {}
    key = chosen.get(name, default(spec))
    option = next(option for option in options["options"] if option["key"] == key)
    widgets, sockets = split(option["inputs"], chosen, f"{name}.")
    return {name: spec, **widgets}, sockets


def _grown(name: str, template: dict, chosen: dict) -> dict[str, str]:
    """Return the sockets of a growing list as the canvas shows it: the used ones and a free one."""
    numbered = (f"{template.get('prefix')}{index}" for index in range(template.get("max", 0)))
    names = [f"{name}.{each}" for each in template.get("names") or numbered]
    used = sum(each in chosen for each in names)
    ((kind, *_),) = template["input"]["required"].values()
    return dict.fromkeys(names[: used + 1], kind)


def _is_widget(spec: tuple) -> bool:
    kind, options = spec
    return not options.get("forceInput") and (isinstance(kind, list) or kind in WIDGETS or "widgetType" in options)


def is_text(spec: tuple) -> bool:
    """Whether this widget has several lines."""
    return spec[0] == "STRING" and bool(spec[1].get("multiline"))


def kind_of(spec: tuple) -> str:
    """Return the canvas's type of a widget's slot."""
    return "COMBO" if isinstance(spec[0], list) else spec[0]


def default(spec: tuple):
    """Return the value of an untouched widget."""
    kind, options = spec
    if "default" in options:
        return options["default"]
    choices = kind if isinstance(kind, list) else options.get("options", [])
    if choices:
        return choices[0]["key"] if isinstance(choices[0], dict) else choices[0]
    return PLAIN_DEFAULTS.get(kind_of(spec))
