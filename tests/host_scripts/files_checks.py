"""Files as other programs write them inside ComfyUI. Argument: a base directory laid out by the test."""

import sys
from importlib.util import find_spec
from pathlib import Path

from embed import embed

BASE = Path(sys.argv[1])
embed(base=str(BASE))

import asyncio  # noqa: E402

from lingbot_world import comfy_entrypoint  # noqa: E402

asyncio.run(asyncio.run(comfy_entrypoint()).get_node_list())

import shutil  # noqa: E402
from collections import Counter  # noqa: E402
from itertools import product as product_of  # noqa: E402
from unittest import mock  # noqa: E402

import comfy.model_management  # noqa: E402
import comfy.ops  # noqa: E402
import comfy.utils  # noqa: E402
import torch  # noqa: E402
from comfy.quant_ops import QuantizedTensor  # noqa: E402
from common import check, gap, report  # noqa: E402
from lingbot_world.errors import CheckpointError  # noqa: E402
from lingbot_world.host.files import folders  # noqa: E402
from lingbot_world.host.files.quantize import source_choices  # noqa: E402
from lingbot_world.host.loading import load_causal  # noqa: E402
from lingbot_world.host.model.operations import is_quantized  # noqa: E402
from lingbot_world.loaders import load_expert, open_checkpoint  # noqa: E402
from lingbot_world.model.layers.operations import materialise, prepared  # noqa: E402
from lingbot_world.model.quantized import own_format  # noqa: E402
from lingbot_world.nodes.load_models import LingBotWorldLoadCausal, LingBotWorldLoadVAE  # noqa: E402
from lingbot_world.nodes.text import LingBotWorldLoadTextEncoder, LingBotWorldTextEncode  # noqa: E402
from lingbot_world.text import encode  # noqa: E402

OFFICIAL, DIFFUSERS = "official", "lingbot-world-fast-diffusers"
MODEL = BASE / "models/lingbot_world" / OFFICIAL / "lingbot_world_fast"
torch.set_num_threads(1)


@check
def choices():
    return {
        "causal": folders.causal_choices(),
        "experts": folders.expert_choices(),
        "vaes": folders.vae_choices(),
        "text encoders": folders.text_encoder_choices(),
        "tokenizers": folders.tokenizer_choices(),
        "sources": source_choices(),
    }


@check
def diffusers_model():
    """Whether the loader gives the official model's bits."""
    names = (f"{OFFICIAL}/lingbot_world_fast", f"{DIFFUSERS}/transformer")
    assert all(LingBotWorldLoadCausal.validate_inputs(name) is True for name in names)
    wanted, got = (
        LingBotWorldLoadCausal.execute(name, "fp32").result[0].model.diffusion_model.state_dict() for name in names
    )
    return got.keys() == wanted.keys() and all(torch.equal(got[name], wanted[name]) for name in wanted)


@check
def diffusers_text_encoder():
    """Whether both text nodes give the official embeddings' bits."""
    names = (f"{OFFICIAL}/models_t5_umt5-xxl-enc-bf16.pth", f"{DIFFUSERS}/text_encoder")
    assert all(LingBotWorldTextEncode.validate_inputs(name) is True for name in names)
    wanted, got = (LingBotWorldTextEncode.execute(name, "a castle", "").result[0][0][0] for name in names)
    clips = [LingBotWorldLoadTextEncoder.execute(name).result[0] for name in names]
    kept, same = (clip.encode_from_tokens(clip.tokenize("a castle")) for clip in clips)
    return torch.equal(got, wanted), torch.equal(kept, same)


@check
def diffusers_vae():
    names = (f"{OFFICIAL}/Wan2.1_VAE.pth", f"{DIFFUSERS}/vae")
    assert all(LingBotWorldLoadVAE.validate_inputs(name) is True for name in names)
    latent = torch.randn(1, 16, 2, 4, 6, generator=torch.manual_seed(0))
    wanted, got = (LingBotWorldLoadVAE.execute(name).result[0].decode(latent) for name in names)
    return torch.equal(got, wanted)


