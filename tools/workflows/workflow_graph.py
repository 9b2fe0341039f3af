"""Describe a ComfyUI graph in Python; write it as the canvas saves it (`ui`) and as the queue takes it (`api`).

Names and defaults come from a server's /object_info. Nodes are stacked in groups, groups in columns."""

import json
import uuid
from dataclasses import dataclass, field

from workflow_nodes import TITLE_HEIGHT, Group, Inlet, Node, Output, Server, default, kind_of, split

GROUP_STYLE = {"font_size": 24, "flags": {}}
LOOK = "title", "models", "extra_height", "collapsed", "room"
MUTED = 2  # LiteGraph's mode of a node that never runs
API_NAME = "lingbot_world_api"  # where a canvas file says which file of workflows/api/ is the same graph
COLUMN_GAP, NODE_GAP, GROUP_GAP, GROUP_PAD, GROUP_TITLE = 50, 16, 26, 14, 40

Point = tuple[int, int]
SPREAD = 8  # pixels between wires that share a gap
MOST_SPREAD = 5  # wires side by side, after which the first place is used again
NEAR = 150  # pixels up or down that a wire bridges without leaving its gap
BELOW = 34  # pixels of a lane below the groups that it passes


@dataclass
class Wires:
    """Reroutes of a graph's links, as schema 0.4 has them in `extra`."""

    groups: list[Group]
    gap: int
    reroutes: list[dict] = field(default_factory=list)
    last_of_link: list[dict] = field(default_factory=list)

    def add(self, link: int, source: Node, target: Node) -> None:
        parent = None
        for point in self._points(link, self._group(source), self._group(target), source, target):
            reroute = {"id": len(self.reroutes) + 1, "pos": list(point), "linkIds": [link]}
            if parent is not None:
                reroute["parentId"] = parent
            self.reroutes.append(reroute)
            parent = reroute["id"]
        if parent is not None:
            self.last_of_link.append({"id": link, "parentId": parent})

    def extra(self) -> dict:
        return {"reroutes": self.reroutes, "linkExtensions": self.last_of_link} if self.reroutes else {}

    def _group(self, node: Node) -> Group:
        return next(group for group in self.groups if node in group.nodes)

    def _points(self, link: int, start: Group, end: Group, source: Node, target: Node) -> list[Point]:
        if start is end:
            return []
        aside = (link % MOST_SPREAD - MOST_SPREAD // 2) * SPREAD
        out, into = self._right(start) + self.gap // 2 + aside, end.box[0] - self.gap // 2 + aside
        lane = self._lane(start, end, aside)
        if lane is None and abs(_level(source) - _level(target)) < NEAR and not source.collapsed:
            return []
        between = [] if lane is None else [(out, lane), (into, lane)]
        return [(out, _level(source)), *between, (into, _level(target))]

    def _lane(self, start: Group, end: Group, aside: int) -> int | None:
        """Return the height at which a wire passes groups: above its own in one column, else below all on its way."""
        if start.column == end.column:
            return end.box[1] - 12
        passed = [group for group in self.groups if start.column < group.column < end.column]
        return max(group.box[1] + group.box[3] for group in passed) + BELOW + aside if passed else None

    def _right(self, group: Group) -> int:
        return max(other.box[0] + other.box[2] for other in self.groups if other.column == group.column)


def _level(node: Node) -> int:
    return node.position[1] + (-15 if node.collapsed else 40)


class Graph:
    def __init__(self, server: Server, name: str, first: int = 1):
        """`first`: the first node id. Ids in a subgraph must differ from the outer nodes' ids."""
        self.server, self.info, self.name = server, server.nodes, name
        self.nodes: list[Node] = []
        self.groups: list[Group] = []
        self.begun = Group("", 0, "")
        self.box_width, self.first = 340, first

    def begin(self, title: str, column: int, color: str = "#3f789e", top: bool = False) -> None:
        """Stack the nodes added from here on under this title, below the column's other groups, or above with `top`."""
        self.begun = Group(title, column, color)
        self.groups.insert(0 if top else len(self.groups), self.begun)

    def add(self, kind: str, *, box_width: int | None = None, **inputs) -> Node:
        """Add a node; widgets keep their default. Dotted names: `**{"format.codec": "h264"}`. LOOK sets the Node."""
        if kind not in self.info:
            raise KeyError(f"the server has no node {kind}")
        info, look = self.info[kind], {name: inputs.pop(name) for name in LOOK if name in inputs}
        widgets, sockets = split(info["input"], inputs)
        if unknown := set(inputs) - set(widgets) - set(sockets):
            raise KeyError(f"{kind} has no input {sorted(unknown)}; it has {[*widgets, *sockets]}")
        values = {name: inputs.get(name, default(spec)) for name, spec in widgets.items()}
        values |= {name: inputs[name] for name in sockets if name in inputs}
        outputs = list(zip(info["output_name"], info["output"], strict=True))
        width = box_width or self.box_width
        return self.place(Node(self.next_id, kind, width, values, widgets, sockets, outputs, **look))

    @property
    def next_id(self) -> int:
        return self.first + len(self.nodes)

    def place(self, node: Node) -> Node:
        """Put a node below the nodes of the last group."""
        self.nodes.append(node)
        self.begun.nodes.append(node)
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
                    y += node.drawn + TITLE_HEIGHT + NODE_GAP
                y += GROUP_PAD - TITLE_HEIGHT - NODE_GAP
                group.box = (x, top, width + 2 * GROUP_PAD, y - top)
                y += GROUP_GAP
            x += width + 2 * GROUP_PAD + COLUMN_GAP

    def api(self) -> dict:
        """Return the API ("prompt") form."""
        prompt = {}
        for node in self.nodes:
            if node.subgraph:
                prompt |= node.subgraph.api(node)
            elif node.kind != "MarkdownNote" and not node.muted:
                prompt[str(node.id)] = self.api_node(node, {})
        return prompt

    def api_node(self, node: Node, outside: dict[str, object], prefix: str = "") -> dict:
        """Return a node in the API form. `outside`: values at the inlets; `prefix`: of ids in this graph."""
        inputs: dict[str, object] = {}
        for name, value in node.inputs.items():
            value = outside.get(value.name) if isinstance(value, Inlet) else value
            own = isinstance(value, Output) and value.node in self.nodes
            inputs[name] = value.link(prefix if own else "") if isinstance(value, Output) else value
        title = node.title or self.info[node.kind]["display_name"] or node.kind
        return {"class_type": node.kind, "inputs": inputs, "_meta": {"title": title}}

    def ui(self) -> dict:
        """Return the canvas's form (schema version 0.4)."""
        self._lay_out()
        links: list[list] = []
        nodes = [self._ui_node(node, links) for node in self.nodes]
        wires = Wires(self.groups, COLUMN_GAP)
        for link, origin, slot, target, *_ in links:
            nodes[origin - self.first]["outputs"][slot]["links"].append(link)
            wires.add(link, self.nodes[origin - self.first], self.nodes[target - self.first])
        groups = [
            {"id": index, "title": each.title, "bounding": list(each.box), "color": each.color, **GROUP_STYLE}
            for index, each in enumerate(self.groups, 1)
        ]
        inside = [node.subgraph.definition() for node in self.nodes if node.subgraph]
        return {
            "id": identity(self.name),
            "revision": 0,
            "last_node_id": self.first + len(nodes) - 1,
            "last_link_id": len(links),
            "nodes": nodes,
            "links": links,
            "groups": groups,
            **({"definitions": {"subgraphs": inside}} if inside else {}),
            "config": {},
            "extra": {"ds": {"scale": 0.6, "offset": [130, 150]}, API_NAME: self.name, **wires.extra()},
            "version": 0.4,
        }

    def _shown(self, kind: str, name: str) -> str:
        """Return a socket's label; for a member of a list, such as `cameras.camera0`, the last part of its name."""
        inputs = self.info[kind]["input"] if kind in self.info else {}  # a subgraph names its sockets itself
        spec = {**inputs.get("required", {}), **inputs.get("optional", {})}.get(name, ())
        return dict(*spec[1:]).get("display_name") or name.rpartition(".")[2]

    def _ui_node(self, node: Node, links: list[list]) -> dict:
        slots = []
        for name, kind in node.sockets.items():
            shown = self._shown(node.kind, name)
            slots.append(({} if shown == name else {"label": shown}) | {"name": name, "type": kind, "link": None})
        for name, spec in node.widgets.items():
            slots.append({"name": name, "type": kind_of(spec), "widget": {"name": name}, "link": None})
        for index, slot in enumerate(slots):
            if isinstance(source := node.inputs.get(slot["name"]), Output):
                slot["link"] = len(links) + 1
                links.append([slot["link"], source.node.id, source.slot, node.id, index, source.type])
        note = node.kind == "MarkdownNote"
        properties = self.server.origin(node.kind) | ({} if note else {"Node name for S&R": node.kind})
        if node.subgraph:
            properties = self.server.of_pack() | {"proxyWidgets": node.subgraph.shown}
        properties |= node.properties
        if node.models:
            properties["models"] = node.models
        saved = {
            "id": node.id,
            "type": node.kind,
            "pos": list(node.position),
            "size": [node.width, node.height],
            "flags": {"collapsed": True} if node.collapsed else {},
            "order": node.id - 1,
            "mode": MUTED if node.muted else 0,
            "inputs": slots,
            "outputs": [{"name": name, "type": kind, "links": []} for name, kind in node.outputs],
            "properties": properties,
            "widgets_values": [node.inputs["text"]] if note else [] if node.subgraph else node.widget_values(),
        }
        if node.title:
            saved["title"] = node.title
        if node.color:
            saved |= {"color": node.color, "bgcolor": "#2a2622"}
        return saved


def identity(name: str) -> str:
    """Return a graph's id, the same at each writing."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"lingbot-world/{name}"))


def dump(graph: dict) -> str:
    return json.dumps(graph, indent=1, ensure_ascii=False) + "\n"
