"""LoRA hooks of ComfyUI's nodes before each sampler, in the run that has them and in the run after.

Arguments: the toy package, and `dynamic` or `static` to use a GPU with dynamic VRAM or without. Each latent is reported
as its bytes' hash, of this process, which makes them all, and of a process of its own for each, which has sampled
nothing before. On a GPU, where a process cannot fork, plain latents that were made before any hook stand for these."""

import hashlib
import os
import sys

from embed import embed

os.environ["TOY"] = sys.argv[1]
GPU = "".join(sys.argv[2:])
embed(gpu=GPU)

import traceback  # noqa: E402
from tempfile import TemporaryDirectory  # noqa: E402

import folder_paths  # noqa: E402
import torch  # noqa: E402
from common import check, report  # noqa: E402
from lingbot_world.errors import LingBotError  # noqa: E402
from rule_setup import (  # noqa: E402
    CLIP,
    CORE,
    EXPERT,
    FRONTS,
    IMAGE,
    LATENT,
    MODELS,
    TEXTS,
    VAE,
    WHOLE,
    LingBotWorldRollout,
    lora,
    run,
)
from rule_setup import sample as sample_front  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

FOLDERS = TemporaryDirectory()
BLOCK = "diffusion_model.blocks.1"
DRAWN = torch.Generator().manual_seed(2)


def everywhere():
    """A LoRA of every linear layer, and the change of a modulation, of a bias and of a norm's weight."""
    changes = {}
    for name, layer in MODELS[0].model.diffusion_model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            for side, shape in (("B", (layer.out_features, 2)), ("A", (2, layer.in_features))):
                changes[f"diffusion_model.{name}.lora_{side}.weight"] = 0.2 * torch.randn(shape, generator=DRAWN)
    changes[f"{BLOCK}.modulation.diff"] = torch.randn(1, 6, EXPERT.dim, generator=DRAWN)
    changes[f"{BLOCK}.ffn.0.diff_b"] = torch.randn(EXPERT.ffn_dim, generator=DRAWN)
    return changes | {f"{BLOCK}.norm3.diff": torch.randn(EXPERT.dim, generator=DRAWN)}


NORM = "encoder.final_layer_norm"
NORM_SHAPE = CLIP.cond_stage_model.umt5xxl.transformer.get_submodule(NORM).weight.shape
LORAS = {
    "layer": lora(),
    "other": {name.replace("blocks.1", "blocks.0"): 0.5 * tensor for name, tensor in lora().items()},
    "all": everywhere(),
    "text": lora() | {f"text_encoders.umt5xxl.transformer.{NORM}.diff": torch.rand(NORM_SHAPE, generator=DRAWN)},
}
for name, tensors in LORAS.items():
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, f"{FOLDERS.name}/{name}.safetensors")
folder_paths.add_model_folder_path("loras", FOLDERS.name)
folder_paths.add_model_folder_path("checkpoints", FOLDERS.name)
CHECKPOINT = f"{FOLDERS.name}/layer.safetensors"


def hook(name="layer", strength=1.0):
    return run("CreateHookLora", lora_name=f"{name}.safetensors", strength_model=strength, strength_clip=1.0)[0]


def on_pair(prompts, hooks):
    if len(prompts) == 1:
        return run("ConditioningSetProperties", cond_NEW=prompts[0], strength=1.0, set_cond_area="default", hooks=hooks)
    given = dict(zip(("positive_NEW", "negative_NEW"), prompts, strict=True))
    return run("PairConditioningSetProperties", strength=1.0, set_cond_area="default", hooks=hooks, **given)


def on_positive(prompts, hooks):
    hooked = run("ConditioningSetProperties", cond_NEW=prompts[0], strength=1.0, set_cond_area="default", hooks=hooks)
    return [hooked[0], *prompts[1:]]


def on_combined(prompts, hooks):
    """A prompt with hooks in half of the steps' prompts, beside the same without."""
    names = ("positive", "negative")
    given = dict(zip(names, prompts, strict=False))
    given |= {f"{name}_NEW": prompt for name, prompt in zip(names, prompts, strict=False)}
    if len(prompts) == 1:
        given = {"cond": prompts[0], "cond_NEW": prompts[0]}
        return run("ConditioningSetPropertiesAndCombine", strength=1.0, set_cond_area="default", hooks=hooks, **given)
    return run("PairConditioningSetPropertiesAndCombine", strength=1.0, set_cond_area="default", hooks=hooks, **given)


