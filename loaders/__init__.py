"""Weights from disk: experts (NF4, FP4 or plain), packages of them, and the writer of NF4 files.

The names below are imported when first asked for, so that importing the package stays cheap."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, open_checkpoint
    from .load import load_expert, state_tensors, warm
    from .package import Package, find_package
    from .writer import write_nf4_expert

__all__ = ["Checkpoint", "Package", "find_package", "load_expert", "open_checkpoint", "state_tensors", "warm",
           "write_nf4_expert"]  # fmt: skip

_MODULES = {
    "load_expert": "load",
    "state_tensors": "load",
    "warm": "load",
    "open_checkpoint": "checkpoint",
    "Checkpoint": "checkpoint",
    "find_package": "package",
    "Package": "package",
    "write_nf4_expert": "writer",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
