"""A checkpoint as a model: mapped where it stays on the CPU, streamed where it goes to a GPU."""

import gc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ..model.attention import sdpa
from ..model.dit import LingBotWorldModel
from ..model.operations import TorchOperations
from .checkpoint import Checkpoint, open_checkpoint
from .entries import TensorEntry
from .four_bit import check_finite, four_bit_tensors
from .nf4 import frozen_parameter
from .offload import BlockStreamer, staying_weights, streamed_weights
from .stream import block_of, streaming

Progress = Callable[[int, int], None]


def load_expert(
    path: str | Path | Checkpoint,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    *,
    operations=TorchOperations,
    attention=sdpa,
    progress: Progress | None = None,
    resident_blocks: int | None = None,
) -> LingBotWorldModel:
    """The expert at `path`, in eval mode and without gradients, computing in `dtype` on `device`.

    Built on the meta device, so that no weight is ever made twice. On the CPU the weights are views of the mapped
    file; on another device they are copied there through a few staging buffers, and `progress(bytes, total)` is called
    on the way. Raises CheckpointError for bad files, whatever `progress` raises, and leaves nothing behind then.

    Where that is too much for a GPU, only the first `resident_blocks` blocks stay there; the others' weights come from
    the file in every forward (see offload.py), which then raises what loading may raise.
    """
    checkpoint = path if isinstance(path, Checkpoint) else open_checkpoint(path)
    layers = {"operations": operations, "attention": attention, "device": "meta", "dtype": dtype}
    device, passing = torch.device(device), streamed_weights(checkpoint, resident_blocks)
    with _collector_paused(), ThreadPoolExecutor(1) as pool:  # building takes 0.1 s: a fifth of what the weights take
        building = pool.submit(LingBotWorldModel, checkpoint.config, **layers)
        staying = staying_weights(checkpoint, passing)
        tensors = state_tensors(checkpoint, dtype, device, names=staying, progress=progress)
        streamer = BlockStreamer(checkpoint, passing, device, dtype) if passing else None
        model = building.result()
        for name, tensor in (tensors | (streamer.parameters if streamer else {})).items():
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, tensor)
    if streamer:
        streamer.serve(model)
    return model.eval()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Thousands of small objects that all stay would set the garbage collector off again and again: 0.1 s of a load."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def state_tensors(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    *,
    names: Iterable[str] | None = None,
    group: Callable[[str], str] = block_of,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Official names to frozen parameters on `device`: QuantizedTensors declared as `dtype` for 4-bit weights, the
    others cast to `dtype`. `names` picks some of them; `group` says which share a device buffer (see
    `stream.streaming`).

    On the CPU they are zero-copy views of the mapped file wherever no cast is needed.
    Raises CheckpointError for scales that are not finite.
    """
    picked = list(checkpoint.shapes if names is None else names)
    four_bit = {name: checkpoint.four_bit[name] for name in picked if name in checkpoint.four_bit}
    # Ordinary tensors even under inference_mode: they outlive it.
    with torch.inference_mode(False), torch.no_grad(), ThreadPoolExecutor(1) as pool:
        checking = pool.submit(check_finite, checkpoint.name, four_bit.values())
        with _raw_tensors(checkpoint.entries(picked), torch.device(device), progress, group) as tensors:
            state = four_bit_tensors(four_bit, tensors, dtype, device)
        checking.result()
        plain = (name for name in picked if name not in four_bit)
        return state | {name: frozen_parameter(tensors.pop(name).to(dtype)) for name in plain}


@contextmanager
def _raw_tensors(
    entries: list[TensorEntry], device: torch.device, progress: Progress | None, group: Callable[[str], str]
) -> Iterator[dict[str, Tensor]]:
    """The entries on `device`, there when the context has ended."""
    if device.type == "cpu":
        total = sum(entry.nbytes for entry in entries)
        if progress:
            progress(total, total)
        yield {entry.name: entry.view() for entry in entries}
        return
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())  # the reader threads have a default of their own
    with streaming(entries, device, group=group, progress=progress) as tensors:
        yield tensors