def core_layers(file):
    """Every matrix of a file, loaded as core's own loader of mixed precision does it: {layer: weight}."""
    tensors, metadata = comfy.utils.load_torch_file(str(file), return_metadata=True)
    tensors, _ = comfy.utils.convert_old_quants(tensors, metadata=metadata)
    assert comfy.utils.detect_layer_quantization(tensors, "") == {"mixed_ops": True}
    operations = comfy.ops.mixed_precision_ops(compute_dtype=torch.bfloat16)
    layers = {}
    for name in [key.removesuffix(".weight") for key in tensors if key.endswith(".weight")]:
        weight = tensors[f"{name}.weight"]
        if weight.ndim == 2:
            width = weight.shape[1] * (2 if weight.dtype == torch.uint8 else 1)  # nvfp4 has two values in a byte
            layer = operations.Linear(width, len(weight), dtype=torch.bfloat16)
            part = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
            layer.load_state_dict(part)
            layers[name] = layer
    return layers


@check
def written_for_core():
    """Of each file that `quantize --format` has written: what core's reader makes of its layers, and those whose
    decoded weight is not ours."""
    return {name: read_by_core(BASE / name / "model.safetensors") for name in ("comfy-fp8", "int8", "nvfp4")}


def read_by_core(file):
    layers, ours = core_layers(file), load_expert(file)
    return {
        "layouts": Counter(layer.weight._layout_cls for layer in layers.values()),
        "other weights": [
            name
            for name, layer in layers.items()
            if not torch.equal(layer.weight.dequantize(), ours.get_parameter(f"{name}.weight").decode(torch.bfloat16))
        ],
    }


@check
def gguf_files():
    """Of a causal model and a text encoder in GGUF: where they are offered, weights of the MODEL that are not the
    engine's, the difference of a layer's product with a LoRA, and whether the prompt's embedding is the engine's. None
    where ComfyUI's Python has no gguf."""
    if find_spec("gguf") is None:
        return None
    name = next(name for name in folders.causal_choices() if name.endswith(".gguf"))
    encoder = next(name for name in folders.text_encoder_choices() if name.endswith(".gguf"))
    assert LingBotWorldLoadCausal.validate_inputs(name) is True
    model = LingBotWorldLoadCausal.execute(name, "bf16").result[0]
    ours, x = load_expert(folders.resolve_causal(name)), torch.empty(0, dtype=torch.bfloat16)
    loaded = model.model.diffusion_model
    others = [
        key
        for key, parameter in ours.named_parameters()
        if not torch.equal(materialise(loaded.get_parameter(key), x), materialise(parameter, x))
    ]
    key = "diffusion_model.blocks.0.self_attn.q.weight"
    down, up = torch.randn(2, 4, loaded.config.dim, generator=torch.manual_seed(0)).bfloat16()
    patched = model.clone()
    patched.add_patches({key: ("diff", ((up.t() @ down).contiguous(),))}, 1.0)
    comfy.model_management.load_models_gpu([patched])
    ours.get_submodule("blocks.0.self_attn.q").changes = [(up.t(), down)]
    made, wanted = product(patched.model.diffusion_model).float(), product(ours).float()
    made = float((made - wanted).norm() / wanted.norm())
    embedding = LingBotWorldTextEncode.execute(encoder, "a castle", "").result[0][0][0]
    path = folders.resolve_text_encoder(encoder)
    (wanted,) = encode("a castle", path, folders.resolve_tokenizer("auto", path), dtype=torch.float32)
    sources = [name for name in source_choices() if name.endswith(".gguf")]
    same = torch.equal(embedding[0, : len(wanted)], wanted)
    quantized = sum(is_quantized(parameter) for parameter in loaded.parameters())
    return {
        "names": [name, encoder],
        "others": others,
        "lora": made,
        "text": same,
        "sources": sources,
        "in_blocks": quantized,
    }


@check
def written_by_core():
    """Files that core's layers save of a model in each format: layers that we decode to other bits, and the same of
    the MODEL that the loader gives, whose layers are moved and decoded by core."""
    found = {}
    plain = comfy.utils.load_torch_file(str(MODEL / "model.safetensors"))
    for name, (layout, options) in {
        "float8_e4m3fn": ("TensorCoreFP8E4M3Layout", {"scale": "recalculate"}),
        "float8_e5m2": ("TensorCoreFP8E5M2Layout", {"scale": "recalculate"}),
        "int8_tensorwise": ("TensorWiseINT8Layout", {"per_channel": True}),
        "int8_convrot": ("TensorWiseINT8Layout", {"per_channel": True, "convrot": True, "convrot_groupsize": 16}),
        "nvfp4": ("TensorCoreNVFP4Layout", {}),
        "mxfp8": ("TensorCoreMXFP8Layout", {}),
    }.items():
        folder = BASE / "models/diffusion_models" / name
        wanted = save_by_core(plain, name, layout, options, folder)
        ours = load_expert(folder)
        loaded = LingBotWorldLoadCausal.execute(name, "bf16").result[0].model.diffusion_model
        x = torch.empty(0, dtype=torch.bfloat16)
        found[name] = [
            [
                key
                for key, weight in wanted.items()
                if not torch.equal(materialise(model.get_parameter(f"{key}.weight"), x), weight)
            ]
            for model in (ours, loaded)
        ]
        found[name].append(open_checkpoint(folder).quantization)
        for arithmetic in ("fp8", "int8"):
            ours, loaded = load_expert(folder, arithmetic=arithmetic), load_causal(folder, "bf16", arithmetic)
            found[name].append(gap(*(product(model) for model in (ours, loaded.model.diffusion_model))))
    return found


