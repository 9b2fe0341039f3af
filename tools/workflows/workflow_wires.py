"""The routes of wires through the gaps between columns and groups, by ComfyUI's reroutes."""

from dataclasses import dataclass, field

from workflow_nodes import Group, Node

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
        """Return the height at which a wire passes groups: above its own in the same column, else below all on its
        way."""
        if start.column == end.column:
            return end.box[1] - 12
        passed = [group for group in self.groups if start.column < group.column < end.column]
        return max(group.box[1] + group.box[3] for group in passed) + BELOW + aside if passed else None

    def _right(self, group: Group) -> int:
        return max(other.box[0] + other.box[2] for other in self.groups if other.column == group.column)


def _level(node: Node) -> int:
    return node.position[1] + (-15 if node.collapsed else 40)
