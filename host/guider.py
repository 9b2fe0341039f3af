"""One sampling run over both experts: two of ComfyUI's own CFGGuiders, one inside the other.

The outer one is the high-noise expert's. When the first timestep below the boundary arrives, the low-noise expert's
weights are loaded and its guider predicts from then on, with its own CFG, LoRAs, wrappers and caches. The solver
runs through without a break, so its history crosses the switch."""

from collections.abc import Callable

import comfy.model_patcher
import comfy.patcher_extension
import comfy.sampler_helpers
import comfy.samplers
from comfy.patcher_extension import WrappersMP
from torch import Tensor

from ..errors import InputError
from ..sampling import is_high_noise
from .camera_cache import MODE, MODES, give_back
from .model import TIMESTEP, truncated_timesteps

WARM_STEPS = 2
"""The low-noise expert's file is read ahead this many steps before its first one."""

_INJECTED = ("sampler_post_cfg_function", "disable_cfg1_optimization")


class ExpertGuider(comfy.samplers.CFGGuider):
    """Guider of a high-noise expert that hands over to a low-noise one below the boundary (0..1).

    Raises InputError for one model given twice and for a boundary outside 0..1."""

    def __init__(self, high, low, boundary: float):
        if high.is_clone(low):
            raise InputError(
                "the high-noise and the low-noise expert are the same model; connect the two outputs of "
                "Load LingBot-World Experts (each through its own LoRA loaders, if any)"
            )
        if not 0 <= boundary <= 1:
            raise InputError(f"boundary is {boundary}, expected 0 to 1 (0.947 is the official one)")
        super().__init__(high)
        self.low, self.boundary = comfy.samplers.CFGGuider(low), boundary

    def set_conds(self, positive, negative):
        """Both experts get both prompts."""
        super().set_conds(positive, negative)
        self.low.set_conds(positive, negative)

    def set_cfg(self, high: float, low: float | None = None):
        """Guidance scale of each expert; one number serves both."""
        self.cfg, self.low.cfg = high, high if low is None else low

    def set_camera_cache(self, mode: str):
        """What both experts keep of the camera between steps: one of `camera_cache.MODES`. Raises InputError."""
        if mode not in MODES:
            raise InputError(f"camera_cache is {mode!r}, expected one of {', '.join(MODES)}")
        for guider in (self, self.low):
            guider.model_options = comfy.model_patcher.create_model_options_clone(guider.model_options)
            guider.model_options.setdefault("transformer_options", {})[MODE] = mode

    def get_models(self) -> list:
        """Both experts' patchers."""
        return [self.model_patcher, self.low.model_patcher]

    def sample(
        self, noise, latent_image, sampler, sigmas, denoise_mask=None, callback=None, disable_pbar=False, seed=None
    ):
        """As CFGGuider.sample. An expert that has no step in `sigmas` is not loaded."""
        arguments = (sigmas, denoise_mask, callback, disable_pbar, seed)
        low_from = self.first_low(sampler, sigmas)
        try:
            if low_from == 0:
                return self.low.sample(noise, latent_image, sampler, *arguments)
            if low_from < len(sigmas):
                warm_from = sigmas[max(0, low_from - WARM_STEPS)].item()
                sampler = _Switching(self, sampler, (noise, latent_image, denoise_mask), warm_from)
            return super().sample(noise, latent_image, sampler, *arguments)
        finally:
            _let_go(self)
            _let_go(self.low)

    def first_low(self, sampler, sigmas: Tensor) -> int:
        """Index of the first sigma at which the low-noise expert predicts; their number when it never does."""
        timesteps = truncated_timesteps(sigmas).tolist()
        if hasattr(sampler, "timesteps_of"):
            timesteps[:-1] = sampler.timesteps_of(sigmas).tolist()
        return next((i for i, t in enumerate(timesteps) if not is_high_noise(t, self.boundary)), len(timesteps))


