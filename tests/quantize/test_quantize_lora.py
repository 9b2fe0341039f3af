"""LoRAs merged before quantizing: the sums in float32, every key name that is around, and refusals."""

import shutil

import pytest
import torch
from lingbot_world.errors import CheckpointError, InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.options import parse_lora
from lingbot_world.loaders import open_checkpoint
from lingbot_world.loaders.lora import read_loras
from lingbot_world.model.quantized import codec
from lingbot_world.options import LoraFile
from lingbot_world.quantize import QuantizeOptions, plan_quantize
from quantize_cases import run
from safetensors.torch import load_file, save_file

LAYER = "blocks.1.self_attn.q"
NAMES = {
    "official": "{layer}.lora_A.weight {layer}.lora_B.weight {layer}.alpha",
    "comfyui": "diffusion_model.{layer}.lora_down.weight diffusion_model.{layer}.lora_up.weight "
    "diffusion_model.{layer}.alpha",
    "peft": "base_model.model.{layer}.lora_A.default.weight base_model.model.{layer}.lora_B.default.weight "
    "base_model.model.{layer}.alpha",
    "kohya": "lora_unet_{under}.lora_down.weight lora_unet_{under}.lora_up.weight lora_unet_{under}.alpha",
}


@pytest.fixture
def halves():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 64, generator=generator), torch.randn(64, 4, generator=generator)


@pytest.fixture
def weights(golden):
    return load_file(golden / "causal/model/diffusion_pytorch_model.safetensors")


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_merged_weight_is_quantized(golden, tmp_path, weights, halves, names, dtype):
    down, up = (half.to(dtype) for half in halves)
    keys = NAMES[names].format(layer=LAYER, under=LAYER.replace(".", "_")).split()
    save_file(dict(zip(keys, (down, up, torch.tensor(2.0)), strict=True)), tmp_path / "lora.safetensors")
    run(golden / "causal/model", tmp_path / "nf4", loras=(LoraFile(tmp_path / "lora.safetensors", 0.5),))
    merged = weights[f"{LAYER}.weight"] + 0.5 * 2 / 4 * (up.float() @ down.float())
    packed, scales = codec.encode(merged)
    written = load_file(tmp_path / "nf4/model.safetensors")
    assert (written[f"{LAYER}.weight"] != packed).float().mean() < 1e-3  # sums may round otherwise
    assert torch.allclose(written[f"{LAYER}.weight.nested_absmax"], scales.nested_absmax, rtol=1e-5)
    other = "blocks.1.self_attn.k.weight"
    assert torch.equal(written[other], codec.encode(weights[other])[0])


def test_two_loras_and_changes_of_biases_add_up(tmp_path, weights, halves):
    down, up = halves
    bias = torch.randn(64)
    save_file({f"{LAYER}.lora_A.weight": down, f"{LAYER}.lora_B.weight": up}, tmp_path / "a.safetensors")
    save_file({f"{LAYER}.diff": up @ down, f"{LAYER}.diff_b": bias}, tmp_path / "b.safetensors")
    loras = [LoraFile(tmp_path / "a.safetensors"), LoraFile(tmp_path / "b.safetensors", -1.0)]
    changes = read_loras(loras, {name: tuple(value.shape) for name, value in weights.items()})
    weight = weights[f"{LAYER}.weight"]
    first, second = changes[f"{LAYER}.weight"]
    assert torch.allclose(second.apply_to(first.apply_to(weight)), weight, atol=1e-5)
    (change,) = changes[f"{LAYER}.bias"]
    assert torch.allclose(change.apply_to(weights[f"{LAYER}.bias"]), weights[f"{LAYER}.bias"] - bias)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"blocks.9.self_attn.q.lora_A.weight": (4, 64)}, "belong to no layer"),
        ({"nonsense": (4, 64)}, "belong to no layer"),
        ({}, "belong to no layer"),
        ({f"{LAYER}.dora_scale": (64,)}, "DoRA .*a plain LoRA is expected"),
        ({f"{LAYER}.lora_A.weight": (4, 64)}, "only one half"),
        (
            {f"{LAYER}.lora_A.weight": (4, 80), f"{LAYER}.lora_B.weight": (80, 4)},
            r"\[80, 80\], the weight is \[64, 64\]",
        ),
        ({f"{LAYER}.lora_A.weight": (4, 64), f"{LAYER}.lora_B.weight": (64, 8)}, "LoRA for another model"),
        ({f"{LAYER}.diff": (32, 64)}, "LoRA for another model"),
        ({"blocks.1.norm3.lora_A.weight": (4, 64), "blocks.1.norm3.lora_B.weight": (64, 4)}, "LoRA for another model"),
    ],
)
def test_a_lora_that_does_not_fit_is_refused(tmp_path, weights, tensors, message):
    save_file({name: torch.zeros(shape) for name, shape in tensors.items()}, tmp_path / "lora.safetensors")
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    with pytest.raises(CheckpointError, match=message):
        read_loras([LoraFile(tmp_path / "lora.safetensors")], shapes)


