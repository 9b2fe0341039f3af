"""The nodes that sample a video with the high-noise and the low-noise expert: guider, solver, sigmas and sampler."""

from comfy_api.latest import io
from torch import Tensor

from ...errors import InputError
from ...host.prompt.notice import show_warning
from ...options import (
    BOUNDARY,
    CAMERA_CACHE_MODES,
    GUIDE_SCALE,
    SHIFT,
    SOLVER_NAMES,
    STEPS,
    CameraCacheMode,
    PerExpert,
    SolverName,
)
from ..inputs import choice_input, float_input, int_input, seed_input
from ..validation import validate

CATEGORY = "LingBot-World/sampling"
EXPERTS = ("high", "low")


def _models_and_prompts() -> list[io.Input]:
    models = [
        io.Model.Input(
            f"{expert}_noise",
            display_name=f"{expert} noise",
            tooltip=f"The {expert}-noise expert of Load LingBot-World Experts, with its LoRAs if you use any.",
        )
        for expert in EXPERTS
    ]
    prompts = [
        io.Conditioning.Input(name, tooltip=f"The {what}, with the start image and the camera. Both experts get it.")
        for name, what in (("positive", "prompt"), ("negative", "negative prompt"))
    ]
    return [*models, *prompts]


def _guidance() -> list[io.Input]:
    scales = [
        float_input(
            f"cfg_{expert}",
            (0.0, GUIDE_SCALE, 100.0),
            f"Guidance of the {expert}-noise expert: how far to go from the negative prompt to the prompt. 1 leaves "
            "the negative prompt out and halves the time: use 1 with step-distilled LoRAs.",
            step=0.1,
            round=0.01,
        )
        for expert in EXPERTS
    ]
    boundary = float_input(
        "boundary",
        (0.0, BOUNDARY, 1.0),
        f"Noise level at which the low-noise expert takes over. {BOUNDARY} is the official value.",
        step=0.001,
        round=0.0001,
    )
    return [*scales, boundary]


def _steps() -> io.Int.Input:
    return int_input(
        "steps",
        (1, STEPS, 1000),
        "Sampling steps. 40 is good; the official code takes 70; step-distilled LoRAs need 4 to 8.",
    )


def _shift() -> io.Float.Input:
    return float_input(
        "shift",
        (0.01, SHIFT, 100.0),
        "Moves steps towards strong noise, which decides motion and layout. 3 to 5 suit 480p, 5 to 10 720p.",
        step=0.1,
        round=0.0001,
    )


def _solver(tooltip: str = "", advanced: bool | None = None) -> io.Combo.Input:
    return choice_input(
        "solver",
        SOLVER_NAMES,
        tooltip or "unipc is the official solver. dpmpp (DPM++ 2M) is the official alternative.",
        advanced=advanced,
    )


def _camera_cache() -> io.Combo.Input:
    return choice_input(
        "camera_cache",
        CAMERA_CACHE_MODES,
        "Keeps the results of the camera layers between steps: little gain, for up to 28 GB per expert at 480x832x81. "
        "auto uses free GPU memory, gpu unloads other models to make room, off keeps nothing. The video is the same.",
        optional=True,
        advanced=True,
    )


def _reuse_threshold() -> io.Float.Input:
    return float_input(
        "reuse_threshold",
        (0.0, 0.0, 1.0),
        "Above 0, steps that earlier steps predict well enough skip the model: 0.02 allows an error of at most "
        "2 %. Starts again at the switch of experts. 0 computes every step.",
        step=0.005,
        round=0.0001,
        optional=True,
        advanced=True,
    )


def _denoise(tooltip: str, optional: bool = False) -> io.Float.Input:
    return float_input("denoise", (0.01, 1.0, 1.0), tooltip, step=0.01, optional=optional)


class LingBotWorldGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldGuider",
            display_name="LingBot-World Guider",
            category=CATEGORY,
            description="Both experts in one sampling run: the high-noise expert above the boundary, the low-noise one "
            "below. The solver keeps its history at the switch, and each expert is loaded at its first step.",
            search_aliases=["lingbot", "dual model guider", "cfg guider", "two experts", "moe", "wan 2.2"],
            inputs=[*_models_and_prompts(), *_guidance(), _camera_cache()],
            outputs=[io.Guider.Output("guider", display_name="guider", tooltip="For Sampler Custom Advanced.")],
        )

    @classmethod
    def validate_inputs(cls, high_noise=None):
        return validate(_check_models)

    @classmethod
    def execute(
        cls, high_noise, low_noise, positive, negative, cfg_high, cfg_low, boundary, camera_cache="auto"
    ) -> io.NodeOutput:
        models, cfg = PerExpert(high_noise, low_noise), PerExpert(cfg_high, cfg_low)
        return io.NodeOutput(_guider(models, positive, negative, cfg, boundary, camera_cache))


