"""What a causal run needs before its first chunk: the prompt's embedding, the image's latent, decoder and model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..loaders import load_expert
from ..model.dit import LingBotWorldModel
from ..options import Progress
from ..pipeline.two_experts import Together
from ..vae import VideoDecoder, encode_first_frame, load_vae, vae_width
from ..vae.encoding import SETTLED
from .decoding import divided_decoder
from .memory import MARGIN, estimate_text, estimate_vae, free_memory
from .processes import Processes
from .profile import StageRecorder
from .rollout_memory import RolloutMemory, available_host_memory, choose_rollout_memory
from .rollout_plan import RolloutPlan

log = logging.getLogger(__name__)

SETTLING = 500_000_000
"""Bytes that CUDA's libraries take on the GPU while a run begins."""


class Prepared(NamedTuple):
    """`context` is the prompt's embedding. `image`: the image and the grey frames after it as a latent [1, 16, n, h, w]
    on the CPU, in the first process. `decoder` is there in each process that decodes."""

    memory: RolloutMemory
    context: Tensor
    image: Tensor | None
    decoder: VideoDecoder | None
    model: LingBotWorldModel


def prepare(
    plan: RolloutPlan, prompt: Callable[[], Tensor], stages: StageRecorder, processes: Processes, together: Together
) -> Prepared:
    """Makes what the run needs; `prompt()` makes its embedding. Of several `processes`, which call the model
    `together`, each has a model of its own.

    Text encoder, image and model have the GPU to themselves, one after the other, unless there is room for all of the
    model beside one of the others."""
    free = _free(plan, processes)
    memory = _with_room_for_all(plan, *free, processes, together)
    if memory is not None:
        return _all_at_once(plan, memory, prompt, stages, processes, together)
    choose_rollout_memory(plan, *free, processes.size)  # raises before the text encoder works, which leaves no more
    context = prompt()
    memory = choose_rollout_memory(plan, *_free(plan, processes), processes.size)
    if memory.resident_blocks is not None and not plan.options.shard:
        log.warning("The model does not fit into the GPU beside its work: %d of its %d blocks stay there, the others "
                    "come from the file in every forward.", memory.resident_blocks,
                    plan.checkpoint.config.num_layers)  # fmt: skip
    image, decoder = _encode(plan, memory, stages, processes, alone=True)
    progress = stages.begin("load causal model", "B", keep=True)
    return Prepared(memory, context, image, decoder, _load(plan, memory, together, progress))


def _all_at_once(
    plan: RolloutPlan,
    memory: RolloutMemory,
    prompt: Callable[[], Tensor],
    stages: StageRecorder,
    processes: Processes,
    together: Together,
) -> Prepared:
    """Image and prompt are encoded while a thread loads the model. If that fails, the thread ends within a tenth of a
    second."""
    gpu = torch.cuda.current_device() if plan.device.type == "cuda" else None
    ended, show = threading.Event(), None

    def progress(done: int, total: int) -> None:
        if ended.is_set():
            raise InterruptedError("the run has ended")
        if show is not None:  # the main thread waits for the model
            show(done, total)

    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(_load, plan, memory, together, progress, gpu)
        try:
            image, decoder = _encode(plan, memory, stages, processes, alone=False)
            context = prompt()
            show = stages.begin("load causal model", "B", keep=True)
            error = loading.exception()
            if error is not None:
                raise copy(error)  # the error itself would hold this frame, and this frame the error and the model
            model = loading.result()
        finally:
            ended.set()
    if gpu is not None:
        torch.cuda.empty_cache()  # what the text encoder had may go to keys and values
    return Prepared(memory, context, image, decoder, model)


def _free(plan: RolloutPlan, processes: Processes) -> tuple[int, int]:
    """Free bytes on the GPU and in host memory; the least of all processes, so that they decide the same."""
    return processes.least(free_memory(plan.device)), processes.least(available_host_memory())


def _with_room_for_all(
    plan: RolloutPlan, free: int, free_host: int, processes: Processes, together: Together
) -> RolloutMemory | None:
    """What is kept where, if all of the model can be on the GPU beside the text encoder or the image's encoding."""
    if plan.device.type != "cuda" or together.weights is not None:
        return None
    text = estimate_text(plan.text_encoder.config, plan.dtype).total
    encoding = estimate_vae(vae_width(plan.vae), plan.geometry)[0].total
    if plan.checkpoint.nbytes + max(text, encoding) + MARGIN + SETTLING > free:
        return None
    with suppress(InputError):  # said when the text encoder has given its memory back
        memory = choose_rollout_memory(plan, free - SETTLING, free_host, processes.size)
        if memory.resident_blocks is None:
            return memory
    return None


def _encode(
    plan: RolloutPlan, memory: RolloutMemory, stages: StageRecorder, processes: Processes, *, alone: bool
) -> tuple[Tensor | None, VideoDecoder | None]:
    """The image's latent and the decoder. The first process encodes; where frames are decoded in tiles, it does that
    without the others too. If nothing else is on the GPU, tiles are for cards that cannot hold even this."""
    if memory.vae_tiling and not processes.first:
        return None, None
    vae, image = load_vae(plan.vae, device=plan.device), None
    if processes.first:
        progress = stages.begin("VAE encode", "chunk")
        needed = estimate_vae(vae.width, plan.geometry)[0].work + MARGIN
        vae.use_tiling = plan.options.vae_tiling or (alone and needed > free_memory(plan.device))
        frames = 4 * min(plan.made_frames + plan.geometry.lat_f, SETTLED) - 3
        image = encode_first_frame(vae, plan.frame, frames, progress).cpu()
    if plan.decodes_in_half and processes.size == 1:
        vae = vae.decoding_in_half()
    vae.use_tiling = memory.vae_tiling
    return image, divided_decoder(vae, plan.cells, memory.decoding(processes), park=memory.park_decoder)


def _load(
    plan: RolloutPlan,
    memory: RolloutMemory,
    together: Together,
    progress: Progress | None = None,
    gpu: int | None = None,
) -> LingBotWorldModel:
    """The model. A thread that loads it has to be told the current GPU."""
    with nullcontext() if gpu is None else torch.cuda.device(gpu):
        return load_expert(
            plan.checkpoint, plan.device, plan.dtype, progress=progress,
            resident_blocks=memory.resident_blocks, shared_by=together.weights,
            arithmetic=plan.options.arithmetic, attention_mode=plan.options.attention,
            decoded_blocks=memory.decoded_blocks,
        )  # fmt: skip
