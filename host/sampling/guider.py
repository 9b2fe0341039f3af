"""A guider that runs both experts in one sampling run, so the solver's history survives the change of experts."""

from collections.abc import Callable
from typing import Any

import comfy.model_patcher
import comfy.patcher_extension
import comfy.sampler_helpers
import comfy.samplers
import torch
from comfy.patcher_extension import WrappersMP
from torch import Tensor

from ...errors import InputError
from ...options import BOUNDARY, CAMERA_CACHE_MODES, CameraCacheMode, PerExpert
from ...sampling import first_low_step, is_high_noise
from ..checks.unused import unused_expert_warning
from ..model.base_model import CAMERA_CACHE_MODE, ONLY_ROLLOUT, Role, is_causal
from ..model.patcher import copies_on_other_devices
from ..model.transformer import TIMESTEP, truncated_timesteps
from ..prompt.notice import show_warning

READ_AHEAD_STEPS = 2
"""The number of steps before the low-noise expert's first step at which its file is prefetched into the page cache."""
_SET_BY_SAMPLERS = ("sampler_post_cfg_function", "disable_cfg1_optimization")
"""The model options that ComfyUI's CFG++ samplers set during a run. They apply to both experts."""


class ExpertGuider(comfy.samplers.CFGGuider):
    """A guider of both experts. Raises InputError for MODELs that are the same, swapped or causal.

    models: the MODELs of the high-noise and the low-noise expert.
    boundary: the lowest noise level, 0 to 1, at which the high-noise expert predicts.
    """

    def __init__(self, models: PerExpert, boundary: float):
        if any(map(is_causal, models)):
            raise InputError(ONLY_ROLLOUT)
        if models.high.is_clone(models.low):
            raise InputError(
                "the high-noise and the low-noise expert are the same model; connect the two outputs of "
                "Load LingBot-World Experts (each through its own LoRA loaders, if any)"
            )
        roles = PerExpert(*(getattr(model.model, "role", None) for model in models))
        if roles.high == "low" or roles.low == "high":
            raise InputError(
                "the experts are swapped: connect the output 'high noise' of Load LingBot-World Experts to high_noise, "
                "and 'low noise' to low_noise"
            )
        if not 0 <= boundary <= 1:
            raise InputError(f"boundary is {boundary}, expected 0 to 1 ({BOUNDARY} is the official one)")
        super().__init__(models.high)
        self.low, self.boundary = comfy.samplers.CFGGuider(models.low), boundary
        self.low.switches = True  # the guider chooses each step's expert, not the wiring

    def set_conds(self, positive, negative):
        super().set_conds(positive, negative)
        self.low.set_conds(positive, negative)

    def set_cfg(self, cfg: float | PerExpert[float]):
        """Set the guidance scales. A number is the scale of both experts."""
        self.cfg, self.low.cfg = cfg if isinstance(cfg, PerExpert) else (cfg, cfg)

    def set_camera_cache(self, mode: CameraCacheMode):
        """Set the camera cache mode of both experts. Raise InputError for an unknown mode."""
        if mode not in CAMERA_CACHE_MODES:
            raise InputError(f"camera_cache is {mode!r}, expected one of {', '.join(CAMERA_CACHE_MODES)}")
        for guider in (self, self.low):
            guider.model_options = comfy.model_patcher.create_model_options_clone(guider.model_options)
            guider.model_options.setdefault("transformer_options", {})[CAMERA_CACHE_MODE] = mode

    def patched_shifts(self) -> list[float]:
        """Return the distinct shifts that nodes such as ModelSamplingSD3 have set, except the model's default."""
        patched = [model.object_patches.get("model_sampling") for model in self.get_models()]
        shifts = [getattr(sampling, "shift", None) for sampling in patched]
        own = self.model_patcher.model.model_sampling.shift
        return [shift for shift in dict.fromkeys(shifts) if shift not in (None, own)]

    def is_high(self, timestep: float) -> bool:
        """Whether the high-noise expert predicts at this timestep (0 to 1000)."""
        return is_high_noise(timestep, self.boundary)

    def get_models(self) -> list:
        return [self.model_patcher, self.low.model_patcher]

    def sample(
        self, noise, latent_image, sampler, sigmas, denoise_mask=None, callback=None, disable_pbar=False, seed=None
    ):
        """Return the sampled latent. An expert without a step is not loaded. Raise InputError for empty sigmas."""
        if len(sigmas) == 0:
            raise InputError("there are no sigmas, so the run has no step: make them with LingBot-World Sigmas")
        low_from, sigmas = self.first_low(sampler, sigmas), sigmas.clone()  # ComfyUI's uni_pc writes into them
        show_warning(unused_expert_warning(*self.get_models(), (self.cfg, self.low.cfg), low_from, len(sigmas) - 1))
        try:
            if low_from == 0:
                return self.low.sample(noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed)
            if low_from < len(sigmas):
                ahead = READ_AHEAD_STEPS + getattr(sampler, "most_reused", 0)
                read_ahead_at = sigmas[max(0, low_from - ahead)].item()
                sampler = _SwitchingSampler(self, sampler, (noise, latent_image, denoise_mask), read_ahead_at)
            return super().sample(noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed)
        finally:
            _clear_run(self)
            _clear_run(self.low)

    def first_low(self, sampler, sigmas: Tensor) -> int:
        """Return the index of the first sigma at which the low-noise expert predicts, else `len(sigmas)`."""
        timesteps = truncated_timesteps(sigmas)
        if hasattr(sampler, "timesteps_of"):
            timesteps = torch.cat([sampler.timesteps_of(sigmas), timesteps[-1:].cpu()])
        return first_low_step(timesteps, self.boundary)


