"""The stages of a run with the base model: encoding, sampling with both experts, and decoding."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..camera import action_embedding, camera_embedding
from ..errors import InputError
from ..loaders import Checkpoint, load_expert, warm
from ..model.dit import LingBotWorldModel
from ..options import PerExpert, Progress
from ..pipeline.geometry import Geometry, image_conditioning
from ..pipeline.memory import Residency
from ..pipeline.two_experts import ONE_PROCESS, Conditioning, ParallelGroups, Video, sample_videos
from ..sampling import first_low_step
from ..text import NEGATIVE_PROMPT, encode, load_tokenizer
from ..vae import VAE, decode_latent, encode_first_frame, load_vae
from ..vae.decoding import NOT_FINITE
from ..vae.network import LATENT_CHANNELS
from .checks import Plan, text_dtype
from .plan import AnyPlan, SamplingPlan
from .process.processes import ALONE, Processes
from .process.profile import StageRecorder, release

log = logging.getLogger(__name__)
DECODE_AGAIN = "The frames are decoded again, in fp32: %s. With `vae_dtype` fp32 they are decoded once."
"""The warning after an overflow of the VAE in fp16. %s: the error's message."""


@dataclass(frozen=True)
class RunContext:
    """The objects that all stages of a run share.

    stages: the recorder of the stages' time and memory.
    processes: the processes that make the video.
    together: the process groups that split a forward's tokens, its guidance and the weights.
    """

    stages: StageRecorder
    processes: Processes = ALONE
    together: ParallelGroups = ONE_PROCESS


def texts_of(plan: AnyPlan) -> list[str]:
    """Return the first prompt, the negative prompt if the model is guided, and the prompts of later chunks."""
    first, *later = [text for _, text in plan.prompts_by_chunk]
    if not plan.guided:
        return [first, *later]
    return [first, NEGATIVE_PROMPT if plan.options.negative is None else plan.options.negative, *later]


def truncation_warnings(plan: AnyPlan) -> list[str]:
    """Return a warning for each prompt with more tokens than the text encoder accepts."""
    tokenizer = load_tokenizer(plan.tokenizer) if isinstance(plan.tokenizer, Path) else plan.tokenizer
    warnings = list[str]()
    for prompt in texts_of(plan):
        tokenizer.encode(prompt, warnings.append)
    return warnings


def encode_prompts(prompts: list[str], plan: Plan, progress: Progress) -> list[Tensor]:
    """Return the prompts' embeddings, float32 [1, L, D] each, on the plan's device. If a new prompt is truncated, log a
    warning and cache none of the new embeddings."""
    found = {text: embedding for text in prompts if (embedding := plan.prompt_cache.find(text)) is not None}
    unknown, cut = [text for text in dict.fromkeys(prompts) if text not in found], list[str]()

    def warn(text: str) -> None:
        log.warning(text)
        cut.append(text)

    if unknown:
        dtype = text_dtype(plan.options)
        rows = encode(unknown, plan.text_encoder, plan.tokenizer, plan.device, dtype, progress, warn)
        for text, row in zip(unknown, rows, strict=True):
            found[text] = row[None]
            if not cut:  # a cut prompt is not cached, so that every run repeats the warning
                plan.prompt_cache.keep(text, row[None])
    return [found[text].to(plan.device) for text in prompts]


def condition_on_image(plan: Plan, progress: Progress, vae: VAE | None = None) -> Tensor:
    """Return the image conditioning, [1, 20, f, h, w]: 4 mask channels, then the 16 channels of the first frame's
    latent. By default the plan's VAE is loaded."""
    vae, frames = vae or load_vae(plan.vae, device=plan.device), plan.geometry.frames
    return image_conditioning(
        _with_tiles_if_short(plan, vae, lambda: encode_first_frame(vae, plan.frame, frames, progress))
    )


def decode(plan: Plan, latent: Tensor, progress: Progress, vae: VAE | None = None, exact: bool = False) -> Tensor:
    """Decode a latent [1, 16, f, h, w] to frames, uint8 [F, H, W, 3]. By default the plan's VAE is loaded. `exact`
    selects fp32, which is also used after an overflow in fp16."""
    made = vae or load_vae(plan.vae, device=plan.device)
    if plan.half is not None and not exact:
        made = made.decoding_in_half(plan.half)
    try:
        return _with_tiles_if_short(plan, made, lambda: decode_latent(made, latent, progress))
    except OverflowError as reason:
        log.warning(DECODE_AGAIN, reason)
    return decode(plan, latent, progress, vae, exact=True)


def _with_tiles_if_short(plan: Plan, vae: VAE, task: Callable[[], Tensor]) -> Tensor:
    """Return `task()`. If the GPU's memory runs out, call it again with the VAE in tiles."""
    if plan.options.vae_tiling:
        vae.enable_tiling()
    try:
        return task()
    except torch.OutOfMemoryError:
        if vae.use_tiling:
            raise
    log.warning("The VAE did not fit into the GPU's memory: again, tile by tile.")
    release(plan.device)
    vae.enable_tiling()
    return task()