def test_a_lora_on_the_command_line():
    assert parse_lora("a.safetensors") == LoraFile(parse_lora("a.safetensors").path, 1.0)
    assert (parse_lora("low=a.safetensors:-0.5").strength, parse_lora("low=a.safetensors:-0.5").expert) == (-0.5, "low")
    for name in (r"C:\loras\a.safetensors", "a=b.safetensors"):
        assert (str(parse_lora(name).path), parse_lora(name).strength, parse_lora(name).expert) == (name, 1.0, None)
    assert str(parse_lora(r"high=C:\loras\a.safetensors:0.8").path) == r"C:\loras\a.safetensors"


def test_a_lora_for_one_expert_is_refused_where_there_is_one_model(golden, tmp_path):
    with pytest.raises(InputError, match="one model by itself"):
        run(golden / "causal/model", tmp_path / "nf4", loras=(LoraFile(tmp_path / "x.safetensors", 1.0, "high"),))


def test_an_expert_gets_its_own_lora(golden, tmp_path, halves):
    for role in ("high", "low"):
        (tmp_path / "package" / f"{role}_noise_model").mkdir(parents=True)
        folder = tmp_path / "package" / f"{role}_noise_model"
        shutil.copy(golden / f"model/{role}_noise_model_fp32.safetensors", folder / "model.safetensors")
        shutil.copy(golden / "model/config.json", folder)
    down, up = halves
    save_file({f"{LAYER}.lora_A.weight": down, f"{LAYER}.lora_B.weight": up}, tmp_path / "lora.safetensors")
    run(tmp_path / "package", tmp_path / "nf4", loras=(LoraFile(tmp_path / "lora.safetensors", 1.0, "low"),))
    run(tmp_path / "package", tmp_path / "plain")
    name = f"{LAYER}.weight"
    for role, same in (("high", True), ("low", False)):
        merged, plain = (
            load_file(tmp_path / folder / f"{role}_noise_model_bnb_nf4/model.safetensors")[name]
            for folder in ("nf4", "plain")
        )
        assert torch.equal(merged, plain) == same


def test_a_lora_that_does_not_fit_is_refused_before_anything_is_written(golden, tmp_path):
    save_file({"nonsense": torch.zeros(4, 64)}, tmp_path / "lora.safetensors")
    options = QuantizeOptions(loras=(LoraFile(tmp_path / "lora.safetensors"),))
    with pytest.raises(CheckpointError, match="belong to no layer"):
        plan_quantize(golden / "causal/model", tmp_path / "nf4", options)


def test_a_lora_with_a_nan_is_named(golden, tmp_path, halves):
    down, up = halves
    down[1, 2] = float("nan")
    save_file({f"{LAYER}.lora_A.weight": down, f"{LAYER}.lora_B.weight": up}, tmp_path / "bad.safetensors")
    with pytest.raises(CheckpointError, match=rf"diffusion_pytorch_model.* with .*bad\.safetensors: {LAYER}.* NaN"):
        run(golden / "causal/model", tmp_path / "nf4", loras=(LoraFile(tmp_path / "bad.safetensors"),))


def test_keeping_every_layer_is_refused_before_anything_is_written(golden, tmp_path):
    with pytest.raises(InputError, match="`keep`: .*nothing is left to quantize"):
        run(golden / "causal/model", tmp_path / "nf4", keep=("*",))
    assert not list(tmp_path.iterdir())


def test_layers_that_are_kept_stay_as_they_are_and_the_loader_takes_them(golden, tmp_path, weights):
    metas = run(golden / "causal/model", tmp_path / "nf4", keep=("head.head", "blocks.0.*"))
    checkpoint = open_checkpoint(tmp_path / "nf4")
    kept = [name for name in checkpoint.plain if len(checkpoint.shapes[name]) == 2]
    assert sorted(kept) == next(iter(metas.values()))["kept"]
    assert len(kept) == 15
    assert torch.equal(checkpoint.plain["head.head.weight"].view(), weights["head.head.weight"].bfloat16())
    assert "blocks.1.ffn.0.weight" in checkpoint.quantized
    words = ["quantize", str(golden / "causal/model"), str(tmp_path / "by words"), "--device", "cpu"]
    assert main([*words, "--keep", "head.head", "--keep", "blocks.0.*"]) == 0
    assert sorted(open_checkpoint(tmp_path / "by words").plain) == sorted(checkpoint.plain)
    with pytest.raises(InputError, match="block.0 is no linear layer"):
        run(golden / "causal/model", tmp_path / "other", keep=("block.0",))
