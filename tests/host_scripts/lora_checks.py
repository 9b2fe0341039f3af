"""LoRAs on NF4 experts through ComfyUI's own loader, against decoding the weights and adding."""

from embed import embed

embed()

import logging  # noqa: E402

import comfy.model_management  # noqa: E402
import torch  # noqa: E402
import upload_checks  # noqa: E402, F401  checks that are reported with those below
from common import NF4, check, experts, gap, predict, prompts, report  # noqa: E402
from lora_cases import CPU, KINDS, expected, load, lora, offloaded, room_for_a_part, with_lora  # noqa: E402


@check
def kinds():
    """Full load, every kind of file; and how far the LoRA moves the output at all."""
    found = {}
    for kind in KINDS:
        high, _ = experts(NF4)
        tensors, deltas = lora(kind)
        want = expected(deltas)
        found[kind] = gap(predict(load(with_lora(high, tensors))), want)
        found[f"{kind} effect"] = gap(want, expected({}))
    return found


@check
def strengths():
    found = {}
    tensors, deltas = lora("lightning")
    for strength in (0.0, -0.7, 2.0):
        high, _ = experts(NF4)
        found[str(strength)] = gap(predict(load(with_lora(high, tensors, strength))), expected(deltas, strength))
    return found


@check
def stacked():
    high, _ = experts(NF4)
    first, second = lora("peft"), lora("lightning")
    both = with_lora(with_lora(high, first[0], 0.5), second[0], -1.0)
    deltas = {name: 0.5 * first[1].get(name, 0) - delta for name, delta in second[1].items()}
    return gap(predict(load(both)), expected(deltas))


@check
def partial_loads():
    """Every kind of file from nothing loaded to everything and back, as much as ComfyUI would load at each stage."""
    return {kind: _stages(*lora(kind)) for kind in KINDS}


