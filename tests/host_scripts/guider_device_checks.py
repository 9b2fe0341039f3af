"""ComfyUI's MultiGPU CFG Split on both experts, on two devices that are both the CPU under two names. Import after
`embed`; reported with the guider's checks."""

import threading

import comfy.model_management as management
import torch
from comfy_extras.nodes_multigpu import MultiGPUCFGSplitNode
from common import NF4, SIGMAS, check, experts, gap, guider, sample
from lingbot_world.host.sampling.sampler import FlowSolver
from lora_cases import lora, with_lora

DEVICES = [torch.device("cpu"), torch.device("cpu:1")]


def split(*models):
    """Each MODEL through MultiGPU CFG Split."""
    devices = management.get_all_torch_devices
    management.get_all_torch_devices = lambda exclude_current=False: DEVICES[exclude_current:]
    try:
        return tuple(MultiGPUCFGSplitNode.execute(model, 2).args[0] for model in models)
    finally:
        management.get_all_torch_devices = devices


def copy_of(patcher):
    """What the node made for the second device."""
    (copy,) = patcher.get_additional_models_with_key("multigpu")
    return copy


def run(pair, cache=None, sigmas=SIGMAS):
    """The latent of a run, sampled as ComfyUI's nodes run: in inference mode."""
    made = guider(*pair)
    if cache:
        made.set_camera_cache(cache)
    with torch.inference_mode():
        return sample(made, FlowSolver("unipc"), sigmas)


def watch(**patchers):
    """A list that fills with (name, rows, the thread is not the main one) of every forward of these patchers."""
    seen = []
    for name, patcher in patchers.items():

        def apply(x, *arguments, name=name, original=patcher.model.apply_model, **options):
            seen.append((name, len(x), threading.current_thread() is not threading.main_thread()))
            return original(x, *arguments, **options)

        patcher.model.apply_model = apply
    return seen


@check
def each_device_has_one_prompt():
    """Every forward of a run, and how far its latent is from that of one device."""
    pair = split(*experts())
    seen = watch(high=pair[0], low=pair[1], high_copy=copy_of(pair[0]), low_copy=copy_of(pair[1]))
    found = {"gap": gap(run(pair), run(experts())), "forwards": {}}
    for name, *how in seen:
        found["forwards"].setdefault(name, []).append(how)
    return found


@check
def parts_of_a_run():
    """Runs in which one expert has no step; and one that only one of the experts is split in."""
    found = {}
    for name, sigmas in (("high only", SIGMAS[:2]), ("low only", SIGMAS[2:])):
        found[name] = gap(run(split(*experts()), sigmas=sigmas), run(experts(), sigmas=sigmas))
    high, low = experts()
    whole = run((high, low))
    found["high split"] = gap(run((*split(high), low)), whole)
    found["low split"] = gap(run((high, *split(low))), whole)
    return found


@check
def loras():
    """4-bit experts with LoRAs that were loaded before and behind the node, against one device; and their effect."""
    tensors = lora("lightning")[0]
    want = run([with_lora(expert, tensors) for expert in experts(NF4)])
    before = run(split(*(with_lora(expert, tensors) for expert in experts(NF4))))
    behind = run([with_lora(expert, tensors) for expert in split(*experts(NF4))])
    return {"before": gap(before, want), "behind": gap(behind, want), "effect": gap(run(experts(NF4)), want)}


@check
def camera_cache():
    """Kept on both devices while a run goes on; and gone afterwards."""
    pair, kept = split(*experts()), []
    for model in (copy_of(patcher).model for patcher in pair):
        block = model.diffusion_model.blocks[0]
        block.register_forward_pre_hook(lambda *_, model=model: kept.append(model.camera_cache.nbytes > 0))
    away = gap(run(pair, "gpu"), run(experts()))
    left = sum(model.model.camera_cache.nbytes for patcher in pair for model in (patcher, copy_of(patcher)))
    return {"gap": away, "kept": kept, "left": left}


@check
def errors():
    """One in the second device's forward of the low-noise expert, and an interrupt there: threads that stay, and the
    next run."""
    pair = split(*experts())
    want, before = run(pair), threading.active_count()
    found = {}
    for name, act in (("error", lambda *_: 1 / 0), ("stop", lambda *_: management.interrupt_current_processing(True))):
        hook = copy_of(pair[1]).model.diffusion_model.blocks[1].register_forward_pre_hook(act)
        try:
            run(pair)
            found[name] = None
        except BaseException as error:  # ComfyUI's interrupt is not an Exception
            found[name] = type(error).__name__
        hook.remove()
        management.interrupt_current_processing(False)
        found[f"after {name}"] = [gap(run(pair), want), threading.active_count() - before]
    return found
