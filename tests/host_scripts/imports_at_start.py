"""Modules that this pack adds to ComfyUI's start (its import, a schema for each node), as a JSON list."""

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path

PACK = Path(__file__).resolve().parents[2]
sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() not in (PACK, PACK / "tests")]
sys.path.insert(0, os.environ["COMFYUI_PATH"])
sys.argv = ["main.py", "--cpu", "--disable-api-nodes"]

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import execution  # noqa: E402, F401
import server  # noqa: E402, F401

import nodes  # noqa: E402

asyncio.run(nodes.init_builtin_extra_nodes())

before = set(sys.modules)
spec = importlib.util.spec_from_file_location("pack", PACK / "__init__.py", submodule_search_locations=[str(PACK)])
pack = sys.modules["pack"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pack)
extension = asyncio.run(pack.comfy_entrypoint())
for node in asyncio.run(extension.get_node_list()):
    node.GET_SCHEMA()
print(json.dumps(sorted(set(sys.modules) - before)))
