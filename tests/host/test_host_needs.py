"""The list of what the nodes ask of ComfyUI's code is the list of what the code uses: no more and no less."""

import ast
import importlib.util
from functools import cache
from pathlib import Path

import pytest

PACK = Path(__file__).parents[2]
HOST = ("comfy", "comfy_api", "comfy_execution", "folder_paths", "latent_preview", "node_helpers")
"""Packages of ComfyUI. `server` is not among them: it is imported while a prompt runs, to show a text on a node."""


def load_needs():
    """host/needs.py by itself, which imports nothing of ComfyUI."""
    spec = importlib.util.spec_from_file_location("lingbot_world_needs", PACK / "host" / "needs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


needs = load_needs()


def listed(module: str) -> set[str]:
    return {name.replace(":", ".") for name in (*needs.EVERY_NODE, *needs.NEEDS[module])}


@cache
def tree(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def files_under(path: Path) -> set[Path]:
    """A module of nodes/ and what it imports of nodes/ and host/, directly or through others, at any time."""
    found, waiting = set(), [path]
    while waiting:
        path = waiting.pop()
        found.add(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                places = [folder.with_suffix(".py"), *(folder / f"{alias.name}.py" for alias in node.names)]
                waiting += [place for place in places if place.is_file() and place in FILES and place not in found]
    return found


def imported(path: Path) -> dict[str, str]:
    """What names in a file stand for, of ComfyUI's packages: `mm` is comfy.model_management."""
    found = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                found |= {alias.asname: alias.name} if alias.asname else {top: top}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: stands_for for name, stands_for in found.items() if stands_for.split(".")[0] in HOST}


@cache
def used(path: Path) -> set[str]:
    """Dotted names of ComfyUI that a file uses, as long as it writes them."""
    names, found = imported(path), set()
    for node in ast.walk(tree(path)):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in names:
            found.add(".".join([names[node.id], *reversed(parts)]))
    return found


def goes_on(name: str, beginning: str) -> bool:
    return f"{name}.".startswith(f"{beginning}.")


FILES = sorted([*PACK.glob("host/**/*.py"), *PACK.glob("nodes/**/*.py")])


@pytest.mark.parametrize("module", sorted(needs.NEEDS))
def test_what_a_module_uses_is_listed(module):
    """A used name is in the list, or goes on from one there, or is the beginning of one there."""
    names = set().union(*(used(path) for path in files_under(PACK / "nodes" / f"{module.replace('.', '/')}.py")))
    unlisted = {name for name in names if not any(goes_on(name, n) or goes_on(n, name) for n in listed(module))}
    assert unlisted == set()


def test_what_is_listed_is_used():
    """By its whole name or, for a method of a class, by its own."""
    names, text = set().union(*map(used, FILES)), "".join(path.read_text("utf-8") for path in FILES)
    every = set().union(*map(listed, needs.NEEDS))
    by_name = {name for name in every if any(goes_on(other, name) for other in names)}
    methods = {
        name
        for name in every - by_name
        if any(goes_on(name, other) for other in names) and f"{name.rpartition('.')[2]}(" in text
    }
    assert every - by_name - methods == set()


def test_every_method_that_is_overridden_is_listed():
    """ComfyUI would not call an override whose method it has renamed."""
    calls = {
        node.attr
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "super()"
    }
    ours = set().union(*map(listed, needs.NEEDS))
    assert calls - {name.rpartition(".")[2] for name in ours} <= {"__init__", "forward"}


def _module(path):
    """Return "camera.make" for nodes/camera/make.py."""
    parts = path.relative_to(PACK / "nodes").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__" or len(parts) == 1)


def test_every_module_of_nodes_has_its_list():
    helpers = {"__init__", "camera", "sampling", "inputs", "validation"}
    assert {_module(path) for path in PACK.glob("nodes/**/*.py")} - helpers == set(needs.NEEDS)


def test_the_oldest_comfyui_is_the_one_that_the_manager_is_told():
    project = pytest.importorskip("tomllib").loads((PACK / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["comfy"]["requires-comfyui"] == f">={needs.OLDEST}.0"
