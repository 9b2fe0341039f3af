"""What runs report of core's samplers, sigmas and guidance nodes that are put together wrongly.

Argument: the toy package. Each check holds a latent's gap to the right one, where there is one, and the messages."""

import os
import sys
from pathlib import Path

from embed import embed

os.environ["TOY"] = sys.argv[1]
embed()

import comfy.sd  # noqa: E402
import comfy.utils  # noqa: E402
import torch  # noqa: E402
from common import check, refused, report  # noqa: E402
from lingbot_world.host.model.vae import open_vae  # noqa: E402
from lingbot_world.nodes.sampling.experts import LingBotWorldSigmas, LingBotWorldSolver  # noqa: E402
from rule_setup import (  # noqa: E402
    CAUSAL,
    EXPERTS,
    IMAGE,
    LATENT,
    PATH,
    SAID,
    TEXTS,
    VIDEO,
    WHOLE,
    Latents,
    LingBotWorldGuider,
    LingBotWorldRollout,
    LingBotWorldSampler,
    lora,
    run,
)

HIGH, LOW = EXPERTS
SHARED = {"cfg": 3.0, "sampler_name": "euler", "positive": WHOLE[0], "negative": WHOLE[1]}


def part(model, latent, first, last, noise="disable", leftover="disable", **changes):
    steps = {"start_at_step": first, "end_at_step": last, "return_with_leftover_noise": leftover}
    given = {"noise_seed": 1, "steps": 4, "scheduler": "simple", **SHARED, **steps, **changes}
    return run("KSamplerAdvanced", model=model, latent_image=latent, add_noise=noise, **given)[0]


def first_part(leftover="enable"):
    return part(HIGH, LATENT, 0, 1, "enable", leftover)


def ksampler(model=LOW, latent=VIDEO, denoise=0.5, **changes):
    given = {"seed": 1, "steps": 4, "scheduler": "simple", **SHARED, **changes}
    return run("KSampler", model=model, latent_image=latent, denoise=denoise, **given)[0]


def sampler(models=EXPERTS, latent=VIDEO, cfg=3.0, reuse=0.0, steps=2, denoise=0.5):
    settings = (1, steps, 5.0, cfg, 3.0, 0.947, "unipc", "auto", reuse, denoise)
    return LingBotWorldSampler.execute(*models, *WHOLE, latent, *settings).args[0]


def ours(cfg_low=3.0):
    return LingBotWorldGuider.execute(*EXPERTS, *WHOLE, 3.0, cfg_low, 0.947).args[0]


def custom(sigmas, guider=None, solver=None, latent=LATENT):
    return run(
        "SamplerCustomAdvanced",
        noise=run("RandomNoise", noise_seed=1)[0],
        guider=guider or ours(),
        sampler=solver or run("KSamplerSelect", sampler_name="euler")[0],
        sigmas=sigmas,
        latent_image=latent,
    )[0]


def select(name):
    return run("KSamplerSelect", sampler_name=name)[0]


def basic(denoise=1.0):
    return run("BasicScheduler", model=LOW, scheduler="simple", steps=4, denoise=denoise)[0]


class Flat:
    """A VAE of a model for images."""

    @staticmethod
    def encode(pixels):
        return torch.zeros(len(pixels), 4, 4, 8)


def rollout(vae=Latents, **inputs):
    settings = (9, 1, "custom", 10.0, "0, 500", -1, -1, "auto")
    given = {"start_image": IMAGE, "camera": PATH, **inputs}
    return LingBotWorldRollout.execute(CAUSAL, TEXTS[0], vae, *settings, **given).args[0]


def said(make):
    SAID.texts.clear()
    make()
    return " ".join(dict.fromkeys(SAID.texts))


@check
def chains():
    turned = [[text, {**extras, "lingbot_camera": -extras["lingbot_camera"]}] for text, extras in WHOLE[0]]
    cases = {
        "right": lambda: part(LOW, first_part(), 1, 9),
        "noise twice": lambda: part(LOW, first_part(), 1, 9, "enable"),
        "steps left out": lambda: part(LOW, first_part(), 3, 9),
        "other camera": lambda: part(LOW, first_part(), 1, 9, positive=turned),
        "other text": lambda: part(LOW, first_part(), 1, 9, positive=[[0.5 * WHOLE[0][0][0], WHOLE[0][0][1]]]),
        "other schedule": lambda: part(LOW, first_part(), 1, 9, scheduler="beta"),
        "noise left": lambda: part(LOW, first_part(), 1, 3, leftover="enable"),
        "no noise": lambda: part(LOW, first_part("disable"), 1, 9),
        "no noise in a video": lambda: part(LOW, VIDEO, 1, 9),
    }
    right = cases["right"]()["samples"]
    gaps = {name: ((case()["samples"] - right).norm() / right.norm()).item() for name, case in cases.items()}
    return {name: [gaps[name], said(case)] for name, case in cases.items()}


