"""Run inside ComfyUI's Python: make ComfyUI a library and this repository the package `lingbot_world`.

python embed.py SCRIPT [ARGUMENTS]   with COMFYUI_PATH set, or imported by a script of this folder
"""

import importlib.util
import os
import sys
from pathlib import Path

PACK = Path(__file__).resolve().parents[2]


def embed(*arguments: str, base: str | None = None) -> None:
    """Import ComfyUI as `main.py` would with these arguments, on the CPU, and this pack as `lingbot_world`; once."""
    if "lingbot_world" in sys.modules:  # in a fork of `interpreter.py`
        return
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() not in (PACK, PACK / "tests")]
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    where = ["--base-directory", base] if base else []
    sys.argv = ["main.py", "--cpu", "--disable-api-nodes", *where, *arguments]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.cli_args  # noqa: F401

    import nodes  # noqa: F401  - ComfyUI's, before ours can be mistaken for it

    _import_pack()


def _import_pack() -> None:
    spec = importlib.util.spec_from_file_location(
        "lingbot_world", PACK / "__init__.py", submodule_search_locations=[str(PACK)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["lingbot_world"] = module
    spec.loader.exec_module(module)
