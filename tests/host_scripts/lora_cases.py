"""LoRA files of every kind for the golden experts, and what the decoded experts make of them. Import after `embed`."""

import comfy.model_management
import comfy.sd
import torch
from common import INPUTS, NF4, experts
from lingbot_world.loaders import load_expert

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
        if hasattr(getattr(layer, "weight", None), "decode"):
            layer.weight = torch.nn.Parameter(layer.weight.decode(torch.float32), requires_grad=False)
    return model


REFERENCES = {role: load_reference(path) for role, path in zip(("high", "low"), NF4, strict=True)}


def expected(deltas, strength=1.0, role="high"):
    """Output of the decoded expert with strength * delta added to its weights."""
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
    """A clone of the patcher with the LoRA, through ComfyUI's own loader."""
    return comfy.sd.load_lora_for_models(patcher, None, tensors, strength, 0)[0]


def load(patcher):
    """The patcher, with all of its weights loaded."""
    comfy.model_management.load_models_gpu([patcher], force_full_load=True)
    return patcher


def offloaded(patcher):
    """Layers that ComfyUI has left off the device."""
    return sum(hasattr(module, "prev_comfy_cast_weights") for module in patcher.model.modules())


def room_for_a_part(size, tensors):
    """Bytes of room that let in a part of a model of `size` bytes. ComfyUI keeps room for decoded weights, which is
    much in a toy, so it is looked for; what was found for one LoRA is tried first for the next one."""
    tried = [*FOUND, *range(size, 9 * size, size // 16)]
    FOUND[:] = [next(room for room in tried if 0 < _offloaded_at(room, tensors) < 60)]
    return FOUND[0]


FOUND = []


def _offloaded_at(room, tensors):
    """Layers left off with so many bytes of room."""
    trial = with_lora(experts(NF4)[0], tensors)
    trial.patch_model(CPU, lowvram_model_memory=room)
    return offloaded(trial)
