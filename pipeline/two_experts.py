"""Sampling with the base model: the high-noise expert computes the first steps, the low-noise expert the rest."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from ..errors import InputError
from ..model.cache import CameraCache
from ..model.dit import LingBotWorldModel
from ..model.forward import ForwardOptions
from ..model.parallel import SequenceParallel, gather_rows
from ..options import BOUNDARY, GUIDE_SCALE, PerExpert, SolverName
from ..sampling import SOLVERS, StepReuse, flow_sigmas, flow_timesteps, guide, guide_scales, is_high_noise
from ..sampling.solvers import Callback, Steps
from ..typed import checked

Expert = LingBotWorldModel | Callable[[], LingBotWorldModel]


@torch.no_grad()
@checked
def sample(
    high: Expert,
    low: Expert,
    noise: Tensor,
    y: Tensor,
    context: Tensor,
    context_null: Tensor | None,
    camera: Tensor | None = None,
    *,
    steps: int,
    shift: float,
    boundary: float = BOUNDARY,
    guide_scale: float | tuple[float, float] = GUIDE_SCALE,
    solver: SolverName = "unipc",
    callback: Callback | None = None,
    camera_cache_bytes: int = 0,
    step_reuse: StepReuse | None = None,
    sequence_parallel: SequenceParallel | None = None,
    guidance_group: distributed.ProcessGroup | None = None,
) -> Tensor:
    """Denoise `noise`, float32 [1, 16, f, h, w], and return the latent in this shape. Raises InputError for a causal
    model.

    high, low: the experts, or functions that load them.
    y: [1, 20, f, h, w], the mask and the image latent.
    context: [1, L, D], the prompt embedding.
    context_null: [1, L, D], the negative prompt's embedding; None only if all guidance scales are 1.
    camera: [1, 384, f, h, w], from `camera_embedding`; 448 channels for action models.
    shift: the shift of the noise schedule towards high noise levels.
    boundary: the lowest timestep of `high`, as a fraction of 1,000.
    guide_scale: one number for both experts, or the pair (scale of `low`, scale of `high`).
    camera_cache_bytes: the maximum size of the camera cache; 0: no cache.
    step_reuse: the rule that skips model calls; a new object for each call of `sample`.
    guidance_group: two processes, one for each prompt.
    """
    conditioning = Conditioning(y, context, context_null, camera).to(noise.device)
    (latent,) = sample_videos(
        PerExpert(high, low),
        [Video(noise, lambda: conditioning, step_reuse or StepReuse())],
        TwoExpertSchedule(steps, shift, boundary, guide_scale, solver),
        callback=callback,
        camera_cache_bytes=camera_cache_bytes,
        together=ParallelGroups(sequence_parallel, guidance_group),
    )
    return latent


@dataclass(frozen=True)
class ParallelGroups:
    """The groups of processes that generate a video together. A group is None if its task is not split.

    sequence: the processes that split the tokens of each forward.
    guidance: two processes, one for the prompt and one for the negative prompt.
    weights: the processes among which the weights are sharded.
    """

    sequence: SequenceParallel | None = None
    guidance: distributed.ProcessGroup | None = None
    weights: distributed.ProcessGroup | None = None

    @property
    def sequence_size(self) -> int:
        """The number of processes that split the tokens of each forward."""
        return 1 if self.sequence is None else self.sequence.size


ONE_PROCESS = ParallelGroups()


@dataclass(frozen=True)
class Conditioning:
    """The model's inputs that are the same in every step: `y`, the prompts and the camera."""

    y: Tensor
    context: Tensor
    context_null: Tensor | None
    camera: Tensor | None

    def to(self, device: torch.device) -> "Conditioning":
        null, camera = (None if each is None else each.to(device) for each in (self.context_null, self.camera))
        return Conditioning(self.y.to(device), self.context.to(device), null, camera)


@dataclass(frozen=True)
class Video:
    """The inputs of one video.

    noise: float32 [1, 16, f, h, w].
    conditioning: a function without arguments that returns the prompts, images and camera; called once for each expert.
    """

    noise: Tensor
    conditioning: Callable[[], Conditioning]
    reuse: StepReuse = field(default_factory=StepReuse)


@dataclass(frozen=True)
class TwoExpertSchedule:
    """The denoising steps of a video, the expert of each step, and the guidance. The fields are arguments of
    `sample`."""

    steps: int
    shift: float
    boundary: float
    guide_scale: float | tuple[float, float]
    solver: SolverName

    @property
    def timesteps(self) -> Tensor:
        """The timesteps, int64 [steps]."""
        return flow_timesteps(self.steps, self.shift, self.solver)


