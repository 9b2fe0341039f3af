"""The engine's solvers as ComfyUI SAMPLERs that pass the official integer timesteps to the model."""

import comfy.model_management
import comfy.sample
import comfy.samplers
import comfy.utils
import latent_preview
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ...options import SolverName
from ...sampling import StepReuse, flow_sigmas, flow_timesteps, solve
from ...sampling.reuse import MOST
from ..checks.sampling import FULL_NOISE
from ..model.transformer import TIMESTEP, truncated_timesteps
from ..prompt.notice import show_note


class FlowSolver(comfy.samplers.Sampler):
    """The official UniPC or DPM++ 2M solver as a ComfyUI SAMPLER. Raises InputError for an invalid `reuse_threshold`.

    timesteps: the official integer timesteps, int64 [steps]; None derives them from the sigmas.
    reuse_threshold: the maximum estimated relative error of an extrapolated step; 0: no extrapolation.
    """

    def __init__(self, solver: SolverName, timesteps: Tensor | None = None, reuse_threshold: float = 0.0):
        self.solver, self.timesteps = solver, timesteps
        self.reuse_threshold = reuse_threshold
        self.most_reused = MOST if StepReuse(reuse_threshold).threshold else 0

    def timesteps_of(self, sigmas: Tensor) -> Tensor:
        """Return the official integer timestep of each step, int64 [steps], for sigmas [steps + 1]."""
        return schedule_timesteps(sigmas) if self.timesteps is None else self.timesteps

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        """Return the latent after all steps. Masks, previews and model options work as in ComfyUI's KSAMPLER."""
        total = len(sigmas) - 1
        reuse = StepReuse(self.reuse_threshold)
        predictor = _ReusingModel(model_wrap, reuse, total) if reuse.threshold else model_wrap
        model = comfy.samplers.KSamplerX0Inpaint(predictor, sigmas)
        model.latent_image, model.noise = latent_image, noise
        timesteps = iter(self.timesteps_of(sigmas).tolist())

        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            given = extra_args["model_options"]
            inner = {**given.get("transformer_options", {}), TIMESTEP: next(timesteps)}  # read by model and guider
            options = {**given, "transformer_options": inner}
            rows = sigma.to(x).expand(len(x))
            return model(x, rows, denoise_mask=denoise_mask, model_options=options, seed=extra_args.get("seed"))

        sampling = model_wrap.inner_model.model_sampling
        with tqdm(total=total, disable=disable_pbar) as bar:

            def report(step: int, x: Tensor, denoised: Tensor, sigma: Tensor) -> None:
                bar.update()
                if callback is not None:
                    callback(step, denoised, x, total)

            if latent_image is None or (float(sigmas[0]) >= FULL_NOISE and not latent_image.any()):
                first = noise * getattr(sampling, "noise_scale", 1.0)  # ModelNoiseScale sets the scale
            else:
                first = sampling.noise_scaling(sigmas[0], noise, latent_image)
            x = solve(self.solver, denoise, first, sigmas, report)
        if reuse.threshold:
            show_note(f"The model predicted {reuse.calls} of {total} steps.")
        return sampling.inverse_noise_scaling(sigmas[-1], x)


class _ReusingModel:
    """A model that in some steps extrapolates the velocity from earlier predictions."""

    def __init__(self, model, reuse: StepReuse, steps: int):
        self.model, self.reuse, self.steps_left = model, reuse, steps

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, x, sigma, model_options, seed=None):
        level, timestep = sigma.max().item(), model_options["transformer_options"][TIMESTEP]
        is_high = getattr(self.model, "is_high", None)  # ComfyUI's own guider has one model

        def predict() -> Tensor:
            return (x - self.model(x, sigma, model_options=model_options, seed=seed)) / level

        velocity = self.reuse.velocity(level, is_high and is_high(timestep), self.steps_left, predict)
        self.steps_left -= 1
        return x - level * velocity


def schedule_timesteps(sigmas: Tensor) -> Tensor:
    """Return int64 timesteps [steps] for sigmas [steps + 1]. If the sigmas are those of a DPM++ schedule, return that
    schedule's timesteps. Otherwise return 1000 * sigma without the fraction, as UniPC does."""
    sigmas = sigmas.detach().float().cpu()
    products = truncated_timesteps(sigmas)[:-1]
    schedule = _dpmpp_schedule(sigmas) if len(sigmas) > 3 and sigmas[-1] == 0 else None
    if schedule is not None and torch.equal(flow_sigmas(*schedule, "dpmpp")[-len(sigmas) :], sigmas):
        return flow_timesteps(*schedule, "dpmpp")[-len(products) :]
    return products


def _dpmpp_schedule(sigmas: Tensor) -> tuple[int, float] | None:
    """Return (steps, shift) of the DPM++ schedule that ends with these sigmas, or None if no positive shift fits."""
    inverse = 1 / sigmas[:-1].double()
    steps_left = torch.arange(len(inverse), 0, -1, dtype=torch.float64)
    slope = ((inverse[-1] - inverse[0]) / (1 / steps_left[-1] - 1 / steps_left[0])).item()
    level = inverse[0].item() - slope / steps_left[0].item()
    if level >= 1:
        return None
    shift = 1 / (1 - level)
    return round(slope * shift), round(shift, 4)


def sample_latent(guider, sampler, sigmas: Tensor, latent: dict, seed: int) -> dict:
    """Return the LATENT sampled from a LATENT and seeded noise, on ComfyUI's intermediate device."""
    scale = latent.get("downscale_ratio_spacial"), latent.get("downscale_ratio_temporal")
    samples = comfy.sample.fix_empty_latent_channels(guider.model_patcher, latent["samples"], *scale)
    noise = comfy.sample.prepare_noise(samples, seed, latent.get("batch_index"))
    callback = latent_preview.prepare_callback(guider.model_patcher, len(sigmas) - 1)
    quiet = not comfy.utils.PROGRESS_BAR_ENABLED
    result = guider.sample(noise, samples, sampler, sigmas, latent.get("noise_mask"), callback, quiet, seed)
    kept = {key: value for key, value in latent.items() if not key.startswith("downscale_ratio")}
    return {**kept, "samples": result.to(comfy.model_management.intermediate_device())}
