"""Run inside ComfyUI's Python: make ComfyUI a library and this repository the package `lingbot_world`.

python embed.py SCRIPT [ARGUMENTS]   with COMFYUI_PATH set, or imported by a script of this folder
"""

import importlib.util
import os
import sys
from pathlib import Path

PACK = Path(__file__).resolve().parents[2]


def embed(*arguments: str, base: str | None = None, gpu: str = "") -> None:
    """Import ComfyUI as `main.py` would with these arguments, and this pack as `lingbot_world`; once. On the CPU, or on
    the GPU with dynamic VRAM (`gpu="dynamic"`) or without (`gpu="static"`)."""
    if "lingbot_world" in sys.modules:  # in a fork of `interpreter.py`
        return
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() not in (PACK, PACK / "tests")]
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    where = ["--base-directory", base] if base else []
    device = {"": ["--cpu"], "dynamic": [], "static": ["--disable-dynamic-vram"]}[gpu]
    sys.argv = ["main.py", *device, "--disable-api-nodes", *where, *arguments]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.cli_args  # noqa: F401

    if gpu == "dynamic":
        _use_dynamic_vram()

    import nodes  # noqa: F401  - ComfyUI's, before ours can be mistaken for it

    _import_pack()


def _use_dynamic_vram() -> None:
    """Do what ComfyUI's `main.py` does on NVIDIA; a library does not."""
    import comfy_aimdo.control

    comfy_aimdo.control.init()
    import comfy.memory_management
    import comfy.model_management
    import comfy.model_patcher

    devices = comfy.model_management.get_all_torch_devices()
    if not comfy_aimdo.control.init_devices([(device.index, 0) for device in devices]):
        raise RuntimeError("comfy-aimdo does not work here")
    comfy.model_patcher.CoreModelPatcher = comfy.model_patcher.ModelPatcherDynamic
    comfy.memory_management.aimdo_enabled = True


def _import_pack() -> None:
    spec = importlib.util.spec_from_file_location(
        "lingbot_world", PACK / "__init__.py", submodule_search_locations=[str(PACK)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["lingbot_world"] = module
    spec.loader.exec_module(module)