def by_clip(prompts, hooks, scheduled=False):
    """The prompt's text again, by a CLIP that puts the hooks on it."""
    clip = run("SetClipHooks", clip=CLIP, apply_to_conds=True, schedule_clip=scheduled, hooks=hooks)[0]
    text = run("CLIPTextEncode", clip=clip, text="a castle")[0]
    return [[[made, {**prompts[0][0][1], **extras}] for made, extras in text], *prompts[1:]]


def keyframed(hooks, *frames):
    group = None
    for strength, start in frames:
        given = {"strength_mult": strength, "start_percent": start, "prev_hook_kf": group}
        group = run("CreateHookKeyframe", **given)[0]
    return run("SetHookKeyframes", hooks=hooks, hook_kf=group)[0]


def interpolated(hooks):
    settings = {"strength_start": 0.2, "strength_end": 1.0, "interpolation": "ease_in", "keyframes_count": 3}
    group = run("CreateHookKeyframesInterpolated", start_percent=0.0, end_percent=1.0, **settings)[0]
    return run("SetHookKeyframes", hooks=hooks, hook_kf=group)[0]


def from_floats(hooks):
    floats = {"floats_strength": [0.1, 0.9], "start_percent": 0.0, "end_percent": 1.0}
    return run("SetHookKeyframes", hooks=hooks, hook_kf=run("CreateHookKeyframesFromFloats", **floats)[0])[0]


def decoded(model):
    """All weights of a MODEL as ordinary tensors."""
    parameters = model.model.named_parameters()
    return {key: (weight.dequantize() if hasattr(weight, "_qdata") else weight).float() for key, weight in parameters}


def another_model(strength=0.5):
    """The low-noise expert's weights, as the node reads them from a checkpoint; ComfyUI itself reads no toy."""
    node = CORE["CreateHookModelAsLora"]()
    node.loaded_weights = CHECKPOINT, decoded(MODELS[1]), None
    return node.create_hook(os.path.basename(CHECKPOINT), strength, 0.0)[0]


def combined(count):
    each = {"hooks_A": hook(), "hooks_B": hook("other")}
    return run(f"CombineHooks{count}", **each)[0]


ROWS = {
    "Create Hook LoRA, Pair Cond Set Props": lambda prompts: on_pair(prompts, hook()),
    "Create Hook LoRA, Cond Set Props": lambda prompts: on_positive(prompts, hook()),
    "Cond Set Props Combine": lambda prompts: on_combined(prompts, hook()),
    "of all layers": lambda prompts: on_pair(prompts, hook("all")),
    "Create Hook LoRA (MO)": lambda prompts: on_positive(
        prompts, run("CreateHookLoraModelOnly", lora_name="layer.safetensors", strength_model=0.7)[0]
    ),
    "Set CLIP Hooks": lambda prompts: by_clip(prompts, hook("text")),
    "Set CLIP Hooks, scheduled": lambda prompts: by_clip(
        prompts, keyframed(hook("text"), (1.0, 0.0), (0.3, 0.5)), True
    ),
    "Set Hook Keyframes": lambda prompts: on_pair(prompts, keyframed(hook(), (0.0, 0.0), (1.0, 0.5))),
    "Set Hook Keyframes, off at the end": lambda prompts: on_pair(prompts, keyframed(hook(), (1.0, 0.0), (0.0, 0.5))),
    "Create Hook Keyframes Interp.": lambda prompts: on_pair(prompts, interpolated(hook())),
    "Create Hook Keyframes From Floats": lambda prompts: on_pair(prompts, from_floats(hook())),
    "Create Hook Model as LoRA": lambda prompts: on_pair(prompts, another_model()),
    "Combine Hooks [2]": lambda prompts: on_pair(prompts, combined(2)),
    "Combine Hooks [4]": lambda prompts: on_pair(prompts, combined(4)),
    "Combine Hooks [8]": lambda prompts: on_pair(prompts, combined(8)),
    "one on each prompt": lambda prompts: [
        on_positive([prompt], hook(name))[0] for prompt, name in zip(prompts, ("layer", "other"), strict=False)
    ],
    "none": lambda prompts: prompts,
}


