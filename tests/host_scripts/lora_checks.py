"""LoRAs on NF4 experts through ComfyUI's own loader, against decoding the weights and adding."""

from embed import embed

embed()

import comfy.model_management  # noqa: E402
import comfy.sd  # noqa: E402
import torch  # noqa: E402
from common import FP32, NF4, check, experts, gap, predict, report  # noqa: E402
from lingbot_world.host import uploads  # noqa: E402
from lingbot_world.host.experts import load_patcher  # noqa: E402
from lingbot_world.host.operations import Linear  # noqa: E402
from lingbot_world.loaders import experts as loading  # noqa: E402
from lingbot_world.loaders import load_expert  # noqa: E402
from lingbot_world.loaders.stream import streaming  # noqa: E402

CPU = torch.device("cpu")
PREFIX = "diffusion_model."
RANK = 4
KINDS = ("peft", "kohya", "diff", "lightning")


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.05


def lora(kind: str) -> tuple[dict, dict]:
    """A LoRA file's tensors and what they add: {parameter: delta}."""
    model = REFERENCES["high"]
    tensors, deltas = {}, {}
    for seed, (name, layer) in enumerate(model.named_modules()):
        if isinstance(layer, torch.nn.Linear):
            more, delta = _linear(kind, PREFIX + name, *layer.weight.shape, seed)
            tensors |= more
            deltas[f"{name}.weight"] = delta
            if kind == "lightning":
                tensors[f"{PREFIX}{name}.diff_b"] = deltas[f"{name}.bias"] = random(*layer.bias.shape, seed=seed + 7)
    if kind == "lightning":
        for name in ("blocks.1.norm3", "blocks.0.self_attn.norm_q"):
            tensors[f"{PREFIX}{name}.diff"] = deltas[f"{name}.weight"] = random(64, seed=3)
        tensors[f"{PREFIX}blocks.2.modulation.diff"] = deltas["blocks.2.modulation"] = random(1, 6, 64, seed=4)
    return tensors, deltas


def _linear(kind, name, out, into, seed):
    up, down = random(out, RANK, seed=seed), random(RANK, into, seed=seed + 1000)
    if kind == "peft":
        return {f"{name}.lora_B.weight": up, f"{name}.lora_A.weight": down}, up @ down
    if kind == "diff":
        return {f"{name}.diff": up @ down}, up @ down
    named = {f"{name}.lora_up.weight": up, f"{name}.lora_down.weight": down, f"{name}.alpha": torch.tensor(2.0)}
    return named, up @ down * (2.0 / RANK)


def load_reference(path):
    """The engine's expert with every 4-bit weight decoded to fp32."""
    model = load_expert(path, dtype=torch.float32)
    for layer in model.modules():
        if hasattr(getattr(layer, "weight", None), "_qdata"):
            layer.weight = torch.nn.Parameter(layer.weight.dequantize(), requires_grad=False)
    return model


REFERENCES = {role: load_reference(path) for role, path in zip(("high", "low"), NF4, strict=True)}


def expected(deltas, strength=1.0, role="high"):
    """Output of the decoded expert with strength * delta added to its weights."""
    from common import INPUTS

    model = REFERENCES[role]
    parameters = dict(model.named_parameters())
    kept = {name: parameters[name].data.clone() for name in deltas}
    for name, delta in deltas.items():
        parameters[name].data += strength * delta
    x = torch.cat([INPUTS["noise"], INPUTS["y"]])[None]
    out = model(x, torch.tensor([413.0]), INPUTS["context"][None], INPUTS["plucker"])
    for name, value in kept.items():
        parameters[name].data.copy_(value)
    return out


def with_lora(patcher, tensors, strength=1.0):
    return comfy.sd.load_lora_for_models(patcher, None, tensors, strength, 0)[0]


def load(patcher):
    comfy.model_management.load_models_gpu([patcher], force_full_load=True)
    return patcher


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


def _offloaded(patcher):
    return sum(hasattr(module, "prev_comfy_cast_weights") for module in patcher.model.modules())