class LingBotWorldSolver(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldSolver",
            display_name="LingBot-World Solver",
            category=CATEGORY,
            description="The official solvers with the official integer timesteps. ComfyUI's own uni_pc is another "
            "variant and gives other results.",
            search_aliases=["lingbot", "unipc", "dpm++ 2m", "sampler select", "ksampler select"],
            inputs=[_solver(), _reuse_threshold()],
            outputs=[io.Sampler.Output("sampler", display_name="sampler", tooltip="For Sampler Custom Advanced.")],
        )

    @classmethod
    def execute(cls, solver, reuse_threshold=0.0) -> io.NodeOutput:
        from ...host.sampling.sampler import FlowSolver

        return io.NodeOutput(FlowSolver(solver, reuse_threshold=reuse_threshold))


class LingBotWorldSigmas(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldSigmas",
            display_name="LingBot-World Sigmas",
            category=CATEGORY,
            description="Returns the official flow-matching schedule.",
            search_aliases=["lingbot", "scheduler", "flow shift", "basic scheduler"],
            inputs=[
                _steps(),
                _shift(),
                _denoise(
                    "1 starts from noise. Below 1 returns the last part of a longer schedule, for a latent that "
                    "already holds a video."
                ),
                _solver("The solver that runs this schedule: unipc's begins a little lower than dpmpp's.", True),
            ],
            outputs=[io.Sigmas.Output("sigmas", display_name="sigmas", tooltip="For Sampler Custom Advanced.")],
        )

    @classmethod
    def execute(cls, steps, shift, denoise, solver) -> io.NodeOutput:
        return io.NodeOutput(_schedule(steps, shift, solver, denoise)[0])


class LingBotWorldSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldSampler",
            display_name="LingBot-World Sampler",
            category=CATEGORY,
            description="Samples a video over both experts as the official code does: schedule, solver, guidance and "
            "the switch in one node. Guider, Solver and Sigmas do the same as separate nodes.",
            search_aliases=["lingbot", "ksampler", "wan 2.2 sampler", "moe sampler", "world model"],
            inputs=[
                *_models_and_prompts(),
                io.Latent.Input(
                    "latent",
                    tooltip="The empty latent of WanImageToVideo: size and length of the video. With a denoise below "
                    "1 a video's latent, from VAE Encode.",
                ),
                seed_input("The noise to start from. The same seed gives the same video.", control_after_generate=True),
                _steps(),
                _shift(),
                *_guidance(),
                _solver(),
                _camera_cache(),
                _reuse_threshold(),
                _denoise(
                    "1 makes a new video. Below 1 changes the video in the latent: it gets the noise that the last "
                    "steps of a longer schedule remove, and these steps run. 0.3 keeps most of the video.",
                    optional=True,  # prompts and workflows of earlier versions lack it
                ),
            ],
            outputs=[io.Latent.Output("samples", display_name="latent", tooltip="The video's latent, for VAE Decode.")],
        )

    @classmethod
    def validate_inputs(cls, high_noise=None):
        return validate(_check_models)

    @classmethod
    def execute(
        cls,
        high_noise,
        low_noise,
        positive,
        negative,
        latent,
        seed,
        steps,
        shift,
        cfg_high,
        cfg_low,
        boundary,
        solver,
        camera_cache="auto",
        reuse_threshold=0.0,
        denoise=1.0,
    ) -> io.NodeOutput:
        from ...host.sampling.sampler import FlowSolver, sample_latent

        models, cfg = PerExpert(high_noise, low_noise), PerExpert(cfg_high, cfg_low)
        guider = _guider(models, positive, negative, cfg, boundary, camera_cache)
        shifts = " and ".join(f"{patched:g}" for patched in guider.patched_shifts() if patched != shift)
        if shifts:
            show_warning(f"Shift {shifts} of a model sampling node is not used: this node's own shift is {shift:g}.")
        sigmas, timesteps = _schedule(steps, shift, solver, denoise)
        return io.NodeOutput(
            sample_latent(guider, FlowSolver(solver, timesteps, reuse_threshold), sigmas, latent, seed)
        )


def _schedule(steps: int, shift: float, solver: SolverName, denoise: float) -> tuple[Tensor, Tensor]:
    """Return sigmas [steps + 1] and timesteps [steps]: the last `steps` steps of int(steps / denoise) steps."""
    from ...sampling import flow_sigmas, flow_timesteps

    if not 0 < denoise <= 1:
        raise InputError(f"denoise is {denoise:g}, expected more than 0 and at most 1, which makes a new video")
    whole = int(steps / denoise)
    return flow_sigmas(whole, shift, solver)[-(steps + 1) :], flow_timesteps(whole, shift, solver)[-steps:]


def _check_models() -> None:
    from ...host.checks.graph import check_experts

    check_experts("high_noise", "low_noise")


def _guider(models: PerExpert, positive, negative, cfg: PerExpert[float], boundary: float, mode: CameraCacheMode):
    from ...host.sampling.guider import ExpertGuider

    guider = ExpertGuider(models, boundary)
    guider.set_conds(positive, negative)
    guider.set_cfg(cfg)
    guider.set_camera_cache(mode)
    return guider