def advanced(models, prompts):
    """Both experts, each in a KSampler Advanced."""
    latent, steps = LATENT, {"steps": 2, "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple"}
    given = {"noise_seed": 1, "positive": prompts[0], "negative": prompts[1]}
    for number, noise, leftover in ((0, "enable", "enable"), (1, "disable", "disable")):
        ends = {"start_at_step": number, "end_at_step": number + 1, "return_with_leftover_noise": leftover}
        latent = run(
            "KSamplerAdvanced", model=models[number], add_noise=noise, latent_image=latent, **steps, **given, **ends
        )[0]
    return latent["samples"]


def one(models, prompts):
    """One step of one expert."""
    given = {"positive": prompts[0], "negative": prompts[1], "latent_image": LATENT}
    steps = {"steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
    return run("KSampler", model=models[0], seed=1, **steps, **given)[0]["samples"]


FRONTS |= {"advanced": advanced, "one": one}


def prompts_with(row, front):
    return list(ROWS[row]([TEXTS[0]] if front == "rollout" else list(WHOLE)))


def digest(prompts, front):
    """The hash of a latent, or the words of what is raised."""
    try:
        latent = sample_front(front, MODELS, prompts)[0]
    except LingBotError as error:
        return f"refused: {error}"
    except Exception:  # noqa: BLE001  reported
        return f"raised: {traceback.format_exc()[-700:]}"
    return hashlib.sha256(latent.cpu().contiguous().numpy().tobytes()).hexdigest()[:12]


def fresh_digest(row, front):
    """The digest in a process of its own; on a GPU in this one."""
    if GPU:
        return digest(prompts_with(row, front), front)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, digest(prompts_with(row, front), front).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as made:
        text = made.read()
    os.waitpid(child, 0)
    return text


SAMPLERS = ("sampler", "guider", "advanced", "rollout")
PAIRS = {row: SAMPLERS[number % 2 :: 2] for number, row in enumerate(ROWS) if row != "none"}
if os.environ.get("LINGBOT_TESTS") == "all":
    PAIRS = dict.fromkeys(PAIRS, SAMPLERS)
PAIRS["none"] = SAMPLERS
FRESH = {row: {front: fresh_digest(row, front) for front in fronts} for row, fronts in PAIRS.items()}


def fail(*_):
    raise RuntimeError("played")


@check
def hooks():
    """Of each row and front: the hash of the hooked latent, of the same made again, and of the one without hooks after
    each; all of them here and fresh."""
    found = {}
    for row, fronts in PAIRS.items():
        for front in fronts:
            prompts, plain = prompts_with(row, front), prompts_with("none", front)
            made, after, again = digest(prompts, front), digest(plain, front), digest(prompts, front)
            fresh = {"made": FRESH[row][front], "after": FRESH["none"][front]}
            found[f"{row}, {front}"] = [{"made": made, "after": after}, {"made": again, "after": after}, fresh]
    return found


@check
def another_model_as_lora():
    """Gaps to the low-noise expert's prediction: of the high-noise one with all of the other's weights as a hook, and
    of itself."""
    high, low = MODELS[:2]
    hooked = FRONTS["one"]([high], on_pair(list(WHOLE), another_model(1.0)))
    expected, other = (FRONTS["one"]([model], list(WHOLE)) for model in (low, high))
    return [((made - expected).norm() / expected.norm()).item() for made in (hooked, other)]


@check
def keyframes_of_a_rollout():
    """Strengths of a keyframed LoRA in each forward of a rollout of two chunks: two steps and the cache update."""
    strengths, patcher = [], MODELS[2].model
    block = patcher.diffusion_model.blocks[0]
    handle = block.register_forward_pre_hook(
        lambda *_: strengths.append([hook.strength for hook in patcher.current_patcher.current_hooks.hooks])
    )
    settings = (21, 1, "custom", 10.0, "0, 500", -1, -1, "auto")
    hooked = on_pair([TEXTS[0]], keyframed(hook(), (0.25, 0.0), (1.0, 0.3)))
    LingBotWorldRollout.execute(MODELS[2], hooked[0], VAE, *settings, start_image=IMAGE)
    handle.remove()
    return strengths


@check
def after_an_error():
    """Of each front, the latent without hooks after a hooked run that ended in its last block, here and fresh."""
    found = {}
    for front in SAMPLERS:
        blocks = [model.model.diffusion_model.blocks[-1] for model in MODELS]
        handles = [block.register_forward_pre_hook(fail) for block in blocks]
        failed = digest(prompts_with("of all layers", front), front)
        for handle in handles:
            handle.remove()
        plain = digest(prompts_with("none", front), front)
        found[front] = [failed[-20:], plain, FRESH["none"][front]]
    return found


report()
