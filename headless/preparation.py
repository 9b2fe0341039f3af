"""Prepare a causal run: encode prompts and image, and load decoder and model."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import InputError
from ..model.dit import LingBotWorldModel
from ..options import Progress
from ..pipeline.memory import MARGIN, estimate_decoding, estimate_encoding, estimate_text, free_memory
from ..pipeline.rollout_memory import Free, RolloutMemory, available_host_memory
from ..pipeline.rollout_planner import RolloutPlanner
from ..vae import VideoDecoder, encode_first_frame, load_vae, vae_width
from ..vae.encoding import SETTLED
from .process.decoding import stripe_decoder
from .process.processes import ALONE, Processes
from .process.profile import StageRecorder
from .process.starting import wait_for_triton
from .rollout_plan import RolloutPlan
from .stages import RunContext, load_model

log = logging.getLogger(__name__)
T = TypeVar("T")
CUDA_LIBRARY_BYTES = 500_000_000
"""The GPU memory in bytes that CUDA's libraries allocate during the first forwards."""


class SharedInputs(NamedTuple):
    """The inputs of a causal run that all its chunks share.

    contexts: text embeddings, [1, L, D] each. The order is first prompt, negative prompt if guided, later prompts.
    image: the latent, [1, 16, n, h, w], of the first frame and grey frames; None except in the first process.
    decoder: the VAE decoder; None in processes that do not decode.
    """

    memory: RolloutMemory
    contexts: list[Tensor]
    image: Tensor | None
    decoder: VideoDecoder | None
    model: LingBotWorldModel


def prepare(plan: RolloutPlan, prompts: Callable[[], list[Tensor]], run: RunContext) -> SharedInputs:
    """Return the inputs that all chunks of a run share. `prompts()` returns the prompts' embeddings."""
    planner, whole_video = plan.planner(run.processes.size), plan.spec.window.frames == 0
    free = _free(plan, run.processes)
    memory, both_fit = _plan_parallel(plan, planner, free, run)
    if memory is not None:
        return _prepare_parallel(plan, memory, prompts, run, both_fit)
    planner.choose(free, whole_video)  # raises before the text encoder runs, because that will not free any memory
    contexts = prompts()
    memory = planner.choose(_free(plan, run.processes), whole_video)
    if memory.resident_blocks is not None and not plan.options.shard:
        log.warning(
            "The model does not fit into the GPU next to its work: %d of its %d blocks stay there, the others "
            "come from the file in every forward.",
            memory.resident_blocks,
            plan.config.num_layers,
        )
    image, decoder = _encode(plan, memory, run, run.stages.begin("VAE encode", "chunk"), alone=True)
    progress = run.stages.begin("load causal model", "B", keep=True)
    return SharedInputs(memory, contexts, image, decoder, _load(plan, memory, run, progress))


def _prepare_parallel(
    plan: RolloutPlan, memory: RolloutMemory, prompts: Callable[[], list[Tensor]], run: RunContext, both_fit: bool
) -> SharedInputs:
    """Load the model, and encode image and prompts, in parallel threads. `both_fit`: whether image and prompts are
    encoded at the same time; if not, the image is first."""
    gpu = torch.cuda.current_device() if plan.device.type == "cuda" else None
    with _Background(run.stages, gpu) as background:
        loading = background.begin("load causal model", "B", partial(_load, plan, memory, run))
        encoding = background.begin("VAE encode", "chunk", partial(_encode, plan, memory, run, alone=False))
        if not both_fit:
            encoding()
        contexts = prompts()
        image, decoder = encoding()
        model = loading()
    if gpu is not None:
        torch.cuda.empty_cache()  # keys and values may use the text encoder's memory
    return SharedInputs(memory, contexts, image, decoder, model)