@torch.no_grad()
def sample_videos(
    experts: PerExpert[Expert],
    videos: Sequence[Video],
    schedule: TwoExpertSchedule,
    *,
    callback: Callback | None = None,
    camera_cache_bytes: int = 0,
    together: ParallelGroups = ONE_PROCESS,
) -> list[Tensor]:
    """Return the latents [1, 16, f, h, w] of several videos. Each expert is loaded once. `together`: the process
    groups. For other arguments see `sample`."""
    timesteps, solver = schedule.timesteps.tolist(), SOLVERS[schedule.solver]
    sigmas = flow_sigmas(schedule.steps, schedule.shift, schedule.solver)
    levels = [is_high_noise(timestep, schedule.boundary) for timestep in timesteps]
    runs = [_Run(video, solver(video.noise.float(), sigmas), timesteps, callback) for video in videos]
    scales = guide_scales(schedule.guide_scale)
    for high in (True, False):
        if not (runs and high in levels):
            continue
        gc.collect()
        expert = experts.of(high)
        model = expert if isinstance(expert, LingBotWorldModel) else expert()
        if model.config.causal:
            raise InputError(
                "this is a causal model (LingBot-World Fast or 2.0), which makes a video chunk by chunk: "
                "use rollout; sampling over two experts takes those of the base model"
            )
        for run in runs:
            cache = CameraCache(camera_cache_bytes) if camera_cache_bytes else None
            run.advance(
                high,
                levels.count(high),
                partial(predict, model, scale=scales.of(high), camera_cache=cache, together=together),
            )
        del model
    return [run.result() for run in runs]


class _Run:
    """The denoising of one video, which pauses between the experts."""

    def __init__(self, video: Video, steps: Steps, timesteps: list[int], callback: Callback | None) -> None:
        self._video, self._steps, self._timesteps, self._callback = video, steps, timesteps, callback
        self._pending: tuple[int, Tensor, Tensor] | None = None
        self._latent: Tensor | None = None
        self._resume(lambda: next(steps))

    def advance(self, high: bool, count: int, velocity: Callable[[Tensor, int, Conditioning], Tensor]) -> None:
        conditioning = self._video.conditioning()
        steps_left = len(self._timesteps)
        for _ in range(count):
            assert self._pending is not None
            step, x, sigma = self._pending
            predict_now = partial(velocity, x, self._timesteps[step], conditioning)
            denoised = x - sigma * self._video.reuse.velocity(float(sigma), high, steps_left - step, predict_now)
            if self._callback is not None:
                self._callback(step, x, denoised, sigma)
            self._resume(partial(self._steps.send, denoised))

    def result(self) -> Tensor:
        assert self._latent is not None
        return self._latent

    def _resume(self, run: Callable[[], tuple[int, Tensor, Tensor]]) -> None:
        try:
            self._pending = run()
        except StopIteration as end:
            self._pending, self._latent = None, end.value


def predict(
    model: LingBotWorldModel,
    x: Tensor,
    timestep: int,
    conditioning: Conditioning,
    scale: float,
    camera_cache: CameraCache | None = None,
    together: ParallelGroups = ONE_PROCESS,
) -> Tensor:
    """Return the velocity, float32 [1, 16, f, h, w], for the noisy latent `x`.

    scale: the scale of classifier-free guidance; 1: no guidance.
    together: the processes that split the tokens or the prompts.

    Raises InputError if `scale` is not 1 and `conditioning` has no negative prompt.
    """
    prompts = [conditioning.context]
    if scale != 1:
        if conditioning.context_null is None:
            raise InputError(f"guidance with scale {scale} needs a negative prompt: give `context_null`, or scale 1")
        prompts.append(conditioning.context_null)
    longest = max(prompt.shape[1] for prompt in prompts)  # the shorter one is padded with zeros, as the model pads
    context = torch.cat([F.pad(prompt, (0, 0, 0, longest - prompt.shape[1])) for prompt in prompts])
    pair = together.guidance if len(prompts) > 1 else None
    if pair is not None:
        context = context[pair.rank() :][:1]
    rows = len(context)
    options: ForwardOptions = {"camera_cache": camera_cache}
    if together.sequence is not None:
        options["sequence_parallel"] = together.sequence
    velocity = model(
        torch.cat([x, conditioning.y.to(x)], dim=1).expand(rows, -1, -1, -1, -1),
        torch.full((rows,), timestep, device=x.device),
        context,
        conditioning.camera,
        options,
    ).float()
    if pair is not None:
        velocity = gather_rows(velocity, pair)
    return velocity if scale == 1 else guide(velocity[:1], velocity[1:], scale)
