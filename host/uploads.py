"""Weights to the GPU at the speed of the bus, where ComfyUI itself moves them (`--disable-dynamic-vram`).

It decides which layers it loads and then calls `.to(device)` on one after another, which copies out of the mapped file
page by page. Here the layers only note that they were asked, and go together when ComfyUI has named them all."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..loaders import state_tensors
from ..loaders.chunks import layer_of
from .operations import Linear


def usable(model, device: torch.device | None) -> bool:
    """Whether there are a file and a bus between it and the device."""
    return model.checkpoint is not None and device is not None and device.type == "cuda"


class Upload:
    """Parameters of an expert (a LingBotWorldExpert) that wait to be sent to `device`, by official name."""

    def __init__(self, model, device: torch.device):
        network = model.diffusion_model
        self.checkpoint, self.dtype, self.device = model.checkpoint, network.dtype, device
        self.names = {layer: name for name, layer in network.named_modules() if isinstance(layer, Linear)}
        self.waiting: dict[str, tuple[Linear, str]] = {}

    def takes(self, layer: Linear, leaf: str, target: torch.Tensor) -> bool:
        """Whether the layer's weight or bias is sent with the others to become like `target` (any tensor of its device
        and dtype). A weight that is stored in another dtype is not: for a while it would be on the device twice."""
        name = f"{self.names[layer]}.{leaf}"
        stored = self.checkpoint.plain.get(name) if leaf == "weight" else None
        if (target.device, target.dtype) != (self.device, self.dtype) or (stored and stored.dtype != self.dtype):
            return False
        self.waiting[name] = layer, leaf
        return True

    def send(self) -> None:
        """All that wait, each layer's to memory of its own, so that ComfyUI frees what it believes to free when it
        unloads some of them."""
        options = {"names": self.waiting, "copy": True, "buffer_key": layer_of}
        sent = state_tensors(self.checkpoint, self.dtype, self.device, **options)
        for name, (layer, leaf) in self.waiting.items():
            layer._parameters[leaf] = sent[name]


@contextmanager
def uploading(model, device: torch.device) -> Iterator[None]:
    """Weights of an expert that are moved from their file to `device` in this context are there when it has ended.

    Raises CheckpointError, OSError and what the device raises, with every weight still in its file."""
    upload = Upload(model, device)
    for layer in upload.names:
        layer.upload = upload
    try:
        yield
    finally:
        for layer in upload.names:
            layer.upload = None
    upload.send()
