"""What is used, said or refused where nodes are right by themselves and put together wrongly. Import after `embed`;
reported with `node_rule_checks`."""

import comfy.hooks
import comfy.sd
import node_helpers
import torch
from common import check, refused
from lingbot_world.host.model.clip import encode_prompts
from rule_setup import (
    CLIP,
    EXPERTS,
    IMAGE,
    LATENT,
    MODELS,
    PATH,
    PLAIN,
    SAID,
    TEXT_FILES,
    TEXTS,
    VIDEO,
    WHOLE,
    Latents,
    LingBotWorldApplyCamera,
    LingBotWorldGuider,
    LingBotWorldRollout,
    LingBotWorldSampler,
    lora,
    run,
    sample,
)

STEPS = {"steps": 4, "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple"}


def without(key, prompt):
    return [[text, {name: value for name, value in extras.items() if name != key}] for text, extras in prompt]


def said(front, prompts=None, models=MODELS):
    return " ".join(sample(front, models, prompts)[1])


def gap(left, right):
    return ((left - right).norm() / right.norm()).item()


@check
def sides():
    """What is said where a start image or a camera is missing, on a side or on both, by our Sampler and by KSampler."""
    found = {}
    for key in ("concat_latent_image", "lingbot_camera"):
        positive, negative = (without(key, prompt) for prompt in WHOLE)
        other = [[text, {**extras, key: -extras[key]}] for text, extras in WHOLE[1]]
        copied = [[text, {**extras, key: extras[key].clone()}] for text, extras in WHOLE[1]]
        for front in ("sampler", "ksampler"):
            found[f"{key} {front}"] = {
                "positive": said(front, [positive, WHOLE[1]]),
                "negative": said(front, [WHOLE[0], negative]),
                "both": said(front, [positive, negative]),
                "other": said(front, [WHOLE[0], other]),
                "copied": said(front, [WHOLE[0], copied]),
            }
    return found


@check
def wiring():
    """What KSampler Advanced says of an expert in these of 4 steps; at shift 5 the first is the high-noise expert's."""

    def words(expert, first, last, leftover="enable"):
        SAID.texts.clear()
        run(
            "KSamplerAdvanced",
            model=expert,
            add_noise="enable",
            noise_seed=1,
            positive=WHOLE[0],
            negative=WHOLE[1],
            latent_image=VIDEO if first else LATENT,
            start_at_step=first,
            end_at_step=last,
            return_with_leftover_noise=leftover,
            **STEPS,
        )
        return " ".join(SAID.texts)

    high, low = EXPERTS
    return {
        "right": words(high, 0, 1) + words(low, 1, 4),
        "whole": words(high, 0, 4),
        "low whole": words(low, 0, 4),
        "swapped": [words(low, 0, 1), words(high, 1, 4)],
        "to the end": words(high, 0, 1, "disable"),
    }


@check
def one_expert_only():
    """What the Guider says of context windows behind one expert."""
    windows = {
        "context_length": 5,
        "context_overlap": 1,
        "context_schedule": "standard_static",
        "context_stride": 1,
        "closed_loop": False,
        "fuse_method": "pyramid",
        "freenoise": False,
    }
    windowed = [run("WanContextWindowsManual", model=model, **windows)[0] for model in EXPERTS]
    loras = [comfy.sd.load_lora_for_models(EXPERTS[0], None, lora(), 1.0, 0)[0], EXPERTS[1]]
    return {
        "one": said("guider", models=[windowed[0], EXPERTS[1]]),
        "both": said("guider", models=windowed),
        "LoRA": said("guider", models=loras),
    }


@check
def sigmas_stay():
    """Whether ComfyUI's uni_pc leaves the sigmas that it is given as they were: under our Guider and under its own."""
    found = {}
    guiders = {
        "ours": LingBotWorldGuider.execute(*EXPERTS, *WHOLE, 3.0, 3.0, 0.947).args[0],
        "core": run("CFGGuider", model=EXPERTS[1], positive=WHOLE[0], negative=WHOLE[1], cfg=3.0)[0],
    }
    for name, guider in guiders.items():
        sigmas = torch.tensor([0.9, 0.7, 0.4, 0.0])
        kept = sigmas.clone()
        run(
            "SamplerCustomAdvanced",
            noise=run("RandomNoise", noise_seed=1)[0],
            guider=guider,
            sigmas=sigmas,
            sampler=run("KSamplerSelect", sampler_name="uni_pc")[0],
            latent_image=LATENT,
        )
        found[name] = torch.equal(sigmas, kept)
    return found


