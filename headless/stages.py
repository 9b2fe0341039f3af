"""The stages of a run with the base model: encoding of prompts and image, sampling with both experts, decoding."""

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
"""The warning that is logged if a value in the VAE is too large for fp16. %s stands for the error's message."""


@dataclass(frozen=True)
class RunContext:
    """The context in which a run's stages are computed.

    stages: the recorder of each stage's time and memory.
    processes: the processes that make the video together.
    together: how these processes share each forward.
    """

    stages: StageRecorder
    processes: Processes = ALONE
    together: ParallelGroups = ONE_PROCESS


def texts_of(plan: AnyPlan) -> list[str]:
    """Return the texts that a run encodes: the first prompt, the negative prompt if the model is guided, and the
    prompts of later chunks."""
    first, *later = [text for _, text in plan.prompts_by_chunk]
    if not plan.guided:
        return [first, *later]
    return [first, NEGATIVE_PROMPT if plan.options.negative is None else plan.options.negative, *later]


def truncation_warnings(plan: AnyPlan) -> list[str]:
    """Return a warning for each prompt that is truncated because it has more tokens than the text encoder accepts."""
    tokenizer = load_tokenizer(plan.tokenizer) if isinstance(plan.tokenizer, Path) else plan.tokenizer
    warnings = list[str]()
    for prompt in texts_of(plan):
        tokenizer.encode(prompt, warnings.append)
    return warnings


def encode_prompts(prompts: list[str], plan: Plan, progress: Progress) -> list[Tensor]:
    """Return each prompt's embedding, float32 [1, L, D] on the plan's device, from the plan's cache if possible. New
    embeddings are added to the cache. If one of the new prompts is truncated, a warning is logged and none is added, so
    that later runs repeat the warning."""
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
    """Return the image conditioning, [1, 20, f, h, w]: a mask of 4 channels, then the 16 channels of the latent of the
    plan's first frame followed by grey frames. `vae`: a loaded VAE; None loads the plan's."""
    vae, frames = vae or load_vae(plan.vae, device=plan.device), plan.geometry.frames
    return image_conditioning(
        _with_tiles_if_short(plan, vae, lambda: encode_first_frame(vae, plan.frame, frames, progress))
    )


def decode(plan: Plan, latent: Tensor, progress: Progress, vae: VAE | None = None, exact: bool = False) -> Tensor:
    """Return the frames, uint8 [F, H, W, 3], of a latent [1, 16, f, h, w]. `vae`: a loaded VAE; None loads the plan's.

    The VAE decodes in the 16-bit dtype `plan.half`, or in fp32 if `plan.half` is None or `exact` is true. If a value is
    too large for 16 bits, all frames are decoded again in fp32.
    """
    made = vae or load_vae(plan.vae, device=plan.device)
    if plan.half is not None and not exact:
        made = made.decoding_in_half(plan.half)
    try:
        return _with_tiles_if_short(plan, made, lambda: decode_latent(made, latent, progress))
    except OverflowError as reason:
        log.warning(DECODE_AGAIN, reason)
    return decode(plan, latent, progress, vae, exact=True)


def _with_tiles_if_short(plan: Plan, vae: VAE, task: Callable[[], Tensor]) -> Tensor:
    """Return the result of `task()`, which uses `vae`. With the option `vae_tiling` the VAE works in tiles. Without it,
    the VAE first works without tiles. If the GPU then runs out of memory, `task` is called again with tiles."""
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
    """Return the noise for a latent, float32 [1, 16, f, h, w], on the generator's device. A CPU generator draws the
    same noise on every machine; the official code uses a CUDA generator."""
    shape = 1, LATENT_CHANNELS, geometry.lat_f, geometry.lat_h, geometry.lat_w
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)


def conditioning(plan: SamplingPlan, y: Tensor, prompts: Sequence[Tensor]) -> Conditioning:
    """Return the conditioning of a video, on the plan's device.

    y: the image conditioning, [1, 20, f, h, w].
    prompts: the embeddings, [1, L, D] each, of the prompt and, with guidance, of the negative prompt.

    The camera path of the plan becomes Pluecker coordinates. A path with actions becomes ray directions and W, A, S, D
    flags instead.
    """
    path, geometry, camera = plan.camera, plan.geometry, None
    size = {"frames": geometry.frames, "height": geometry.height, "width": geometry.width}
    if path is not None and path.actions is not None:
        camera = action_embedding(path.c2w, path.intrinsics, path.actions, **size)
    elif path is not None:
        camera = camera_embedding(path.c2w, path.intrinsics, **size)
    context, *negative = prompts
    return Conditioning(y, context, negative[0] if negative else None, camera).to(plan.device)


KeepExpert = Callable[[SamplingPlan, str, Callable[[], LingBotWorldModel]], LingBotWorldModel]
"""A function keep(plan, name, load) that returns an expert of the plan. `name` is "high" or "low". The function returns
the expert from a cache, or calls `load()`."""


def run_steps(
    plan: SamplingPlan,
    videos: Sequence[Video],
    stages: StageRecorder,
    residency: Residency,
    together: ParallelGroups = ONE_PROCESS,
    keep: KeepExpert = lambda _plan, _name, load: load(),
) -> list[Tensor]:
    """Return the sampled latents, [1, 16, f, h, w] each, of `videos`, which have one size and the settings of `plan`.

    residency: which experts and blocks stay on the GPU.
    together: how several processes share each forward.
    keep: a function that returns an expert from a cache.
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
    """The two experts for `sample_videos`, each loaded when it is needed. `sample_videos` calls `high` before the first
    step of the high-noise expert, and `low` before the first step of the low-noise expert. In the profile `stages`, the
    loading and the steps of each expert are separate stages."""

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
        """Load and return the high-noise expert, and prepare the low-noise expert if the run has steps for it. If
        memory is large enough for both, the low-noise expert is loaded too. Otherwise a background thread reads its
        files into the operating system's page cache."""
        model = self._load("high", keep=True)
        if self._residency.both and self._high_steps < self._steps:
            self._low_ahead = self._load("low", keep=True)
        elif self._high_steps < self._steps:
            warm(self._plan.experts.low)
        self._progress = self._stages.begin("high-noise steps", "step", keep=True)
        return model

    def low(self) -> LingBotWorldModel:
        """Return the low-noise expert. It is loaded now, unless `high` has already loaded it."""
        model, self._low_ahead = self._low_ahead or self._load("low"), None
        self._progress = self._stages.begin("low-noise steps", "step", keep=True)
        return model

    def step_done(self, _step: int, latent: Tensor, *_: object) -> None:
        """Report the progress after a step of the solver. Raises InputError if `latent`, the result of the step,
        contains NaN or infinity."""
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
    """Return a checkpoint's model on the plan's device, with the plan's dtype, number format of matrix products, and
    attention mode.

    together: how several processes share a forward, and whether they shard the weights.
    resident_blocks: the number of blocks that stay on the device; None means all.
    decoded_blocks: the number of blocks that keep their dequantized weights after their first forward.
    """
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