def draw_noise(geometry: Geometry, generator: torch.Generator) -> Tensor:
    """Return noise of a latent's shape, float32 [1, 16, f, h, w], on the generator's device."""
    shape = 1, LATENT_CHANNELS, geometry.lat_f, geometry.lat_h, geometry.lat_w
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)


def conditioning(plan: SamplingPlan, y: Tensor, prompts: Sequence[Tensor]) -> Conditioning:
    """Return a video's conditioning on the plan's device. `y`: the image conditioning, [1, 20, f, h, w]. `prompts`: the
    embeddings, [1, L, D] each, of the prompt and, with guidance, of the negative prompt."""
    path, geometry, camera = plan.camera, plan.geometry, None
    size = {"frames": geometry.frames, "height": geometry.height, "width": geometry.width}
    if path is not None and path.actions is not None:
        camera = action_embedding(path.c2w, path.intrinsics, path.actions, **size)
    elif path is not None:
        camera = camera_embedding(path.c2w, path.intrinsics, **size)
    context, *negative = prompts
    return Conditioning(y, context, negative[0] if negative else None, camera).to(plan.device)


KeepExpert = Callable[[SamplingPlan, str, Callable[[], LingBotWorldModel]], LingBotWorldModel]
"""A function keep(plan, name, load) that returns an expert from a cache, or loads it by `load()`. `name` is "high" or
"low", for the high-noise or low-noise expert."""


def run_steps(
    plan: SamplingPlan,
    videos: Sequence[Video],
    stages: StageRecorder,
    residency: Residency,
    together: ParallelGroups = ONE_PROCESS,
    keep: KeepExpert = lambda _plan, _name, load: load(),
) -> list[Tensor]:
    """Denoise `videos` of one size, and return their latents, [1, 16, f, h, w] each.

    residency: the weights and caches that stay on the GPU.
    together: the groups of processes that split each forward.
    keep: keep(plan, name, load) returns an expert from a cache or loads it; the default always loads.
    """
    experts = Experts(plan, stages, residency, len(videos), together, keep)
    return sample_videos(
        PerExpert(experts.high, experts.low),
        videos,
        plan.schedule,
        callback=experts.step_done,
        camera_cache_bytes=residency.camera_cache_bytes,
        together=together,
    )


class Experts:
    """The two experts for `sample_videos`, each loaded when it is needed."""

    def __init__(
        self,
        plan: SamplingPlan,
        stages: StageRecorder,
        residency: Residency,
        videos: int,
        together: ParallelGroups,
        keep: KeepExpert,
    ) -> None:
        self._plan, self._stages, self._residency, self._together = plan, stages, residency, together
        self._keep = keep
        self._low_ahead: LingBotWorldModel | None = None
        self._progress: Progress = lambda _done, _total: None
        timesteps = plan.schedule.timesteps
        self._high_steps = videos * first_low_step(timesteps, plan.options.boundary)
        self._steps, self._done = videos * len(timesteps), 0

    def high(self) -> LingBotWorldModel:
        """Return the loaded high-noise expert. If the low-noise expert follows, also load it if both fit into memory,
        else prefetch its files."""
        model = self._load("high", keep=True)
        if self._residency.both and self._high_steps < self._steps:
            self._low_ahead = self._load("low", keep=True)
        elif self._high_steps < self._steps:
            warm(self._plan.experts.low)
        self._progress = self._stages.begin("high-noise steps", "step", keep=True)
        return model

    def low(self) -> LingBotWorldModel:
        """Return the low-noise expert, which `high` may have loaded already."""
        model, self._low_ahead = self._low_ahead or self._load("low"), None
        self._progress = self._stages.begin("low-noise steps", "step", keep=True)
        return model

    def step_done(self, _step: int, latent: Tensor, *_: object) -> None:
        """Report the progress after a step of the solver. Raises InputError if `latent` has NaN or infinity."""
        if not latent.isfinite().all():
            raise InputError(NOT_FINITE)
        self._done += 1
        if self._done <= self._high_steps:
            self._progress(self._done, self._high_steps)
        else:
            self._progress(self._done - self._high_steps, self._steps - self._high_steps)

    def _load(self, name: str, keep: bool = False) -> LingBotWorldModel:
        progress = self._stages.begin(f"load {name}-noise expert", "B", keep=keep)
        plan, expert = self._plan, getattr(self._plan.experts, name)
        blocks = self._residency.resident_blocks
        return self._keep(plan, name, lambda: load_model(plan, expert, self._together, progress, blocks))


def load_model(
    plan: Plan,
    checkpoint: Checkpoint,
    together: ParallelGroups,
    progress: Progress,
    resident_blocks: int | None,
    decoded_blocks: int = 0,
) -> LingBotWorldModel:
    """Return the model on the plan's device. `resident_blocks`: the number of transformer blocks that stay on the
    device; None means all. `decoded_blocks`: the number of blocks that keep their dequantized weights."""
    return load_expert(
        checkpoint,
        plan.device,
        plan.dtype,
        progress=progress,
        resident_blocks=resident_blocks,
        arithmetic=plan.options.arithmetic,
        attention_mode=plan.options.attention,
        shared_by=together.weights,
        decoded_blocks=decoded_blocks,
    )