class _Switching(comfy.samplers.Sampler):
    """Runs a sampler on the high guider's prepared model, with the low guider's prepared inside it."""

    def __init__(self, guider: ExpertGuider, sampler, raw_inputs, warm_from: float):
        self.guider, self.sampler, self.raw_inputs, self.warm_from = guider, sampler, raw_inputs, warm_from

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        low, result = self.guider.low, None
        switch = _Switch(self.guider, model_wrap, extra_args["model_options"], self.warm_from)

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
            WrappersMP.PREPARE_SAMPLING, switch.hold_back, low.model_options, is_model_options=True
        )
        try:
            low.sample(raw_noise, raw_latent, _Handover(run), sigmas, raw_mask, None, True, extra_args.get("seed"))
        finally:
            low.model_options = options
            switch.let_go()
        return result


class _Handover(comfy.samplers.Sampler):
    """Hands its guider's prepared model over and samples nothing itself."""

    def __init__(self, run: Callable):
        self.run = run

    def sample(self, model_wrap, sigmas, extra_args, callback, noise, *args, **kwargs):
        self.run(model_wrap, extra_args)
        return noise


class _Switch:
    """What a sampler takes for the model: the expert that the timestep asks for, its weights in place."""

    def __init__(self, guider: ExpertGuider, high_wrap, options: dict, warm_from: float):
        self.guider, self.high_wrap = guider, high_wrap
        self.low_wrap = self.low_options = self.load_low = None
        self.in_place = "high"
        self.before = _snapshot(options)
        self.warm_from = warm_from

    def __getattr__(self, name):
        return getattr(self.high_wrap, name)

    def hold_back(self, executor, model, noise_shape, conds, *args, **kwargs):
        """PREPARE_SAMPLING of the low expert: its conditioning is prepared now, its weights are loaded when needed."""

        def load():
            self.guider.low.loaded_models = executor(model, noise_shape, conds, *args, **kwargs)[2]

        self.load_low = load
        self.load_high = lambda: comfy.sampler_helpers.prepare_sampling(
            self.guider.model_patcher, noise_shape, self.guider.conds, self.guider.model_options
        )
        return model.model, conds, []

    def let_go(self) -> None:
        """Break the cycles through the loading functions, else the conditioning stays on the GPU until a collection."""
        self.high_wrap = self.low_wrap = self.low_options = self.load_high = self.load_low = None

    def __call__(self, x, sigma, model_options=None, seed=None):
        options = model_options or {}
        highest = sigma.max()
        told = options.get("transformer_options", {}).get(TIMESTEP)
        timestep = truncated_timesteps(highest).item() if told is None else told
        if is_high_noise(timestep, self.guider.boundary):
            self._put_in_place("high", self.load_high)
            self._warm_low(highest.item())
            return self.high_wrap(x, sigma, model_options=options, seed=seed)
        self._put_in_place("low", self.load_low)
        return self.low_wrap(x, sigma, model_options=self._for_low(options), seed=seed)

    def _put_in_place(self, side: str, load: Callable) -> None:
        if self.in_place != side:
            for patcher in self.guider.get_models():  # the other expert's weights come first
                if hasattr(patcher.model, "camera_cache"):
                    give_back(patcher.model.camera_cache)
            load()
            self.in_place = side

    def _warm_low(self, sigma: float) -> None:
        if sigma > self.warm_from:
            return
        self.warm_from = -1.0
        checkpoint = getattr(self.guider.low.model_patcher.model, "checkpoint", None)
        if checkpoint is not None:
            from ..loaders import warm

            warm(checkpoint)

    def _for_low(self, options: dict) -> dict:
        """The low expert's options, with what the sampler added to the high one's on the way (CFG++, the timestep)."""
        top, inner = _snapshot(options)
        top_before, inner_before = self.before
        added = {k: v for k, v in top.items() if k in _INJECTED and v is not top_before.get(k)}
        told = {k: v for k, v in inner.items() if k == TIMESTEP or k not in inner_before}
        low = self.low_options
        return {**low, **added, "transformer_options": {**low.get("transformer_options", {}), **told}}


def _snapshot(options: dict) -> tuple[dict, dict]:
    return dict(options), dict(options.get("transformer_options", {}))


def _let_go(guider: comfy.samplers.CFGGuider) -> None:
    """Forget what a run that ended early left behind: prepared conditioning and models."""
    for name in ("conds", "inner_model", "loaded_models"):
        guider.__dict__.pop(name, None)
