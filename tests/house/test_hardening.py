"""What SECURITY.md promises of the shipped code, held to its syntax trees."""

import ast

import pytest
from source_files import calls
from test_package import ROOT, SHIPPED, dotted

PROCESSES = ("popen", "fork", "forkpty", "startfile", "posix_spawn")
BY_NAME = {
    "__init__.py": "__getattr__",
    "errors.py": ("require", "on_first_use"),
    "host/needs.py": "_is_there",
    "model/choice/table.py": ("_unusable", "_kitchen_refuses"),
    "nodes/__init__.py": "get_node_list",
}
"""Where a module is imported by a name that is no constant: what the callers of `require` write out, and tables."""


def keyword(call: ast.Call, name: str):
    """The constant that a keyword is given."""
    given = {word.arg: word.value for word in call.keywords}.get(name)
    return given.value if isinstance(given, ast.Constant) else None


SAFE = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
SAFE["comfy.utils.load_torch_file"] = ("safe_load", True)
"""The keyword that has a call read tensors alone."""


def every_call():
    """(file, what is called, its call) for every call in the shipped files."""
    return ((path.relative_to(ROOT).as_posix(), *each) for path in SHIPPED for each in calls(path))


def test_no_file_runs_a_program_or_text():
    for place, name, _ in every_call():
        owner, _, last = name.rpartition(".")
        assert not (owner == "os" and (last in PROCESSES or last.startswith(("exec", "spawn")))), (place, name)
        assert last != "compile" or owner in ("re", "torch"), (place, name)
        assert name not in ("runpy.run_path", "runpy.run_module", "code.interact", "marshal.loads"), (place, name)


def test_what_is_unpickled_is_tensors_only():
    for place, name, call in every_call():
        if name in SAFE:
            word, value = SAFE[name]
            assert keyword(call, word) is value, (place, name)


def test_modules_are_imported_by_fixed_names():
    for place, name, call in every_call():
        if name == "np.require":  # of an array's memory
            continue
        if name.rpartition(".")[2] in ("import_module", "require", "spec_from_file_location", "LoadLibrary"):
            first = call.args[0]
            assert isinstance(first, ast.Constant) or place in BY_NAME, f"{place}: {ast.unparse(call)}"


def test_the_tables_of_names_hold_constants():
    """`__getattr__` of these files takes a module's name out of a table; another name is an AttributeError."""
    import lingbot_world
    from lingbot_world import camera, export, live, loaders, pipeline

    for module in (lingbot_world, camera, export, live, loaders, pipeline):
        with pytest.raises(AttributeError):
            _ = module.os


def test_what_is_not_shipped_is_left_out():
    """Each pattern begins with a slash: without one, docs/ would leave out web/docs/ too."""
    ignored = (ROOT / ".comfyignore").read_text().split()
    assert {"/tests/", "/scripts/", "/tools/", "/docs/"} <= set(ignored)
    assert [pattern for pattern in ignored if not pattern.startswith("/")] == []
    assert not [path for path in SHIPPED if f"/{path.relative_to(ROOT).parts[0]}/" in ignored]
    assert len({dotted(path) for path in SHIPPED}) > 100


def test_the_browser_s_code_asks_no_other_server():
    for path in (ROOT / "web").rglob("*.js"):
        text = path.read_text(encoding="utf-8")
        for refused in ("XMLHttpRequest", "WebSocket", "eval(", "new Function", "http://", "https://", "innerHTML"):
            assert refused not in text, f"{path}: {refused}"
