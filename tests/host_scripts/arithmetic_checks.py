"""Experts in 8-bit arithmetic inside ComfyUI."""

from embed import embed

embed()

from unittest import mock  # noqa: E402

import comfy.model_management  # noqa: E402
import torch  # noqa: E402
from comfy.model_patcher import LowVramPatch  # noqa: E402
from common import GOLDEN, INPUTS, NF4, check, gap, predict, refused, report  # noqa: E402
from lingbot_world.host import loading  # noqa: E402
from lingbot_world.host.model.operations import Linear  # noqa: E402
from lingbot_world.loaders import load_expert  # noqa: E402
from lingbot_world.model.layers.operations import prepared  # noqa: E402
from lingbot_world.model.ops import linear_8bit, rotation  # noqa: E402
from lingbot_world.options import PerExpert  # noqa: E402
from lora_cases import CPU, PREFIX, expected, load, lora, offloaded, with_lora  # noqa: E402

PLAIN = [GOLDEN / "model" / f"{role}_noise_model_fp32.safetensors" for role in ("high", "low")]


def high(arithmetic, attention="auto", files=NF4):
    return loading.load_experts(PerExpert(*files), "fp32", arithmetic=arithmetic, attention=attention).high


@check
def as_in_the_engine():
    """Gaps to the engine's expert in the same arithmetic, and how far that is from the compute dtype's."""
    found, plain = {}, predict(high("auto"))
    for arithmetic in ("fp8", "int8"):
        engine = load_expert(NF4[0], dtype=torch.float32, arithmetic=arithmetic)
        x = torch.cat([INPUTS["noise"], INPUTS["y"]])[None]
        want = engine(x, torch.tensor([413.0]), INPUTS["context"][None], INPUTS["plucker"])
        found[arithmetic] = gap(predict(load(high(arithmetic))), want)
        found[f"{arithmetic} effect"] = gap(want, plain)
    return found


@check
def rotated():
    """Gap of a layer in int8 to the engine's on a card where comfy-kitchen multiplies, with groups that fit the toy's
    width, and how far that is from a layer that is not rotated."""
    by_kitchen = mock.patch.object(linear_8bit, "_by_kitchen", lambda dtype, device: dtype == torch.int8)
    groups = [mock.patch.object(module, "GROUP", 16) for module in (linear_8bit, rotation)]
    engine = load_expert(PLAIN[0], dtype=torch.float32, arithmetic="int8")
    host = load(high("int8", files=PLAIN)).model.diffusion_model
    plain = product(engine)
    with by_kitchen, groups[0], groups[1]:
        want, got = product(engine), product(host)
    rotation._hadamard.cache_clear()
    return {"gap": gap(got, want), "effect": gap(got, plain)}


def product(model):
    layer = model.get_submodule("blocks.0.ffn.0")
    x = torch.randn(5, layer.in_features, generator=torch.manual_seed(0))
    with prepared(layer, x) as function:
        return function(x)


@check
def attention_in_8_bits():
    """Gap to the engine's expert with attention in 8 bits, and how far that is from exact attention; what an
    `attn1_patch` changes that hands on or doubles; how a MODEL made anew attends."""
    plain, patcher = predict(high("auto")), high("auto", "8bit")
    engine = load_expert(NF4[0], dtype=torch.float32, attention_mode="8bit")
    x = torch.cat([INPUTS["noise"], INPUTS["y"]])[None]
    want = engine(x, torch.tensor([413.0]), INPUTS["context"][None], INPUTS["plucker"])
    got = predict(load(patcher))
    found = {"gap": gap(got, want), "effect": gap(want, plain)}
    for name, factor in {"handed on": 1, "doubled": 2}.items():
        patch = {"patches": {"attn1_patch": [lambda given, factor=factor: given["x"] * factor]}}
        found[name] = gap(predict(patcher, options=patch), got)
    make, arguments = patcher.cached_patcher_init
    anew = make(*arguments, disable_dynamic=True).model.diffusion_model.blocks[0].self_attn.attention
    return found | {"anew": anew.__name__}


@check
def with_loras():
    """A LoRA on every layer is as exact as without 8 bits; one on a single layer leaves the others in 8 bits."""
    tensors, deltas = lora("peft")
    everywhere = load(with_lora(high("fp8"), tensors))
    found = {"everywhere": gap(predict(everywhere), expected(deltas)), "layers left": _in_8_bits(everywhere)}
    name = "blocks.0.ffn.0"
    one = load(with_lora(high("fp8"), {key: t for key, t in tensors.items() if key.startswith(f"{PREFIX}{name}.")}))
    delta = {f"{name}.weight": deltas[f"{name}.weight"]}
    found["one layer, from exact"] = gap(predict(one), expected(delta))
    found["one layer, from none"] = gap(predict(one), predict(load(high("fp8"))))
    whole = _in_8_bits(load(high("fp8")))
    layer = high("fp8").model.diffusion_model.blocks[0].ffn[0]
    layer.weight_lowvram_function = LowVramPatch("", {})  # as dynamic VRAM sets it for a plain weight
    found["as dynamic VRAM adds it"] = layer.computes_in_8_bits
    return found | {"layers without": whole, "layers with one": _in_8_bits(one)}


def _in_8_bits(patcher):
    return sum(isinstance(layer, Linear) and layer.computes_in_8_bits for layer in patcher.model.modules())


@check
def partly_loaded():
    """Gap of an expert of which ComfyUI has loaded a part."""
    whole, part = load(high("fp8")), high("fp8")
    want = predict(whole)
    part.patch_model(CPU, lowvram_model_memory=part.model_size() // 2)
    return {"layers left off": offloaded(part), "gap": gap(predict(part), want)}


@check
def made_anew():
    """How ComfyUI makes the MODEL again, without dynamic VRAM."""
    make, arguments = high("int8").cached_patcher_init
    return make(*arguments, disable_dynamic=True).model.diffusion_model.blocks[0].ffn[0].arithmetic


@check
def refusals():
    """What a card that lacks it is answered."""
    with (
        mock.patch.object(comfy.model_management, "get_torch_device", return_value=torch.device("cuda")),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(8, 6)),
        mock.patch.object(torch.cuda, "get_device_name", return_value="A Card"),
    ):
        return refused(loading.check_8_bits, loading.open_checkpoint(NF4[0]), "fp8", "auto")


report()