@check
def sigmas():
    """What a run of our Guider says of sigmas, and of one that begins with nothing."""
    found, empty = {}, {"samples": torch.zeros_like(LATENT["samples"])}
    euler, noise = run("KSamplerSelect", sampler_name="euler")[0], run("RandomNoise", noise_seed=1)[0]
    for name, values in {
        "usual": [1.0, 0.8, 0.0],
        "none": [1.0],
        "flipped": [0.1, 0.8, 0.9],
        "of others": [14.6, 0.0],
        "half": [1.0, 0.5],
        "nothing": [1.0, 0.8, 0.0],
    }.items():
        guider = LingBotWorldGuider.execute(*EXPERTS, *WHOLE, 1.0, 1.0, 0.947).args[0]
        SAID.texts.clear()
        run(
            "SamplerCustomAdvanced",
            noise=run("DisableNoise")[0] if name == "nothing" else noise,
            guider=guider,
            sampler=euler,
            sigmas=torch.tensor(values),
            latent_image=empty,
        )
        found[name] = " ".join(SAID.texts)
    return found


@check
def latents():
    """What our Sampler says of a latent that holds a video, and of an empty one."""
    found = {}
    for name, samples in {"empty": LATENT["samples"], "full": PLAIN["sampler"][0]}.items():
        SAID.texts.clear()
        LingBotWorldSampler.execute(*EXPERTS, *WHOLE, {"samples": samples}, 1, 1, 5.0, 1.0, 1.0, 0.947, "unipc")
        found[name] = " ".join(SAID.texts)
    return found


@check
def keys():
    """Keys that nobody foresaw, in a CONDITIONING and on a MODEL, before each front; and texts of another encoder."""
    found = {}
    patched = [model.clone() for model in MODELS]
    for model in patched:
        model.model_options["transformer_options"]["tomorrow"] = 1
    for front in ("sampler", "guider", "ksampler", "rollout"):
        given = [TEXTS[0]] if front == "rollout" else list(WHOLE)
        strange = [node_helpers.conditioning_set_values(prompt, {"tomorrow": 1}) for prompt in given]
        wide = [[[torch.zeros(1, 4, 7), extras] for _, extras in prompt] for prompt in given]
        found[front] = [said(front, strange), said(front, models=patched), refused(sample, front, MODELS, wide)]
    return found


@check
def nothing_predicted():
    """Prompts that predict nothing somewhere, before Sampler and Rollout; and with one that fills the rest."""
    empty = run(
        "ConditioningSetMask", conditioning=WHOLE[0], mask=torch.zeros(1, 32, 64), strength=1.0, set_cond_area="default"
    )[0]
    early = run("ConditioningSetTimestepRange", conditioning=WHOLE[0], start=0.0, end=0.5)[0]
    late = run("ConditioningSetTimestepRange", conditioning=WHOLE[1], start=0.5, end=1.0)[0]
    outside = run("ConditioningSetArea", conditioning=WHOLE[0], width=64, height=64, x=640, y=0, strength=1.0)[0]
    text = run(
        "ConditioningSetMask", conditioning=TEXTS[0], mask=torch.zeros(1, 32, 64), strength=1.0, set_cond_area="default"
    )[0]
    return {
        "empty": refused(sample, "sampler", MODELS, [empty, WHOLE[1]]),
        "early": refused(sample, "sampler", MODELS, [early, WHOLE[1]]),
        "negative": refused(sample, "sampler", MODELS, [WHOLE[0], late]),
        "filled": said("sampler", [early + late, WHOLE[1]]),
        "outside": refused(sample, "sampler", MODELS, [outside + WHOLE[0], WHOLE[1]]),
        "rollout": refused(sample, "rollout", MODELS, [text]),
    }


