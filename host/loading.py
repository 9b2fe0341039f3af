"""Loading of memory-mapped model files as MODELs."""

import logging
import threading
from functools import cache
from pathlib import Path
from typing import Any

import comfy.model_management
import torch
from comfy.memory_management import TensorFileSlice
from torch import Tensor

from ..loaders import Checkpoint, open_checkpoint, state_tensors
from ..loaders.load import check_first_forward
from ..loaders.package import open_experts
from ..model.attention import choose_8bit as attention_8bit
from ..model.attention.exact import compile_ahead
from ..model.memory import activation_bytes
from ..model.ops.linear_8bit import suited_arithmetic
from ..options import CHUNK, DTYPE_NAMES, Arithmetic, AttentionMode, PerExpert, Precision, Progress, torch_dtype
from ..weights.tensors import MappedFile
from .checks.sampling import add_checks
from .model.base_model import LingBotWorldExpert, Role
from .model.operations import Linear
from .model.patcher import DynamicExpertPatcher, ExactPatches, patcher_class
from .model.transformer import HostModel


def load_experts(
    paths: PerExpert[Path],
    weight_dtype: str,
    progress: Progress = lambda done, total: None,
    arithmetic: Arithmetic = "auto",
    attention: AttentionMode = "auto",
) -> PerExpert[ExactPatches]:
    """Return both experts as ComfyUI MODELs. Raise CheckpointError for invalid files, InputError for an 8-bit format
    that cannot be used.

    weight_dtype: "default" or one of DTYPE_NAMES.
    progress: called as progress(done, 2) after each expert.
    arithmetic, attention: the number formats of matrix products, in linear layers and in self-attention respectively.
    """
    checkpoints = open_experts(paths)
    high = load_patcher(checkpoints.high, weight_dtype, "high", arithmetic, attention)
    progress(1, 2)
    low = load_patcher(checkpoints.low, weight_dtype, "low", arithmetic, attention)
    progress(2, 2)
    return PerExpert(high, low)


def load_causal(
    folder: Path, weight_dtype: str, arithmetic: Arithmetic = "auto", attention: AttentionMode = "auto"
) -> ExactPatches:
    """Load the causal model at `folder`, a folder or file, as a MODEL, and log its release and licence. `weight_dtype`:
    "default" or in DTYPE_NAMES."""
    patcher = load_patcher(folder, weight_dtype, arithmetic=arithmetic, attention=attention)
    for line in patcher.model.checkpoint.release_lines:
        logging.info("%s", line)
    return patcher


def load_patcher(
    source: Path | Checkpoint,
    weight_dtype: str,
    role: Role | None = None,
    arithmetic: Arithmetic = "auto",
    attention: AttentionMode = "auto",
    disable_dynamic: bool = False,
) -> ExactPatches:
    """Load a model. Return it as a ComfyUI MODEL, with weights that stay views into the memory-mapped file until
    sampling.

    weight_dtype: "default" or one of DTYPE_NAMES.
    role: the expert's role; None for a causal model.
    disable_dynamic: whether to load without ComfyUI's dynamic VRAM.
    """
    device = comfy.model_management.get_torch_device()
    dtype = compute_dtype(weight_dtype, device)
    checkpoint = (source if isinstance(source, Checkpoint) else open_checkpoint(source)).rounded(dtype)
    notes = check_8_bits(checkpoint, arithmetic, attention)
    compile_ahead(device)
    model = HostModel(checkpoint.config, dtype)
    model.set_arithmetic(suited_arithmetic(arithmetic, device), own_format=arithmetic == "8bit")
    model.set_attention(attention)
    for name, tensor in state_tensors(checkpoint, dtype).items():
        _set_parameter(model, name, tensor)
    make = patcher_class(device, disable_dynamic)
    if make is DynamicExpertPatcher:
        mark_file_slices(model, checkpoint)
    check_first_forward(model, checkpoint)
    offload_device = comfy.model_management.unet_offload_device()
    patcher = make(LingBotWorldExpert(model, checkpoint, role), device, offload_device, size=checkpoint.nbytes)
    patcher.cached_patcher_init = (load_patcher, (checkpoint.path, weight_dtype, role, arithmetic, attention))
    add_checks(patcher)
    _log_memory(checkpoint, dtype, suited_arithmetic(arithmetic, device), attention)
    for note in notes:
        logging.info("%s", note)
    return patcher


def check_8_bits(checkpoint: Checkpoint, arithmetic: Arithmetic, attention: AttentionMode) -> tuple[str, ...]:
    """Return notes for the user on 8-bit formats. Raise InputError if the device or the model cannot use a format."""
    device = comfy.model_management.get_torch_device()
    return attention_8bit.check_8_bits(arithmetic, attention, device, checkpoint.config)


def compute_dtype(weight_dtype: str, device: torch.device) -> torch.dtype:
    """Return the dtype that `weight_dtype` names. For "default", return bf16, fp16 or fp32, whichever ComfyUI
    recommends for the device."""
    if weight_dtype in DTYPE_NAMES:
        return torch_dtype(weight_dtype)
    if comfy.model_management.should_use_bf16(device, prioritize_performance=True, manual_cast=True):
        return torch.bfloat16
    fp16 = comfy.model_management.should_use_fp16(device, prioritize_performance=True, manual_cast=True)
    return torch.float16 if fp16 else torch.float32


def _set_parameter(model: HostModel, name: str, tensor: Tensor) -> None:
    owner, _, parameter = name.rpartition(".")
    layer = model.get_submodule(owner)
    if isinstance(layer, Linear):
        layer.load_parameter(parameter, tensor)
        return
    if not hasattr(layer, "weight_function"):  # a modulation: the engine adds it in fp32, a LoRA's change included
        tensor = tensor.float()
    layer._parameters[parameter] = torch.nn.Parameter(tensor, requires_grad=False)


def _log_memory(checkpoint: Checkpoint, dtype: torch.dtype, arithmetic: Arithmetic, attention: AttentionMode) -> None:
    causal, (height, width) = checkpoint.config.causal, (60, 104)
    frames, made = (CHUNK, "a chunk") if causal else (21, "81 frames")
    step = activation_bytes(checkpoint.config, frames, height, width, Precision(dtype, arithmetic, attention))
    name = "/".join(checkpoint.path.parts[-2:])  # both experts' files are often called model.safetensors
    logging.info(
        "%s: %.2f GB of weights (%s), and %.2f GB more for a step at 480x832, %s",
        name,
        checkpoint.nbytes / 1e9,
        checkpoint.quantization or "not quantized",
        step / 1e9,
        made,
    )


def mark_file_slices(model: torch.nn.Module, checkpoint: Checkpoint) -> int:
    """Mark the weights that are views into a file, so that dynamic VRAM reads them from there. Return their number."""
    mapped = {
        entry.view().data_ptr(): entry
        for entry in checkpoint.tensors.values()
        if not isinstance(entry.source, Tensor) and entry.nbytes and not entry.stored
    }

    @cache
    def opened(file: MappedFile):
        return file.open(), threading.Lock()

    marked = 0
    for parameter in model.parameters():
        tensor = getattr(parameter, "_qdata", parameter)
        entry = mapped.get(tensor.data_ptr())
        if entry is not None and entry.nbytes == tensor.nbytes:
            storage: Any = tensor.untyped_storage()
            storage._comfy_tensor_file_slice = TensorFileSlice(*opened(entry.source), entry.offset, entry.nbytes)
            marked += 1
    return marked