def _stages(tensors, deltas):
    high, _ = experts(NF4)
    want, patched = expected(deltas), with_lora(high, tensors)
    found = {}
    size = patched.model_size()
    patched.patch_model(CPU, lowvram_model_memory=1)
    found["nothing loaded"] = gap(predict(patched), want)
    found["lowvram layers"] = offloaded(patched)
    patched.load(CPU, lowvram_model_memory=room_for_a_part(size, tensors))
    found["layers at half"] = offloaded(patched)
    found["half"] = gap(predict(patched), want)
    patched.partially_load(CPU, size * 1000)
    found["all"] = gap(predict(patched), want)
    patched.partially_unload(CPU, size // 3)
    found["a third unloaded"] = gap(predict(patched), want)
    patched.partially_load(CPU, size * 1000)
    found["loaded again"] = gap(predict(patched), want)
    patched.detach()
    found["functions left after unload"] = sum(len(getattr(m, "weight_function", ())) for m in patched.model.modules())
    found["after unload, no LoRA"] = gap(predict(high), expected({}))
    patched.patch_model(CPU, lowvram_model_memory=0)
    found["reloaded in full"] = gap(predict(patched), want)
    patched.detach()
    return found


@check
def forced_patches():
    """`force_patch_weights`, with which ComfyUI bakes patches even into what it keeps off the GPU."""
    high, _ = experts(NF4)
    tensors, deltas = lora("lightning")
    patched = with_lora(high, tensors)
    patched.patch_model(CPU, lowvram_model_memory=1, force_patch_weights=True)
    found = gap(predict(patched), expected(deltas))
    patched.detach()
    return found


@check
def held_on_the_device():
    """What the LoRAs are made of, copied to the device once (here a copy in memory), and not where there is no room."""
    high, _ = experts(NF4)
    tensors, deltas = lora("lightning")
    patched = load(with_lora(high, tensors))
    held = patched.copy_loras_to(CPU)
    found = {"held": held, "gap": gap(predict(patched), expected(deltas))}
    tensors[next(iter(tensors))].zero_()
    found["gap after the file's tensors are gone"] = gap(predict(patched), expected(deltas))
    patched.cleanup()  # as after every run
    found["still held"] = all(f.prepared_patches is not None for f in patched._attached_patches())
    crowded = load(with_lora(experts(NF4)[0], tensors))
    crowded.model.last_memory_required = 1 << 60
    return found | {"held without room": crowded.copy_loras_to(CPU)}


@check
def clones():
    """Two clones of one model with LoRAs of their own take turns; a third has none."""
    high, _ = experts(NF4)
    tensors, deltas = lora("lightning")
    one, two = with_lora(high, tensors), with_lora(high, tensors, -0.5)
    found = {}
    for turn in range(2):
        found[f"one {turn}"] = gap(predict(load(one)), expected(deltas))
        found[f"two {turn}"] = gap(predict(load(two)), expected(deltas, -0.5))
        found[f"plain {turn}"] = gap(predict(load(high)), expected({}))
    return found


@check
def one_expert_only():
    high, low = experts(NF4)
    tensors, deltas = lora("lightning")
    comfy.model_management.load_models_gpu([with_lora(high, tensors), low], force_full_load=True)
    return {"high": gap(predict(high), expected(deltas)), "low": gap(predict(low), expected({}, role="low"))}


@check
def clone_classes():
    """Clones keep the class, dynamic ones and ones for torch.compile too."""
    high, _ = experts(NF4)
    return [type(high.clone()).__name__, type(high.clone(disable_dynamic=True)).__name__]


@check
def hook_lora():
    """A LoRA that hangs on a conditioning (Create Hook LoRA), on an expert that has one of its own."""
    import comfy.hooks

    high, _ = experts(NF4)
    tensors, deltas = lora("peft")
    patched = with_lora(high, tensors, 0.5)
    group = comfy.hooks.create_hook_lora(lora=tensors, strength_model=1.0, strength_clip=0.0)
    hooked = comfy.hooks.set_hooks_for_conditioning(prompts(high)[0], group)
    registered = comfy.hooks.HookGroup()
    patched.register_all_hook_patches(
        hooked[0][1]["hooks"], comfy.hooks.create_target_dict(comfy.hooks.EnumWeightTarget.Model), {}, registered
    )
    found = {}
    load(patched).patch_hooks(hooked[0][1]["hooks"])
    found["hook on"] = gap(predict(patched), expected(deltas, 1.5))
    patched.patch_hooks(None)
    found["hook off"] = gap(predict(patched), expected(deltas, 0.5))
    return found


@check
def hook_lora_of_another_width():
    """A LoRA on a conditioning is refused when ComfyUI registers it, before the first step."""
    import comfy.hooks

    high, _ = experts(NF4)
    up, down = torch.zeros(32, 4), torch.zeros(4, 32)
    name = "diffusion_model.blocks.0.self_attn.q"
    hook = comfy.hooks.create_hook_lora({f"{name}.lora_B.weight": up, f"{name}.lora_A.weight": down}, 1.0, 0.0)
    try:
        high.register_all_hook_patches(
            hook, comfy.hooks.create_target_dict(comfy.hooks.EnumWeightTarget.Model), {}, comfy.hooks.HookGroup()
        )
    except ValueError as error:
        return str(error)


@check
def a_weight_that_does_not_fit():
    """One weight of another shape in an otherwise fitting LoRA: left out, the others act, and one warning."""
    high, _ = experts(NF4)
    tensors, deltas = lora("diff")
    warnings, original = [], logging.warning
    tensors["diffusion_model.blocks.0.ffn.0.diff"] = torch.zeros(3, 5)
    logging.warning = lambda message, *values: warnings.append(message % values)
    try:
        patched = load(with_lora(high, tensors))
        out = predict(patched)
        predict(patched)
    finally:
        logging.warning = original
    del deltas["blocks.0.ffn.0.weight"]
    return {"gap": gap(out, expected(deltas)), "warnings": warnings}


@check
def file_slices():
    """The marks for dynamic VRAM lead ComfyUI's reader to the very bytes of each weight."""
    from comfy.memory_management import read_tensor_file_slice_into
    from lingbot_world.host.loading import mark_file_slices

    model = experts(NF4)[0].model
    marked = mark_file_slices(model.diffusion_model, model.checkpoint)
    wrong = []
    for name, parameter in model.diffusion_model.named_parameters():
        if hasattr(parameter, "_qdata"):
            copy = parameter.clone()
            copy._qdata.zero_()
            read = read_tensor_file_slice_into(parameter, copy)
            wrong += [] if read and torch.equal(copy.dequantize(), parameter.dequantize()) else [name]
    return {"marked": marked, "wrong": wrong}


@check
def saving():
    high, _ = experts(NF4)
    try:
        high.state_dict_for_saving()
    except ValueError as error:
        return str(error)


@check
def back_to_the_file():
    """A weight that was moved comes back as the file's own bytes, not as a copy."""
    layer = experts(NF4)[0].model.diffusion_model.blocks[0].ffn[0]
    home = layer.weight._qdata.data_ptr(), layer.weight._params.scale.data_ptr()
    layer.weight = torch.nn.Parameter(layer.weight.clone(), requires_grad=False)
    moved = layer.weight._qdata.data_ptr() != home[0]
    layer.to("cpu")
    return {"moved": moved, "home": home == (layer.weight._qdata.data_ptr(), layer.weight._params.scale.data_ptr())}


report()