@check
def hooks_of_a_rollout():
    """A LoRA as a hook of the prompt, and by ComfyUI's loader: the gap, and what the LoRA does."""
    hook = comfy.hooks.create_hook_lora(lora=lora(), strength_model=1.0, strength_clip=0.0)
    hooked = comfy.hooks.set_hooks_for_conditioning(TEXTS[0], hooks=hook)
    loaded = comfy.sd.load_lora_for_models(MODELS[2], None, lora(), 1.0, 0)[0]
    by_hook, by_loader = sample("rollout", MODELS, [hooked])[0], sample("rollout", [*EXPERTS, loaded])[0]
    return {"gap": gap(by_hook, by_loader), "effect": gap(by_loader, PLAIN["rollout"][0])}


@check
def merged():
    """Gaps: the low-noise expert merged into the high-noise one as a whole, to the low-noise expert; and a LoRA in
    bypass mode to the same LoRA."""
    high, low = EXPERTS
    whole = run("ModelMergeSimple", model1=high, model2=low, ratio=0.0)[0]
    bypass = comfy.sd.load_bypass_lora_for_models(low, None, lora(), 1.0, 0)[0]
    plain = comfy.sd.load_lora_for_models(low, None, lora(), 1.0, 0)[0]
    same, other, by_lora, by_bypass = (sample("ksampler", [high, model])[0] for model in (whole, low, plain, bypass))
    return {"merged": gap(same, other), "bypass": gap(by_bypass, by_lora), "effect": gap(by_lora, other)}


@check
def merged_with_another_kind():
    """What is said when a causal model is merged into an expert, and when an expert is merged into the other."""
    said = []
    for model in (MODELS[2], EXPERTS[1]):
        SAID.texts.clear()
        run("ModelMergeSimple", model1=EXPERTS[0], model2=model, ratio=0.5)
        said.append(sorted(set(SAID.texts)))
    return said


@check
def images():
    """What Rollout says of two start images."""
    SAID.texts.clear()
    LingBotWorldRollout.execute(
        MODELS[2],
        TEXTS[0],
        Latents,
        9,
        1,
        "Fast",
        10.0,
        "",
        -1,
        -1,
        "auto",
        start_image=IMAGE.repeat(2, 1, 1, 1),
        camera=PATH,
    )
    return " ".join(SAID.texts)


@check
def frames():
    """What Apply Camera says of 8 poses, of which WanImageToVideo makes 5 frames, of as many poses as frames, and of
    texts that have a camera."""
    found = []
    for poses in (PATH[:8], PATH[:5]):
        SAID.texts.clear()
        latent = run("EmptyHunyuanLatentVideo", width=64, height=32, length=len(poses), batch_size=1)[0]
        LingBotWorldApplyCamera.execute(TEXTS[0], TEXTS[1], poses, latent, "camera")
        found.append(" ".join(SAID.texts))
    SAID.texts.clear()
    LingBotWorldApplyCamera.execute(*WHOLE, PATH, LATENT, "camera")
    return [*found, " ".join(SAID.texts)]


@check
def texts():
    """What CLIP Text Encode says of a layer that was chosen and of an embedding that is not there, and our own text
    node of weights, which it takes as they stand."""
    found = {}
    layer = run("CLIPSetLastLayer", clip=CLIP, stop_at_clip_layer=-2)[0]
    for name, clip, text in (
        ("layer", layer, "a castle"),
        ("embedding", CLIP, "a castle embedding:foo at dusk"),
        ("plain", CLIP, "a castle at dusk"),
    ):
        SAID.texts.clear()
        run("CLIPTextEncode", clip=clip, text=text)
        found[name] = " ".join(SAID.texts)
    for name, text in {"weights": "a (castle:1.2) at dusk", "ours": "a castle (old) at 12:30"}.items():
        SAID.texts.clear()
        encode_prompts(*TEXT_FILES, [text])
        found[name] = " ".join(SAID.texts)
    return found
