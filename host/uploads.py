"""Weights to the GPU at the speed of the bus, where ComfyUI itself moves them (`--disable-dynamic-vram`).

It decides which layers it loads and then calls `.to(device)` on one after another, which copies out of the mapped file
page by page. Here the layers only note that they were asked, and go together when ComfyUI has named them all."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..loaders import state_tensors
from ..loaders.stream import layer_of
from .operations import Linear


def usable(model, device: torch.device | None) -> bool:
    """Whether there are a file and a bus between it and the device."""
    return model.checkpoint is not None and device is not None and device.type == "cuda"


class Upload:
    """Parameters by official name that wait to be sent to `device`."""

    def __init__(self, device: torch.device):
        self.device = device
        self.waiting: dict[str, tuple[Linear, str]] = {}


@contextmanager
def uploading(model, device: torch.device) -> Iterator[None]:
    """Weights of an expert (a LingBotWorldExpert) that are moved from their file to `device` in this context are there
    when it has ended.

    Each layer gets memory of its own, so that ComfyUI frees what it believes to free when it unloads some. Raises
    CheckpointError, OSError and what the device raises, with every weight still in its file."""
    network, upload = model.diffusion_model, Upload(device)
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, Linear)}
    for name, layer in layers.items():
        layer.upload = upload, name
    try:
        yield
    finally:
        for layer in layers.values():
            layer.upload = None
    sent = state_tensors(model.checkpoint, network.dtype, device, names=upload.waiting, group=layer_of)
    for name, (layer, leaf) in upload.waiting.items():
        layer._parameters[leaf] = sent[name]
