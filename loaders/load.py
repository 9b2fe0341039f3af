"""Loading of a checkpoint as a model: memory-mapped on the CPU, copied to a GPU."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, distributed

from ..model.attention.choose_8bit import choose_attention
from ..model.attention.exact import compile_ahead, sdpa
from ..model.dit import LingBotWorldModel
from ..model.host_memory import pause_collector
from ..model.layers.block import Block
from ..model.layers.operations import Linear, TorchOperations, materialise
from ..model.ops.linear_8bit import DTYPES, choose_arithmetic
from ..model.quantized.parameters import DecodedParameter, WideParameter, frozen_parameter, keep_together
from ..options import Arithmetic, AttentionMode, Progress
from ..typed import checked
from ..weights.quantized import quantized_tensors
from ..weights.tensors import TensorEntry, check_all_finite, check_scales
from .checkpoint import Checkpoint, open_checkpoint
from .chunks import block_of
from .lora import LoraChanges
from .offload import BlockStreamer, resident_weights, streamed_weights
from .uploader import Uploader

_ADVISED_BYTES = 32 << 20
_READ_BYTES = 1 << 20


@checked
def load_expert(
    path: str | Path | Checkpoint,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    *,
    operations: type = TorchOperations,
    attention: Callable[..., Tensor] = sdpa,
    copy: bool = False,
    progress: Progress | None = None,
    resident_blocks: int | None = None,
    arithmetic: Arithmetic = "auto",
    attention_mode: AttentionMode = "auto",
    shared_by: distributed.ProcessGroup | None = None,
    decoded_blocks: int = 0,
) -> LingBotWorldModel:
    """Return an expert or a causal model in eval mode, without gradients, that computes in `dtype` on `device`.

    operations, attention: as in LingBotWorldModel.
    copy: whether CPU weights are copies instead of views of the mapped file.
    progress: a callback (done, total), in bytes.
    resident_blocks: the number of blocks that stay on the GPU (None: all). The others are streamed.
    arithmetic: the number format of linear layers; "auto" means `dtype`.
    attention_mode: "exact" or "8bit" self-attention; "auto" means "exact".
    shared_by: processes that each hold a piece of every streamed block, and run each forward at the same time.
    decoded_blocks: the number of leading blocks whose decoded weights are cached.

    Raise CheckpointError for an unsuitable file, InputError if the device or model does not support a mode.
    """
    checkpoint = (path if isinstance(path, Checkpoint) else open_checkpoint(path)).rounded(dtype)
    build = partial(LingBotWorldModel, operations=operations, attention=attention, device="meta", dtype=dtype)
    device = torch.device(device)
    streamed = {} if resident_blocks is None else streamed_weights(checkpoint, resident_blocks)
    own_format, arithmetic = arithmetic == "8bit", choose_arithmetic(arithmetic, device, checkpoint.config)
    attention_mode = choose_attention(attention_mode, device, checkpoint.config)
    compile_ahead(device)
    # Building takes 0.1 s, a quarter of the whole load, and so would collections among thousands of new objects.
    with pause_collector(), ThreadPoolExecutor(1) as pool:
        building = pool.submit(build, checkpoint.config)
        resident = resident_weights(checkpoint, streamed)
        tensors = state_tensors(
            checkpoint, dtype, device, names=resident, copy=copy, progress=progress, quantized=False
        )
        streamer = BlockStreamer(checkpoint, streamed, device, shared_by) if streamed else None
        model = building.result()
        for name, tensor in (tensors | (streamer.parameters if streamer else {})).items():
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, tensor)
    _add_loras(model, checkpoint.changes, device, dtype)
    if streamer:
        streamer.attach(model)
    for block in list(model.blocks)[:decoded_blocks]:
        _keep_decoded(cast(Block, block), wide=arithmetic in DTYPES)
    model.set_arithmetic(arithmetic, own_format=own_format)
    model.set_attention(attention_mode)
    check_first_forward(model, checkpoint)
    return model.eval()


def check_first_forward(model: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Add a hook that checks the result of the first forward. The hook raises CheckpointError if the result is not
    finite and a weight contains NaN or infinity."""

    def check(model: torch.nn.Module, _inputs: object, velocity: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        model._forward_hooks.pop(handle.id)  # handle.remove() would leave the hook in a deep copy
        if not velocity.isfinite().all():
            check_all_finite(checkpoint.tensors.values())

    handle = model.register_forward_hook(check)


def _keep_decoded(block: Block, wide: bool) -> None:
    for layer in block.main_layers:
        if wide and type(layer.weight) is torch.nn.Parameter:
            layer.weight = WideParameter.of(layer.weight)
        if isinstance(layer.weight, DecodedParameter):
            layer.weight.keep()
    layers = [cast(Linear, layer) for layer in block.joint_layers]
    if all(isinstance(layer.weight, DecodedParameter) for layer in layers):
        keep_together(*(cast(DecodedParameter, layer.weight) for layer in layers))
        biases = torch.cat([layer.bias for layer in layers]).chunk(len(layers))
        for layer, bias in zip(layers, biases, strict=True):
            layer.bias = frozen_parameter(bias)


def _add_loras(model: LingBotWorldModel, changes: LoraChanges, device: torch.device, dtype: torch.dtype) -> None:
    """Apply LoRA changes: linear layers get factors to apply in each forward, other parameters get changed values."""
    with torch.inference_mode(False), torch.no_grad():  # ordinary tensors, as the parameters are
        for name, each in changes.items():
            owner, _, leaf = name.rpartition(".")
            layer = model.get_submodule(owner)
            if isinstance(layer, Linear) and leaf == "weight":
                layer.changes = [change.factors(device, dtype) for change in each]
                continue
            parameter = materialise(getattr(layer, leaf), torch.empty(0, device=device))
            for change in each:
                change.check()
                parameter = change.apply_to(parameter)
            setattr(layer, leaf, frozen_parameter(parameter.to(dtype)))


def state_tensors(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    *,
    names: Iterable[str] | None = None,
    copy: bool = False,
    buffer_key: Callable[[str], str] = block_of,
    progress: Progress | None = None,
    quantized: bool = True,
) -> dict[str, Tensor]:
    """Return frozen parameters on `device`, by official name: those in `names` (None: all).

    copy: True copies CPU parameters. False returns views of the file where it has `dtype`.
    buffer_key: parameters with the same `buffer_key(name)` share a device buffer.
    quantized: True returns quantized matrices as QuantizedTensors, False as DecodedParameters.
    """
    picked, device = list(checkpoint.shapes if names is None else names), torch.device(device)
    weights = {name: checkpoint.quantized[name] for name in picked if name in checkpoint.quantized}
    matrices = {name: weight for name, weight in weights.items() if len(weight.shape) == 2}
    others = {name: weight for name, weight in weights.items() if name not in matrices}
    source = _map_tensors if device.type == "cpu" and not copy else _upload_tensors
    # Ordinary tensors even under inference_mode: they outlive it.
    with torch.inference_mode(False), torch.no_grad(), ThreadPoolExecutor(1) as pool:
        checking = pool.submit(check_scales, checkpoint.entries(weights))
        with source(checkpoint.entries(picked), device, buffer_key, progress) as tensors:
            state = {} if quantized else quantized_tensors(matrices, tensors, None, device)
            packed = quantized_tensors(others, tensors, None, device)
        checking.result()
        if quantized:  # comfy_kitchen converts scales to float32, so they must have their values
            state = quantized_tensors(matrices, tensors, dtype, device)
        for name, weight in packed.items():
            state[name] = frozen_parameter(materialise(weight, torch.empty(0, device=device, dtype=dtype)))
        for name in picked:
            if name not in weights:
                state[name] = frozen_parameter(tensors.pop(name).to(dtype))
        return state


@contextmanager
def _map_tensors(
    entries: list[TensorEntry], _device: torch.device, _buffer_key: Callable[[str], str], progress: Progress | None
) -> Iterator[dict[str, Tensor]]:
    yield {entry.name: entry.view() for entry in entries}
    if progress:
        total = sum(entry.nbytes for entry in entries)
        progress(total, total)


@contextmanager
def _upload_tensors(
    entries: list[TensorEntry], device: torch.device, buffer_key: Callable[[str], str], progress: Progress | None
) -> Iterator[dict[str, Tensor]]:
    with Uploader(device) as uploader:
        tensors, upload = uploader.upload(entries, buffer_key)
        yield tensors
        upload.wait(progress)


def warm(checkpoint: Checkpoint) -> threading.Thread:
    """Start and return a background thread that reads the checkpoint's files into the page cache, ignoring errors."""
    thread = threading.Thread(target=_warm_files, args=(checkpoint.files,), daemon=True, name="lingbot-warm")
    thread.start()
    return thread


def _warm_files(files: list[Path]) -> None:
    buffer = bytearray(_READ_BYTES)
    for path in files:
        with suppress(OSError), path.open("rb", buffering=0) as file:
            if not hasattr(os, "posix_fadvise"):
                while file.readinto(buffer):
                    pass
                continue
            # One call for a whole file that is not cached would block until most of it is read.
            for start in range(0, os.fstat(file.fileno()).st_size, _ADVISED_BYTES):
                os.posix_fadvise(file.fileno(), start, _ADVISED_BYTES, os.POSIX_FADV_WILLNEED)
