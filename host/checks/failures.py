"""Conversion of exceptions in other nodes' code during sampling into errors that name the node."""

import linecache
import traceback
from contextlib import suppress
from pathlib import Path

import comfy.model_management

from ...errors import InputError
from ..node_classes import node_classes
from ..prompt.queue import UnknownError, name_of, running_prompt
from .graph import upstream_nodes

PACK = Path(__file__).parents[2]
OTHERS = "comfy_extras", "custom_nodes"
"""The folders that contain ComfyUI's extra nodes and other node packs."""


def raise_node_error(error: Exception) -> None:
    """Raise InputError with the node's name if another pack's node caused `error`. Return for every other error."""
    if comfy.model_management.is_oom(error):
        return
    frames = list(traceback.walk_tb(error.__traceback__))
    files = [Path(frame.f_code.co_filename) for frame, _ in frames]
    packs = [number for number, file in enumerate(files) if PACK in file.parents or {*OTHERS}.intersection(file.parts)]
    (last, line), file = frames[packs[-1]], files[packs[-1]]
    if PACK in file.parents and "patch(" in linecache.getline(str(file), line):
        patch = last.f_locals["patch"]
        if packs[-1] + 1 < len(frames):
            file = files[packs[-1] + 1]
        elif isinstance(error, TypeError):  # the patch takes other arguments, as a U-Net's or Flux's
            code = getattr(patch, "__code__", None) or getattr(type(patch).__call__, "__code__", None)
            file = Path("" if code is None else code.co_filename)
    if PACK not in file.parents:
        raise InputError(
            f"{_nodes_of(file)} failed in this run ({error}): it may be for models of another kind; remove it"
        ) from error


def _nodes_of(file: Path) -> str:
    """Return the names of nodes upstream of the running node that the module or node pack of `file` defines. If there
    are none, return a phrase such as "a node of NAME"."""
    places = [number for number, part in enumerate(file.parts[:-1]) if part in OTHERS]
    if not places:
        return f"a node of {file.name}" if file.name else "a node on the model"
    whole = file.with_suffix("").parts if places[-1] == len(file.parts) - 2 else file.parts
    module = ".".join(whole[places[-1] : places[-1] + 2])
    known = node_classes()
    with suppress(UnknownError):
        prompt, node = running_prompt()
        classes = {each: known[prompt[each]["class_type"]] for each in upstream_nodes(prompt, node)}
        found = [each for each, kind in classes.items() if getattr(kind, "RELATIVE_PYTHON_MODULE", "") == module]
        if found:
            return " or ".join(map(name_of, found))
    return f"a node of {module}"