@check
def a_weight_that_is_not_finite():
    """The errors of a MODEL's first two forwards."""
    folder = shutil.copytree(MODEL, BASE / "nan")
    entry = open_checkpoint(folder).tensors["blocks.0.norm3.bias"]
    with entry.path.open("r+b") as file:
        file.seek(entry.offset)
        file.write(entry.dtype.itemsize * b"\xff")
    model, errors = load_causal(folder, "fp32").model.diffusion_model, []
    for _ in range(2):
        try:
            model(torch.zeros(1, 36, 1, 4, 4), torch.tensor([500]), torch.zeros(1, 3, model.config.text_dim))
            errors.append("")
        except CheckpointError as error:
            errors.append(str(error))
    return errors


@check
def in_their_own_format():
    """Gaps between the engine and a MODEL that multiply NVFP4 and MXFP8 as the cards do that can, by plain torch; how
    far these products are from those in 8 bits."""
    found = {}
    for name in ("nvfp4", "mxfp8"):
        folder = BASE / "models/diffusion_models" / name
        in_8_bits = product(load_expert(folder, arithmetic="8bit"))
        with mock.patch.object(own_format, "_computes", return_value=True):
            ours, loaded = load_expert(folder, arithmetic="8bit"), load_causal(folder, "bf16", "8bit")
            want = product(ours)
            found[name] = [gap(product(loaded.model.diffusion_model), want), gap(in_8_bits, want)]
    return found


@check
def through_transfer_buffers():
    """Gaps between products of weights that stay and of weights that come through a buffer, which is used again, or in
    a page of dynamic VRAM, which stays until it is unpinned."""
    cast, found = comfy.ops.cast_bias_weight, {}

    def use_again(_layer, weight, _bias, _offload):
        for part in (
            [getattr(weight, name) for name in weight.__tensor_flatten__()[0]] if is_quantized(weight) else [weight]
        ):
            part.zero_()

    def moved(page):
        def into_device_memory(layer, reference, offloadable):
            weight, bias, _ = cast(layer, reference, offloadable=offloadable)
            weight = weight.clone()
            return weight, bias, (object(), reference.device if page else weight, bias)

        return mock.patch.multiple(comfy.ops, cast_bias_weight=into_device_memory, uncast_bias_weight=use_again)

    for name, arithmetic in product_of(("float8_e4m3fn", "int8_tensorwise", "mxfp8"), ("auto", "fp8", "int8", "8bit")):
        computes = mock.patch.object(own_format, "_computes", return_value=True)
        model = load_causal(BASE / "models/diffusion_models" / name, "bf16", arithmetic).model.diffusion_model
        with computes:
            want = product(model)
            for page in (False, True):
                with moved(page):
                    found[f"{name} {arithmetic} {page}"] = gap(product(model), want)
    return found


def product(model):
    layer = model.get_submodule("blocks.0.self_attn.q")
    x = torch.randn(5, layer.in_features, generator=torch.manual_seed(0)).bfloat16()
    with prepared(layer, x) as function:
        return function(x)


def save_by_core(plain, name, layout, options, folder):
    """Writes a causal model whose matrices core has put into 8 bits; returns what core decodes."""
    tensors, wanted = {}, {}
    for key, tensor in plain.items():
        if tensor.ndim != 2:
            tensors[key] = tensor
            continue
        weight = QuantizedTensor.from_float(tensor, layout, **options)
        wanted[key.removesuffix(".weight")] = weight.dequantize()
        layer = comfy.ops.mixed_precision_ops().Linear(*tensor.shape[::-1], bias=False)
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        layer.quant_format = name.replace("int8_convrot", "int8_tensorwise")
        tensors |= layer.state_dict(prefix=key.removesuffix("weight"))
    folder.mkdir(parents=True)
    comfy.utils.save_torch_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_bytes((MODEL / "config.json").read_bytes())
    return wanted


report()