@check
def empty_latents():
    core = run("CFGGuider", model=LOW, positive=WHOLE[0], negative=WHOLE[1], cfg=3.0)[0]
    return {
        "ksampler": said(lambda: ksampler(latent=LATENT)),
        "sampler": said(lambda: sampler(latent=LATENT)),
        "guider": said(lambda: custom(basic(0.5))),
        "core's guider": said(lambda: custom(basic(0.5), core)),
        "video": said(ksampler),
        "rollout": refused(rollout, start_image=None, start_latent=LATENT),
        "rollout of a part": said(lambda: rollout(start_image=None, start_latent=first_part())),
        "rollout of a video": said(lambda: rollout(start_image=None, start_latent=part(LOW, first_part(), 1, 9))),
        "rollout of a masked video": said(
            lambda: rollout(start_image=None, start_latent={**VIDEO, "noise_mask": torch.ones(1, 32, 64)})
        ),
        "rollout's vae": refused(rollout, vae=Flat),
    }


@check
def unused():
    rescaled = run("RescaleCFG", model=HIGH, multiplier=0.7)[0]
    with_lora = comfy.sd.load_lora_for_models(HIGH, None, lora(), 1.0, 0)[0]
    return {
        "plain": said(sampler),
        "RescaleCFG": said(lambda: sampler([rescaled, LOW])),
        "LoRA": said(lambda: sampler([with_lora, LOW])),
        "cfg": said(lambda: sampler(cfg=7.0)),
        "low": said(
            lambda: custom(torch.tensor([1.0, 0.98]), LingBotWorldGuider.execute(*EXPERTS, *WHOLE, 3, 5, 0.947).args[0])
        ),
        "whole": said(lambda: sampler([with_lora, LOW], LATENT, 7.0, denoise=1.0)),
        "cfg 1": said(lambda: ksampler(run("CFGNorm", model=LOW, strength=0.5)[0], cfg=1.0)),
        "cfg 0": [said(lambda: ksampler(cfg=0.0)), said(lambda: sampler(latent=LATENT, cfg=0.0, denoise=1.0))],
        "rollout": said(lambda: rollout(guided_steps=12, guide_scale=3.0)),
        "rollout as usual": said(rollout),
    }


@check
def numbers():
    cached = [
        run("EasyCache", model=model, reuse_threshold=0.2, start_percent=0.15, end_percent=0.95, verbose=False)[0]
        for model in EXPERTS
    ]
    larger = run("SamplerLCMUpscale", scale_ratio=2.0, scale_steps=-1, upscale_method="bislerp")[0]
    return {
        "cfg": [refused(ksampler, cfg=float("nan")), refused(sampler, latent=LATENT, cfg=float("nan"), denoise=1.0)],
        "sigmas": refused(custom, torch.tensor([1.0, float("nan"), 0.0])),
        "latent": refused(ksampler, latent={"samples": VIDEO["samples"] * float("inf")}),
        "none": refused(custom, run("ManualSigmas", sigmas="none")[0]),
        "larger": refused(custom, basic(), solver=larger),
        "two caches": said(lambda: sampler(cached, LATENT, reuse=0.02, denoise=1.0)),
        "one cache": said(lambda: sampler(cached, LATENT, denoise=1.0)),
        "dpm_fast": said(lambda: custom(basic(), solver=select("dpm_fast"))),
        "dpm_adaptive": said(lambda: custom(basic(), solver=select("dpm_adaptive"))),
        "dpm_fast to 0.5": said(lambda: custom(torch.tensor([1.0, 0.9, 0.5]), solver=select("dpm_fast"))),
    }


@check
def advice():
    """What is said of core's sigmas with our solver, and of the same run as the message advises it; of a guider that
    marks its prompts."""
    ours = LingBotWorldSigmas.execute(4, 5.0, 1.0, "unipc").args[0]
    solver = LingBotWorldSolver.execute("unipc").args[0]
    two = run(
        "DualCFGGuider",
        model=LOW,
        cond1=WHOLE[0],
        cond2=WHOLE[0],
        negative=WHOLE[1],
        cfg_conds=3.0,
        cfg_cond2_negative=2.0,
        style="regular",
    )[0]
    return {
        "basic": said(lambda: custom(basic(), solver=solver)),
        "ours": said(lambda: custom(ours, solver=solver)),
        "prompt_type": said(lambda: custom(basic()[1:], two, latent=VIDEO)),
    }


@check
def tiles():
    """The largest changes by tiles in time: of frames by our VAE, of frames by ComfyUI's, and of a latent by ours."""
    file = Path(os.environ["TOY"]) / "Wan2.1_VAE.pth"
    ours, theirs = open_vae(file), comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(file)))
    frames = torch.rand(9, 48, 80, 3, generator=torch.Generator().manual_seed(0))
    short = {"tile_x": 64, "tile_y": 64, "overlap": 8, "tile_t": 2, "overlap_t": 1}
    with torch.inference_mode():
        latent = ours.encode(frames)
        whole = ours.decode(latent)
        gaps = [(each.decode_tiled(latent, **short) - whole).abs().amax().item() for each in (ours, theirs)]
        wide = {"tile_x": 512, "tile_y": 512, "overlap": 64, "tile_t": 8, "overlap_t": 4}
        encoded = (ours.encode_tiled(frames, **wide) - latent).abs().amax().item()
    return {"ours": gaps[0], "theirs": gaps[1], "encoded": encoded}


report()