class _SwitchingSampler(comfy.samplers.Sampler):
    """A sampler for the high-noise expert's run. It starts a nested run of the low-noise expert, in which `sampler`
    makes all steps. A `_Switch` selects each step's expert."""

    def __init__(self, guider: ExpertGuider, sampler, raw_inputs: tuple, read_ahead_at: float):
        self.guider, self.sampler, self.read_ahead_at = guider, sampler, read_ahead_at
        self.raw_inputs = raw_inputs  # noise, latent and mask as the guider got them; ComfyUI prepares them again

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        low, result = self.guider.low, None
        switch = _Switch(self.guider, model_wrap, extra_args["model_options"], self.read_ahead_at)

        def run(low_wrap, low_args):
            nonlocal result
            switch.low_wrap, switch.low_options = low_wrap, low_args["model_options"]
            result = self.sampler.sample(
                switch, sigmas, extra_args, callback, noise, latent_image, denoise_mask, disable_pbar
            )

        raw_noise, raw_latent, raw_mask = self.raw_inputs
        options = low.model_options
        low.model_options = comfy.model_patcher.create_model_options_clone(options)
        comfy.patcher_extension.add_wrapper(
            WrappersMP.PREPARE_SAMPLING, switch.postpone_loading, low.model_options, is_model_options=True
        )
        try:
            low.sample(
                raw_noise, raw_latent, CallbackSampler(run), sigmas, raw_mask, None, True, extra_args.get("seed")
            )
        finally:
            low.model_options = options
            switch.drop_references()
        return result


class CallbackSampler(comfy.samplers.Sampler):
    """A sampler that calls `run(model, extra_args)` with ComfyUI's prepared model, and returns the noise unchanged."""

    may_run_causal = True
    """A flag that permits causal models. Samplers without the flag are refused for causal models."""

    def __init__(self, run: Callable):
        self.run = run

    def sample(self, model_wrap, sigmas, extra_args, callback, noise, *args, **kwargs):
        self.run(model_wrap, extra_args)
        return noise


class _Switch:
    """The solver's model: each call runs the expert that predicts at the timestep."""

    def __init__(self, guider: ExpertGuider, high_wrap, high_options: dict, read_ahead_at: float):
        self.guider, self.high_wrap, self.read_ahead_at = guider, high_wrap, read_ahead_at
        self.low_wrap: Any = None
        self.low_options: dict = {}
        self.load_high: Any = None
        self.load_low: Any = None
        self.loaded: Role = "high"
        self.high_options_at_start = _copy_options(high_options)

    def __getattr__(self, name):
        return getattr(self.high_wrap, name)

    def postpone_loading(self, executor, model, noise_shape, conds, *args, **kwargs):
        """Return (model, conditioning, MultiGPU copies) of the low-noise expert without loading its weights. Later,
        `self.load_low()` loads them. ComfyUI calls this method as a PREPARE_SAMPLING wrapper."""

        def load_low():
            self.guider.low.loaded_models = executor(model, noise_shape, conds, *args, **kwargs)[2]

        self.load_low = load_low
        self.load_high = lambda: comfy.sampler_helpers.prepare_sampling(
            self.guider.model_patcher, noise_shape, self.guider.conds, self.guider.model_options
        )
        model.match_multigpu_clones()
        return model.model, conds, copies_on_other_devices(model)

    def drop_references(self) -> None:
        """Clear the reference cycles that would keep the conditioning on the GPU until the garbage collector runs."""
        self.high_wrap = self.low_wrap = self.load_high = self.load_low = None
        self.low_options = {}

    def __call__(self, x, sigma, model_options=None, seed=None):
        options = model_options or {}
        timestep = options.get("transformer_options", {}).get(TIMESTEP)
        if timestep is None:
            timestep = truncated_timesteps(sigma.max()).item()
        if self.guider.is_high(timestep):
            self._ensure_loaded("high", self.load_high)
            self._read_low_ahead(sigma.max().item())
            return self.high_wrap(x, sigma, model_options=options, seed=seed)
        self._ensure_loaded("low", self.load_low)
        return self.low_wrap(x, sigma, model_options=self._options_for_low(options), seed=seed)

    def _ensure_loaded(self, role: Role, load: Callable) -> None:
        if self.loaded == role:
            return
        for patcher in self.guider.get_models():
            for copy in (patcher, *copies_on_other_devices(patcher)):
                if hasattr(copy.model, "free_caches"):  # frees memory for the other expert's weights
                    copy.model.free_caches()
        load()
        self.loaded = role

    def _read_low_ahead(self, sigma: float) -> None:
        if sigma > self.read_ahead_at:
            return
        self.read_ahead_at = -1.0
        checkpoint = getattr(self.guider.low.model_patcher.model, "checkpoint", None)
        if checkpoint is not None:
            from ...loaders import warm

            warm(checkpoint)

    def _options_for_low(self, high_options: dict) -> dict:
        """Return the low-noise expert's model options with the values that the sampler added to `high_options`."""
        options, inner = _copy_options(high_options)
        options_at_start, inner_at_start = self.high_options_at_start
        added = {k: v for k, v in options.items() if k in _SET_BY_SAMPLERS and v is not options_at_start.get(k)}
        added_inner = {k: v for k, v in inner.items() if k == TIMESTEP or k not in inner_at_start}
        low = self.low_options
        return {**low, **added, "transformer_options": {**low.get("transformer_options", {}), **added_inner}}


def _copy_options(options: dict) -> tuple[dict, dict]:
    return dict(options), dict(options.get("transformer_options", {}))


def _clear_run(guider: comfy.samplers.CFGGuider) -> None:
    """Delete the conditioning and models that ComfyUI leaves in a guider after an error."""
    for name in ("conds", "inner_model", "loaded_models"):
        guider.__dict__.pop(name, None)
