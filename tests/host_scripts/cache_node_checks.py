"""What ComfyUI's other nodes do beside a camera cache. Import after `embed`; reported with the cache's checks."""

import comfy.samplers
import torch
from cache_cases import LAYERS, Watch, cached, held, run
from common import FRAMES, HEIGHT, INPUTS, NF4, SIGMAS, WIDTH, check, experts, gap, guider, in_windows, prompts, sample
from lingbot_world.host.model.base_model import CAMERA_CACHE_MODE
from lingbot_world.host.sampling.sampler import FlowSolver
from lingbot_world.sampling import flow_sigmas


@check
def hook_lora_on_one_prompt():
    """A LoRA that hangs on the prompt alone: patches change twice a step, so nothing is kept for long."""
    import comfy.hooks

    high, low = experts(NF4)
    tensors = {"diffusion_model.blocks.1.cam_scale_layer.diff": torch.randn(64, 64) * 0.2}
    hooks = comfy.hooks.create_hook_lora(lora=tensors, strength_model=1.0, strength_clip=0.0)
    outs = []
    for mode in ("off", "gpu"):
        made = cached(high, low, mode)
        positive, negative = prompts(high)
        made.set_conds(comfy.hooks.set_hooks_for_conditioning(positive, hooks), negative)
        outs.append(run(made))
    return {"equal": torch.equal(*outs), "effect": gap(outs[0], run(guider(high, low)))}


@check
def two_cameras():
    """A camera each for prompt and negative prompt: they take turns, and the cache gives up."""
    high, low = experts()
    outs, watch = [], Watch(high)
    for mode in ("off", "gpu"):
        watch.made = 0
        made = cached(high, low, mode)
        positive, negative = prompts(high)
        negative[0][1]["lingbot_camera"] = INPUTS["plucker"].flip(2)
        made.set_conds(positive, negative)
        outs.append(run(made, SIGMAS[:5]))
        made_by = watch.made
    return {"equal": torch.equal(*outs), "layers": made_by, "held": max(watch.held[0])}


@check
def other_nodes():
    """Context windows, EasyCache, a batch of two, replaced blocks, two samplers: the same with and without."""
    return {
        name: torch.equal(build("off"), build("gpu"))
        for name, build in (
            ("windows", _windowed),
            ("easycache", _easy),
            ("batch", _batch),
            ("replaced", _replaced),
            ("two samplers", _two_samplers),
            ("back to the high expert", _back_and_forth),
        )
    }


def _windowed(mode):
    pair = [in_windows(model, 5) for model in experts()]
    return run(cached(*pair, mode), SIGMAS[:4])


def _easy(mode):
    from comfy_extras.nodes_easycache import EasyCacheNode

    pair = (EasyCacheNode.execute(model, 3.0, 0.0, 1.0, False).result[0] for model in experts())
    return run(cached(*pair, mode), flow_sigmas(12, 5.0)[:8])


def _batch(mode):
    made = cached(*experts(), mode)
    noise = torch.stack([INPUTS["noise"], INPUTS["noise"].flip(1)])
    return made.sample(noise, torch.zeros_like(noise), FlowSolver("unipc"), SIGMAS, disable_pbar=True, seed=0)


def _replaced(mode):
    pair = [model.clone() for model in experts()]
    for model in pair:
        model.set_model_patch_replace(lambda given, extra: extra["original_block"](given), "dit", "double_block", 1)
    return run(cached(*pair, mode))


def _two_samplers(mode):
    import nodes

    high, low = (model.clone() for model in experts())
    for model in (high, low):
        model.model_options.setdefault("transformer_options", {})[CAMERA_CACHE_MODE] = mode
    sampler = nodes.KSamplerAdvanced().sample
    empty = {"samples": torch.zeros(1, 16, FRAMES, HEIGHT, WIDTH)}
    half = sampler(high, "enable", 7, 6, 6.0, "euler", "simple", *prompts(high), empty, 0, 3, "enable")[0]
    watch = Watch(low)
    done = sampler(low, "disable", 7, 6, 4.0, "euler", "simple", *prompts(low), half, 3, 10000, "disable")[0]
    assert watch.made == LAYERS * (1 if mode == "gpu" else 3), watch.made
    assert held(high) + held(low) == 0
    return done["samples"]


def _back_and_forth(mode):
    def solve(model, x, sigmas, extra_args=None, **_):
        for sigma in sigmas[[0, 3, 0, 3]]:
            x = x + 0.1 * model(x, sigma.expand(len(x)), **extra_args)
        return x

    return sample(cached(*experts(), mode), comfy.samplers.KSAMPLER(solve), SIGMAS)