def _offloaded_at(room, tensors):
    trial = with_lora(experts(NF4)[0], tensors)
    trial.patch_model(CPU, lowvram_model_memory=room)
    return _offloaded(trial)


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
    found["lowvram layers"] = _offloaded(patched)
    # ComfyUI keeps room for decoded weights, which is much in a toy: look for the room that lets in a part.
    rooms = (room for room in range(size, 9 * size, size // 16) if 0 < _offloaded_at(room, tensors) < 60)
    patched.load(CPU, lowvram_model_memory=next(rooms))
    found["layers at half"] = _offloaded(patched)
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


class PlayedBus:
    """The CPU's memory plays a GPU's: what is loaded is streamed into memory of its own."""

    def __enter__(self):
        self.kept = uploads.usable, loading._raw_tensors
        uploads.usable = lambda model, device: device is not None
        loading._raw_tensors = lambda entries, device, progress, group: streaming(entries, device, group=group)

    def __exit__(self, *_):
        uploads.usable, loading._raw_tensors = self.kept


def _sent(patcher) -> list[bool]:
    """Of each linear layer's parameters, whether they have left their file."""
    layers = (layer for layer in patcher.model.modules() if isinstance(layer, Linear))
    return [layer._parameters[name] is not home for layer in layers for name, home in layer.home.items()]


def _storages(patcher) -> dict[int, set]:
    """Layers by the memory that their weights lie in."""
    found = {}
    for name, layer in patcher.model.named_modules():
        if isinstance(layer, Linear):
            found.setdefault(layer.weight._qdata.untyped_storage().data_ptr(), set()).add(name)
    return found


@check
def uploads_together():
    """Static loading through the loaders' stream: all, some, more, back to the file, and all of it with a LoRA."""
    tensors, deltas = lora("lightning")
    patched, want, found = with_lora(experts(NF4)[0], tensors), expected(deltas), {}
    with PlayedBus():
        patched.patch_model(CPU, lowvram_model_memory=0)
        found["sent in full"] = all(_sent(patched))
        found["layers to a buffer"] = max(map(len, _storages(patched).values()))
        found["gaps"] = [gap(predict(patched), want)]
        patched.partially_unload(CPU, patched.model_size() // 3)
        found["left after unloading a third"] = sum(_sent(patched)) / len(_sent(patched))
        found["gaps"] += [gap(predict(patched), want)]
        patched.partially_load(CPU, patched.model_size() * 1000)
        found["sent again"] = all(_sent(patched))
        found["gaps"] += [gap(predict(patched), want)]
        patched.detach()
        found["sent after unload"] = any(_sent(patched))
        found["lowvram"] = _lowvram_uploads(tensors)
    return found | {"waiting after": any(getattr(m, "upload", None) for m in patched.model.modules())}


def _lowvram_uploads(tensors) -> bool:
    """With room for a part, exactly the layers that ComfyUI took are sent."""
    patched = with_lora(experts(NF4)[0], tensors)
    size = patched.model_size()
    rooms = (room for room in range(size, 9 * size, size // 16) if 0 < _offloaded_at(room, tensors) < 60)
    patched.patch_model(CPU, lowvram_model_memory=next(rooms))
    layers = [layer for layer in patched.model.modules() if isinstance(layer, Linear)]
    sent = [layer.weight is not layer.home["weight"] for layer in layers]
    return any(sent) and sent == [not hasattr(layer, "prev_comfy_cast_weights") for layer in layers]


@check
def upload_of_another_dtype():
    """fp32 in the file, bf16 to compute in: no weight is streamed, as it would be there in both."""
    asked, original = [], uploads.state_tensors

    def spy(*arguments, names, **options):
        asked.append(sum(name.endswith("weight") for name in names))
        return original(*arguments, names=names, **options)

    uploads.state_tensors = spy
    try:
        with PlayedBus():
            load(load_patcher(FP32[0], "bf16"))
            load(load_patcher(FP32[0], "fp32"))
    finally:
        uploads.state_tensors = original
    return asked


@check
def upload_fails():
    """A file that ends early, or a full device: the error comes out, and every weight is back in its file."""
    high, found = experts(NF4)[0], {}
    original = uploads.state_tensors
    for error in (torch.cuda.OutOfMemoryError("played"), ValueError("file: ends at byte 7")):

        def fail(*_, error=error, **__):
            raise error

        uploads.state_tensors = fail
        try:
            with PlayedBus():
                load(high)
        except Exception as raised:
            found[type(error).__name__] = [raised is error, any(_sent(high)), high.model.model_loaded_weight_memory]
        finally:
            uploads.state_tensors = original
    return found | {"afterwards": gap(predict(load(high)), expected({}))}


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
    held = patched.hold_patches(CPU)
    found = {"held": held, "gap": gap(predict(patched), expected(deltas))}
    tensors[next(iter(tensors))].zero_()
    found["gap after the file's tensors are gone"] = gap(predict(patched), expected(deltas))
    patched.cleanup()  # as after every run
    found["still held"] = all(f.prepared_patches is not None for f in patched._patch_functions())
    crowded = load(with_lora(experts(NF4)[0], tensors))
    crowded.model.last_memory_required = 1 << 60
    return found | {"held without room": crowded.hold_patches(CPU)}


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
    from common import prompts

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
def file_slices():
    """The marks for dynamic VRAM lead ComfyUI's reader to the very bytes of each weight."""
    from comfy.memory_management import read_tensor_file_slice_into
    from lingbot_world.host.file_slices import tag_file_slices

    model = experts(NF4)[0].model
    tagged = tag_file_slices(model.diffusion_model, model.checkpoint)
    wrong = []
    for name, parameter in model.diffusion_model.named_parameters():
        if hasattr(parameter, "_qdata"):
            copy = parameter.clone()
            copy._qdata.zero_()
            read = read_tensor_file_slice_into(parameter, copy)
            wrong += [] if read and torch.equal(copy.dequantize(), parameter.dequantize()) else [name]
    return {"tagged": tagged, "wrong": wrong}


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