class _Background(AbstractContextManager["_Background"]):
    """A context that runs tasks in two background threads. Its exit cancels unfinished tasks at their next progress
    update, and waits for the threads. `gpu`: the tasks' CUDA device, or None."""

    def __init__(self, stages: StageRecorder, gpu: int | None) -> None:
        self._stages, self._gpu = stages, gpu
        self._ended, self._threads = threading.Event(), ThreadPoolExecutor(2)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._threads.shutdown()

    def begin(self, stage: str, unit: str, task: Callable[[Progress], T]) -> Callable[[], T]:
        """Start `task(progress)` in a thread. Return a function that waits for the task, displays its progress, and
        returns its result."""
        shown: list[Progress] = []

        def progress(done: int, total: int) -> None:
            if self._ended.is_set():
                raise InterruptedError("the run has ended")
            for show in shown:  # shown only while the main thread waits
                show(done, total)

        def on_gpu() -> T:
            with nullcontext() if self._gpu is None else torch.cuda.device(self._gpu):  # set per thread
                return task(progress)

        future = self._threads.submit(on_gpu)

        def result() -> T:
            if not shown:
                shown.append(self._stages.begin(stage, unit, keep=True))
            error = future.exception()
            if error is not None:
                raise copy(error)  # the error itself would hold this frame, and with it the model
            return future.result()

        return result


def _free(plan: RolloutPlan, processes: Processes) -> Free:
    """Return the minimum free memory over all processes, so that all of them make the same choices."""
    return Free(processes.minimum(free_memory(plan.device)), processes.minimum(available_host_memory()))


def _plan_parallel(
    plan: RolloutPlan, planner: RolloutPlanner, free: Free, run: RunContext
) -> tuple[RolloutMemory | None, bool]:
    """Plan the memory for loading the model in parallel with text and image encoding. Return (memory plan, whether both
    encoders fit at once), or (None, False) if parallel loading is impossible."""
    if plan.device.type != "cuda" or run.together.weights is not None:
        return None, False
    text = estimate_text(plan.text_encoder.config, plan.dtype).total
    encoding = estimate_encoding(vae_width(plan.vae), plan.geometry).total
    room = free.device - plan.checkpoint.nbytes - MARGIN - CUDA_LIBRARY_BYTES
    if max(text, encoding) > room:
        return None, False
    with suppress(InputError):  # the error is raised later, after the text encoder has freed its memory
        memory = planner.choose(free._replace(device=free.device - CUDA_LIBRARY_BYTES))
        if memory.resident_blocks is None:
            return memory, text + encoding <= room
    return None, False


def decoding_processes(memory: RolloutMemory, processes: Processes) -> Processes:
    """Return the processes that share the decoding, each with one stripe of every frame. If the VAE decodes in tiles,
    return ALONE, a single process."""
    return ALONE if memory.vae_tiling else processes


def _encode(
    plan: RolloutPlan, memory: RolloutMemory, run: RunContext, progress: Progress, *, alone: bool
) -> tuple[Tensor | None, VideoDecoder | None]:
    """Encode the first frame and build the VAE decoder. Return the frame's latent in the first process, else None. Also
    return the decoder, or None in processes that do not decode. `alone`: whether no other model uses the GPU."""
    processes = run.processes
    if memory.vae_tiling and not processes.first:
        return None, None
    vae, image = load_vae(plan.vae, device=plan.device), None
    if processes.first:
        needed = estimate_encoding(vae.width, plan.geometry).work + MARGIN
        vae.use_tiling = plan.options.vae_tiling or (alone and needed > free_memory(plan.device))
        frames = 4 * min(plan.spec.latent_frames_before + plan.geometry.lat_f, SETTLED) - 3
        wait_for_triton(plan.device)
        image = encode_first_frame(vae, plan.frame, frames, progress).cpu()
    tiling = memory.vae_tiling
    if processes.size == 1 and plan.decoding_device != plan.device:
        vae = load_vae(plan.vae, device=plan.decoding_device)
        needed = estimate_decoding(vae.width, plan.chunk_geometry, half=plan.half is not None).total + MARGIN
        tiling = plan.options.vae_tiling or needed > free_memory(plan.decoding_device)
    elif plan.options.decoder_device is not None:
        log.warning("Each of the processes decodes a part of the frames: `decoder_device` has no effect.")
    if plan.half is not None and processes.size == 1:
        vae = vae.decoding_in_half(plan.half)
    vae.use_tiling = tiling
    decoding = decoding_processes(memory, processes)
    return image, stripe_decoder(vae, plan.cells, decoding, park=memory.park_decoder)


def _load(plan: RolloutPlan, memory: RolloutMemory, run: RunContext, progress: Progress) -> LingBotWorldModel:
    blocks = memory.resident_blocks, memory.decoded_blocks
    return load_model(plan, plan.checkpoint, run.together, progress, *blocks)
