"""Experts as MODELs: mapped, checked, and wrapped for ComfyUI's model management."""

import logging
from collections.abc import Callable
from pathlib import Path

import comfy.model_management
import torch
from torch import Tensor

from ..loaders import Checkpoint, open_checkpoint, state_tensors
from ..loaders.package import open_experts
from ..model.memory import activation_bytes
from ..options import PerExpert
from .base_model import LingBotWorldExpert
from .file_slices import tag_file_slices
from .model import HostModel
from .operations import Linear
from .patcher import DynamicExpertPatcher, ExactPatches, patcher_class

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def compute_dtype(choice: str, device: torch.device) -> torch.dtype:
    """The dtype of `choice` (bf16, fp16, fp32); `default` is the first of them that the device is good at."""
    if choice in DTYPES:
        return DTYPES[choice]
    if comfy.model_management.should_use_bf16(device, prioritize_performance=True, manual_cast=True):
        return torch.bfloat16
    fp16 = comfy.model_management.should_use_fp16(device, prioritize_performance=True, manual_cast=True)
    return torch.float16 if fp16 else torch.float32


def load_pair(
    high: Path, low: Path, weight_dtype: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[ExactPatches, ExactPatches]:
    """Both experts as MODELs, after a look at whether they are a pair. `progress(done, 2)` after each.

    Raises CheckpointError."""
    patchers = []
    for checkpoint in open_experts(PerExpert(high, low)):
        patchers.append(patcher_of(checkpoint, weight_dtype))
        progress(len(patchers), 2)
    return tuple(patchers)


def load_patcher(path: Path, weight_dtype: str = "default", disable_dynamic: bool = False) -> ExactPatches:
    """The expert at `path` as a MODEL. Weights stay views of the mapped file until sampling asks for them.

    Raises CheckpointError."""
    return patcher_of(open_checkpoint(path), weight_dtype, disable_dynamic)


def patcher_of(checkpoint: Checkpoint, weight_dtype: str = "default", disable_dynamic: bool = False) -> ExactPatches:
    """The same, of a checkpoint that is already open."""
    device = comfy.model_management.get_torch_device()
    dtype = compute_dtype(weight_dtype, device)
    model = HostModel(checkpoint.config, dtype)
    for name, tensor in state_tensors(checkpoint, dtype).items():
        _assign(model, name, tensor)
    offload = comfy.model_management.unet_offload_device()
    make = patcher_class(device, disable_dynamic)
    if make is DynamicExpertPatcher:
        tag_file_slices(model, checkpoint)
    patcher = make(LingBotWorldExpert(model, checkpoint), device, offload, size=checkpoint.nbytes)
    _log_needs(checkpoint, dtype)
    patcher.cached_patcher_init = (load_patcher, (checkpoint.path, weight_dtype))
    return patcher


def _log_needs(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    frames, height, width = 21, 60, 104
    step = activation_bytes(checkpoint.config, frames, height, width, dtype=dtype)
    logging.info("%s: %.2f GB of weights (%s), %.2f GB over them for a step at 480x832, 81 frames", checkpoint.name,
                 checkpoint.nbytes / 1e9, checkpoint.quantization or "not quantized", step / 1e9)  # fmt: skip


def _assign(model: HostModel, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    layer = model.get_submodule(owner)
    if isinstance(layer, Linear):
        layer.load_parameter(leaf, tensor)
    elif hasattr(layer, "weight_function"):
        layer._parameters[leaf] = torch.nn.Parameter(tensor, requires_grad=False)
    else:  # a modulation: the engine adds it in fp32, and a LoRA's change to it must not be rounded
        layer._parameters[leaf] = torch.nn.Parameter(tensor.float(), requires_grad=False)
