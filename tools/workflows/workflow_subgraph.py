"""Subgraphs: a graph as one node, for `subgraphs/` (ComfyUI's "blueprints") and inside a workflow."""

from dataclasses import dataclass

from workflow_graph import Graph, identity
from workflow_nodes import Inlet, Node, Output, kind_of

FIRST, LAST = -10, -20  # ids that the canvas gives the two ends of every subgraph
END_WIDTH, END_GAP, SLOT = 140, 200, 20
LINK = "id", "origin_id", "origin_slot", "target_id", "target_slot", "type"


@dataclass(frozen=True)
class Field:
    """A widget of an inner node that the outer node shows."""

    node: Node
    widget: str

    @property
    def spec(self) -> tuple:
        return self.node.widgets[self.widget]


@dataclass
class Subgraph:
    """A graph as one node. `inlets`: names and types."""

    graph: Graph
    name: str
    description: str
    inlets: dict[str, str]
    fields: list[Field]
    outlets: list[tuple[str, Output]]

    def node(self, graph: Graph, width: int = 400, **inputs: Output) -> Node:
        """Add this subgraph as a node of another graph, in its last group."""
        widgets = {field.widget: field.spec for field in self.fields}
        values = {field.widget: field.node.inputs[field.widget] for field in self.fields}
        outputs = [(name, output.type) for name, output in self.outlets]
        given = identity(self.graph.name), width, values | inputs, widgets, dict(self.inlets), outputs
        return graph.place(Node(graph.next_id, *given, title=self.name, subgraph=self))

    @property
    def shown(self) -> list[list[str]]:
        return [[str(field.node.id), field.widget] for field in self.fields]

    def api(self, outer: Node) -> dict:
        """Return the inner nodes in the API form, with ids "outer:inner"."""
        prefix = f"{outer.id}:"
        return {f"{prefix}{node.id}": self.graph.api_node(node, outer.inputs, prefix) for node in self.graph.nodes}

    def blueprint(self) -> dict:
        """Return the file for `subgraphs/`: this node alone on a canvas."""
        alone = Graph(self.graph.server, f"{self.graph.name}/blueprint")
        alone.begin("", 0)
        self.node(alone)
        return alone.ui() | {"groups": [], "extra": {}}

    def definition(self) -> dict:
        """Return the subgraph as the canvas saves it (version 1 of its schema)."""
        drawn = self.graph.ui()
        links = [dict(zip(LINK, link, strict=True)) for link in drawn["links"]]
        boxes = [group["bounding"] for group in drawn["groups"]]
        left, right = min(x for x, *_ in boxes) - END_GAP - END_WIDTH, max(x + w for x, _, w, _ in boxes) + END_GAP
        inputs, outputs = self._inputs(drawn, links, left), self._outputs(drawn, links, right)
        state = {"lastGroupId": len(drawn["groups"]), "lastNodeId": drawn["last_node_id"], "lastLinkId": len(links)}
        return {
            "id": identity(self.graph.name),
            "version": 1,
            "state": {**state, "lastRerouteId": 0},
            "revision": 0,
            "config": {},
            "name": self.name,
            "inputNode": {"id": FIRST, "bounding": [left, 0, END_WIDTH, SLOT * (len(inputs) + 2)]},
            "outputNode": {"id": LAST, "bounding": [right, 0, END_WIDTH, SLOT * (len(outputs) + 2)]},
            "inputs": inputs,
            "outputs": outputs,
            "widgets": [],
            "nodes": drawn["nodes"],
            "groups": drawn["groups"],
            "links": links,
            "extra": {},
            "category": "LingBot-World",
            "description": self.description,
        }

    def _inputs(self, drawn: dict, links: list[dict], left: int) -> list[dict]:
        inputs = [(node, name, value) for node in self.graph.nodes for name, value in node.inputs.items()]
        entries = [
            (inlet, kind, [(node, name) for node, name, value in inputs if value == Inlet(inlet)])
            for inlet, kind in self.inlets.items()
        ]
        entries += [(field.widget, kind_of(field.spec), [(field.node, field.widget)]) for field in self.fields]
        made = []
        for slot, (name, kind, takers) in enumerate(entries):
            ids = [self._link_in(drawn, links, slot, kind, *taker) for taker in takers]
            made.append(self._slot("in", slot, name, kind, ids, left + END_WIDTH - SLOT))
        return made

    def _slot(self, side: str, slot: int, name: str, kind: str, links: list[int], x: int) -> dict:
        identifier, place = identity(f"{self.graph.name}/{side}/{name}"), [x, SLOT * (slot + 1)]
        return {"id": identifier, "name": name, "type": kind, "linkIds": links, "pos": place}

    def _link_in(self, drawn: dict, links: list[dict], slot: int, kind: str, node: Node, name: str) -> int:
        inputs = drawn["nodes"][node.id - self.graph.first]["inputs"]
        index = next(index for index, each in enumerate(inputs) if each["name"] == name)
        inputs[index]["link"] = number = len(links) + 1
        links.append(dict(zip(LINK, (number, FIRST, slot, node.id, index, kind), strict=True)))
        return number

    def _outputs(self, drawn: dict, links: list[dict], right: int) -> list[dict]:
        made = []
        for slot, (name, output) in enumerate(self.outlets):
            number, source = len(links) + 1, output.node.id
            drawn["nodes"][source - self.graph.first]["outputs"][output.slot]["links"].append(number)
            links.append(dict(zip(LINK, (number, source, output.slot, LAST, slot, output.type), strict=True)))
            made.append(self._slot("out", slot, name, output.type, [number], right + SLOT))
        return made
