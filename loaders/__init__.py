"""Loading of weights from disk, plain or quantized (NF4, FP4 or other formats), with LoRAs. A package is a folder with
all models needed for a video. The names in `__all__` are imported at their first use."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, open_checkpoint
    from .load import load_expert, state_tensors, warm
    from .package import Package, find_package

__all__ = ["Checkpoint", "Package", "find_package", "load_expert", "open_checkpoint", "state_tensors", "warm"]

_MODULES = {
    "load_expert": "load",
    "state_tensors": "load",
    "warm": "load",
    "open_checkpoint": "checkpoint",
    "Checkpoint": "checkpoint",
    "find_package": "package",
    "Package": "package",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
