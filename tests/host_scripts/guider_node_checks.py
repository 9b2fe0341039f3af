"""What ComfyUI's other nodes make of two experts in a run. Import after `embed`; reported with the guider's checks."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import comfy.samplers
import torch
from common import (
    FRAMES,
    HEIGHT,
    INPUTS,
    NF4,
    SIGMAS,
    WIDTH,
    check,
    experts,
    gap,
    guider,
    in_windows,
    prompts,
    sample,
)
from lingbot_world.host.sampling.sampler import FlowSolver
from lingbot_world.loaders import open_checkpoint
from lingbot_world.sampling import flow_sigmas
from lingbot_world.toy.experts import write_expert_folder


@check
def core_samplers():
    """ComfyUI's own samplers through the guider; euler against two runs by hand, one per expert."""
    found = {}
    for name in ("euler", "heun", "dpmpp_2m", "uni_pc", "res_multistep", "euler_cfg_pp", "dpm_adaptive"):
        out = sample(guider(*experts()), comfy.samplers.sampler_object(name), SIGMAS.clone())
        found[name] = {"finite": bool(out.isfinite().all()), "size": out.abs().max().item()}
    euler = comfy.samplers.sampler_object("euler")
    found["euler gap"] = gap(sample(guider(*experts()), euler, SIGMAS), by_hand(euler))
    return found


def by_hand(sampler, cfgs=(6.0, 4.0), split=2):
    """Two stock CFGGuiders, one after the other, the noise handed over unscaled."""
    high, low = experts()
    x, empty = INPUTS["noise"][None], torch.zeros(1, 16, FRAMES, HEIGHT, WIDTH)
    for model, cfg, sigmas in ((high, cfgs[0], SIGMAS[: split + 1]), (low, cfgs[1], SIGMAS[split:])):
        stock = comfy.samplers.CFGGuider(model)
        stock.set_conds(*prompts(model))
        stock.set_cfg(cfg)
        first = sigmas is not None and split and model is high
        latent = empty if first else model.model.process_latent_out(x)
        noise = x if first else torch.zeros_like(x)
        x = model.model.process_latent_in(stock.sample(noise, latent, sampler, sigmas, disable_pbar=True, seed=0))
    return x


@check
def two_ksamplers():
    """Core's two KSamplerAdvanced, on the shift that ModelSamplingSD3 sets, against the guider on the same sigmas."""
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    import nodes

    high, low = (ModelSamplingSD3().patch(model, 5.0)[0] for model in experts())
    empty = {"samples": torch.zeros(1, 16, FRAMES, HEIGHT, WIDTH)}
    run = nodes.KSamplerAdvanced().sample
    half = run(high, "enable", 7, 6, 6.0, "euler", "simple", *prompts(high), empty, 0, 2, "enable")[0]
    done = run(low, "disable", 7, 6, 4.0, "euler", "simple", *prompts(low), half, 2, 10000, "disable")[0]
    sigmas = comfy.samplers.calculate_sigmas(high.get_model_object("model_sampling"), "simple", 6)
    ours = guider(high, low, boundary=(sigmas[1] + sigmas[2]).item() / 2)
    noise = comfy.sample.prepare_noise(empty["samples"], 7)
    out = ours.sample(
        noise, empty["samples"], comfy.samplers.sampler_object("euler"), sigmas, disable_pbar=True, seed=7
    )
    return gap(out, done["samples"])


@check
def denoise_mask():
    """Masked latents stay what they were."""
    high, low = experts()
    mask = torch.ones(1, 1, FRAMES, HEIGHT, WIDTH)
    mask[..., : WIDTH // 2] = 0
    out = sample(guider(high, low), FlowSolver("unipc"), SIGMAS, mask=mask)
    return {"kept": out[..., : WIDTH // 2].abs().max().item(), "sampled": out[..., WIDTH // 2 :].abs().max().item()}


@check
def easycache():
    """EasyCache on both experts skips steps, each with a cache of its own."""
    from comfy_extras.nodes_easycache import EasyCacheNode

    high, low = (EasyCacheNode.execute(model, 3.0, 0.0, 1.0, False).result[0] for model in experts())
    events, stop = [], lambda: None
    for role, patcher in (("high", high), ("low", low)):
        patcher.model.diffusion_model.blocks[0].register_forward_pre_hook(
            lambda module, arguments, role=role: events.append(role)
        )
    out = sample(guider(high, low), FlowSolver("unipc"), flow_sigmas(12, 5.0))
    stop()
    return {"finite": bool(out.isfinite().all()), "high": events.count("high"), "low": events.count("low")}


@check
def context_windows():
    """Windows as long as the video change nothing; shorter ones run, each with its part of the camera."""
    found, want = {}, sample(guider(*experts()), FlowSolver("unipc"), SIGMAS)
    for name, length in (("whole", 9), ("short", 5)):
        patched, seen = [], set()
        for model in experts():
            windowed = in_windows(model, length)
            original = windowed.model.diffusion_model._forward

            def spy(*arguments, original=original, seen=seen, **options):
                seen.add((arguments[0].shape[2], options["lingbot_camera"].shape[2]))
                return original(*arguments, **options)

            windowed.model.diffusion_model._forward = spy
            patched.append(windowed)
        out = sample(guider(*patched), FlowSolver("unipc"), SIGMAS)
        found[name] = {"gap": gap(out, want), "frames": sorted(seen)}
    return found


@check
def torch_compile():
    """What the TorchCompileModel node does (its tracing and its guards, not its code generation) changes nothing, and
    of eight blocks one is traced: RecompileError otherwise. `graphs` counts what was traced in all."""
    from comfy_api.torch_helpers import set_torch_compile_wrapper
    from comfy_extras.nodes_torch_compile import skip_torch_compile_dict
    from torch._dynamo import config, utils

    with TemporaryDirectory() as folder:
        paths = deep_experts(Path(folder), 8)
        want = sample(guider(*experts(paths)), FlowSolver("unipc"), SIGMAS[1:])
        compiled = []
        for model in experts(paths):
            clone = model.clone(disable_dynamic=True)
            set_torch_compile_wrapper(clone, "eager", options={"guard_filter_fn": skip_torch_compile_dict})
            compiled.append(clone)
        made = guider(*compiled)
        made.set_camera_cache("gpu")  # which compiled code leaves aside
        with config.patch(error_on_recompile=True):
            found = gap(sample(made, FlowSolver("unipc"), SIGMAS[1:]), want)
    return {"gap": found, "graphs": utils.counters["stats"]["unique_graphs"]}


def deep_experts(folder, layers):
    """Folders of two random 4-bit experts that are like the golden ones but for their number of blocks."""
    config = replace(open_checkpoint(NF4[0]).config, num_layers=layers)
    for seed, role in enumerate(("high", "low")):
        random = torch.Generator().manual_seed(seed)
        tensors = (
            (name, 0.05 * torch.randn(shape, generator=random)) for name, shape in config.parameter_shapes().items()
        )
        write_expert_folder(folder / role, config, tensors)
    return [folder / "high", folder / "low"]
