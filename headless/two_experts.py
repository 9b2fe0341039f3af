"""From conditioning to latent with the base model: the high-noise expert's steps, then the low-noise expert's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from ..errors import InputError
from ..model.cache import CameraCache
from ..model.dit import LingBotWorldModel
from ..model.parallel import SequenceParallel, gather_rows
from ..options import BOUNDARY, GUIDE_SCALE, PerExpert, SolverName
from ..sampling import SOLVERS, flow_sigmas, flow_timesteps, guide, guide_scales, is_high_noise
from ..sampling.solvers import Callback

Expert = LingBotWorldModel | Callable[[], LingBotWorldModel]


@torch.no_grad()
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
    sequence_parallel: SequenceParallel | None = None,
    guidance_group: distributed.ProcessGroup | None = None,
) -> Tensor:
    """Denoises `noise` float32 [1, 16, f, h, w], on whose device everything runs; returns the latent, same shape.

    `high` and `low` are experts, or functions without arguments that return one. Such a function is called before its
    expert's first step, when nothing refers to the other expert any more. `y` [1, 20, f, h, w] is mask and image
    latent, `context` and `context_null` [1, L, D] are prompt and negative prompt (L may differ), `camera` is
    [1, 384, f, h, w]. `guide_scale` is (low, high) or one number for both; where it is 1 the negative prompt is not
    used, and it may be None if both are 1. `callback(step, x, denoised, sigma)` is called after each step's prediction.
    `camera_cache_bytes` limits what is cached of the camera layers' results between an expert's steps.

    Several processes may call this with the same arguments and get the same latent: those of `sequence_parallel` share
    the tokens of each forward; of the two in a `guidance_group` one computes the prompt, the other the negative prompt.
    """
    device = noise.device
    conditioning = Conditioning(
        y.to(device),
        context.to(device),
        None if context_null is None else context_null.to(device),
        None if camera is None else camera.to(device),
    )
    denoise = _Denoiser(
        experts=PerExpert(high, low),
        scales=guide_scales(guide_scale),
        conditioning=conditioning,
        timesteps=flow_timesteps(steps, shift, solver).tolist(),
        boundary=boundary,
        cache_bytes=camera_cache_bytes,
        together=Together(sequence_parallel, guidance_group),
    )
    return SOLVERS[solver](denoise, noise.float(), flow_sigmas(steps, shift, solver), callback)


@dataclass(frozen=True)
class Together:
    """The processes that share the tokens, and those that share the prompts; None where this process has them all."""

    sequence: SequenceParallel | None = None
    guidance: distributed.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """How many processes share the tokens."""
        return 1 if self.sequence is None else self.sequence.size


ALONE = Together()


@dataclass(frozen=True)
class Conditioning:
    """The model's inputs that are the same in every step."""

    y: Tensor
    context: Tensor
    context_null: Tensor | None
    camera: Tensor | None


def predict(
    model: LingBotWorldModel,
    x: Tensor,
    timestep: int,
    conditioning: Conditioning,
    scale: float,
    camera_cache: CameraCache | None = None,
    together: Together = ALONE,
) -> Tensor:
    """Guided velocity float32 [1, 16, f, h, w]; prompt and negative prompt go through one forward, both with camera, or
    through a forward each in two processes."""
    prompts = [conditioning.context]
    if scale != 1:
        if conditioning.context_null is None:
            raise InputError(f"guidance with scale {scale} needs a negative prompt: give `context_null`, or scale 1")
        prompts.append(conditioning.context_null)
    context, pair = _padded(prompts), together.guidance if len(prompts) > 1 else None
    if pair is not None:
        context = context[pair.rank() :][:1]
    rows = len(context)
    options: dict[str, Any] = {"camera_cache": camera_cache}
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


def _padded(prompts: list[Tensor]) -> Tensor:
    """Prompts [1, L, D] as rows of the same length. The shorter one is padded with zeros, as the model does it."""
    longest = max(prompt.shape[1] for prompt in prompts)
    return torch.cat([torch.nn.functional.pad(prompt, (0, 0, 0, longest - prompt.shape[1])) for prompt in prompts])


class _Denoiser:
    """`denoise(x, sigma) -> x0` for the solvers, called once a step, in order. It refers to one expert at a time."""

    def __init__(
        self,
        experts: PerExpert[Expert],
        scales: PerExpert[float],
        conditioning: Conditioning,
        timesteps: list[int],
        boundary: float,
        cache_bytes: int,
        together: Together = ALONE,
    ) -> None:
        self.experts, self.scales, self.conditioning = experts, scales, conditioning
        self.timesteps, self.boundary, self.cache_bytes = iter(timesteps), boundary, cache_bytes
        self.together = together
        self.model: LingBotWorldModel | None = None
        self.model_is_high: bool | None = None
        self.camera_cache: CameraCache | None = None

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        timestep = next(self.timesteps)
        high = is_high_noise(timestep, self.boundary)
        if self.model is None or high is not self.model_is_high:
            self.model = self.camera_cache = None
            gc.collect()
            self.model, self.model_is_high = self._expert(high), high
            self.camera_cache = CameraCache(self.cache_bytes) if self.cache_bytes else None
        scale = self.scales.of(high)
        velocity = predict(self.model, x, timestep, self.conditioning, scale, self.camera_cache, self.together)
        return x - sigma * velocity

    def _expert(self, high: bool) -> LingBotWorldModel:
        expert = self.experts.of(high)
        model = expert if isinstance(expert, LingBotWorldModel) else expert()
        if model.config.causal:
            raise InputError("this is a causal model (LingBot-World Fast or 2.0), which makes a video chunk by chunk: "
                             "use rollout; sampling over two experts takes those of the base model")  # fmt: skip
        return model
