"""The repository's Python files, and what they import and call; each file is parsed once."""

import ast
import os
from functools import cache
from pathlib import Path

from comfy_tree import PACK


def python_files(*left_out: str) -> list[Path]:
    """Every Python file, but for those in hidden folders and in folders of these names."""
    found = []
    for folder, inside, names in os.walk(PACK):
        inside[:] = [name for name in inside if not name.startswith(".") and name not in left_out]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """(level, module) of every import statement in a file, wherever it stands."""
    found = []
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or ""))
    return found


@cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """(what is called, its call) for every call in a file: `np.load` for np.load(...)."""
    return [(ast.unparse(node.func), node) for node in _nodes(path) if isinstance(node, ast.Call)]
