"""Golden experts and inputs inside ComfyUI, and a list of checks that reports as JSON. Import after `embed`."""

import json
import traceback
from pathlib import Path

import numpy as np
import torch
from lingbot_world.host.loading import load_experts
from lingbot_world.host.sampling.guider import ExpertGuider
from lingbot_world.loaders import load_expert
from lingbot_world.options import PerExpert
from lingbot_world.pipeline import sample as engine_sample
from lingbot_world.sampling import flow_sigmas

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
INPUTS = {k: torch.from_numpy(v) for k, v in np.load(GOLDEN / "e2e" / "inputs.npz").items() if v.ndim}
FRAMES, HEIGHT, WIDTH = INPUTS["noise"].shape[1:]
NF4 = [GOLDEN / "nf4" / f"{role}_noise_model_bnb_nf4" for role in ("high", "low")]
FP32 = [GOLDEN / "model" / f"{role}_noise_model_fp32.safetensors" for role in ("high", "low")]

SIGMAS = flow_sigmas(6, 5.0)

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def report() -> None:
    """Run every check and print one line of JSON: {name: {"value": ...} or {"raised": traceback}}."""
    found = {}
    for name, function in CHECKS.items():
        try:
            found[name] = {"value": function()}
        except BaseException:  # ComfyUI's interrupt is not an Exception
            found[name] = {"raised": traceback.format_exc()}
    print("\n" + json.dumps(found))


def experts(paths=FP32):
    return tuple(load_experts(PerExpert(*paths), "fp32"))


def conditioning(model, context, camera=True):
    """CONDITIONING as WanImageToVideo and LingBotWorldApplyCamera make it, of the golden inputs."""
    mask = torch.ones(1, 1, FRAMES, HEIGHT, WIDTH)
    mask[:, :, 0] = 0
    image = model.model.process_latent_out(INPUTS["vae_latent"][None].clone())
    extra = {"concat_latent_image": image, "concat_mask": mask}
    return [[context[None], extra | ({"lingbot_camera": INPUTS["plucker"]} if camera else {})]]


def prompts(model, camera=True):
    return [conditioning(model, INPUTS[name], camera) for name in ("context", "context_null")]


def guider(high, low, boundary=0.947, camera=True):
    made = ExpertGuider(PerExpert(high, low), boundary)
    made.set_conds(*prompts(high, camera))
    made.set_cfg(PerExpert(6.0, 4.0))
    return made


def sample(made, sampler, sigmas, callback=None, mask=None):
    """The model-space latent of a run from the golden noise."""
    empty = torch.zeros(1, 16, FRAMES, HEIGHT, WIDTH)
    out = made.sample(INPUTS["noise"][None], empty, sampler, sigmas, mask, callback, True, 0)
    return made.model_patcher.model.process_latent_in(out)


def predict(patcher, timestep=413.0, options=None):
    """The transformer's output for the golden inputs, camera included, as it stands loaded."""
    x = torch.cat([INPUTS["noise"], INPUTS["y"]])[None]
    return patcher.model.diffusion_model(
        x,
        torch.tensor([timestep]),
        INPUTS["context"][None],
        transformer_options=options if options else {},
        lingbot_camera=INPUTS["plucker"],
    )


def engine_run(noise=INPUTS["noise"][None], **options):
    """What the engine makes of the golden inputs with NF4 experts and the guidance of the runs here."""
    inputs = [INPUTS[name][None] for name in ("y", "context", "context_null")]
    models = [load_expert(path, dtype=torch.float32) for path in NF4]
    return engine_sample(*models, noise, *inputs, INPUTS["plucker"], guide_scale=(4.0, 6.0), **options)


def in_windows(model, length: int):
    """A model that makes a video in context windows of so many latent frames."""
    from comfy_extras.nodes_context_windows import WanContextWindowsManualNode

    windows = {"context_length": length, "context_overlap": 1, "context_schedule": "standard_static"}
    windows |= {"context_stride": 1, "closed_loop": False, "fuse_method": "pyramid", "freenoise": False}
    return WanContextWindowsManualNode.execute(model, **windows).result[0]


def gap(left, right) -> float:
    return (left.double() - right.double()).abs().max().item()


def refused(function, *arguments, **options) -> str | None:
    """The message of the ValueError that a call raises, None where it raises none."""
    try:
        function(*arguments, **options)
    except ValueError as error:
        return str(error)
    return None
