"""Loading of weights from disk, plain or quantized, with LoRAs."""

from typing import TYPE_CHECKING

from ..errors import on_first_use

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, open_checkpoint
    from .load import load_expert, state_tensors, warm
    from .package import Package, find_package

__all__ = ["Checkpoint", "Package", "find_package", "load_expert", "open_checkpoint", "state_tensors", "warm"]

__getattr__ = on_first_use(
    __name__,
    checkpoint="Checkpoint open_checkpoint",
    load="load_expert state_tensors warm",
    package="Package find_package",
)
