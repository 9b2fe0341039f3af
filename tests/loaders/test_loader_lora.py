"""LoRAs on weights that stay as they are: the sum is that of a merge, wherever the weights lie and in any bits."""

from dataclasses import replace

import pytest
import torch
from lingbot_world.errors import CheckpointError
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.loaders.lora import read_loras
from lingbot_world.loaders.offload import weight_bytes
from lingbot_world.options import LoraFile
from lingbot_world.quantize.writer import linear_weights
from lingbot_world.toy.experts import write_expert
from model_cases import SMALL, random_inputs, random_state, with_state
from safetensors.torch import save_file

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = replace(SMALL, num_layers=3)
SHAPES = CONFIG.parameter_shapes()
LINEAR = [name.removesuffix(".weight") for name in linear_weights(SHAPES)]
WHOLE = ["patch_embedding.diff", "blocks.0.norm3.diff", "blocks.1.modulation.diff", "blocks.2.ffn.0.diff_b"]
WHOLE += ["blocks.0.self_attn.norm_q.diff", "blocks.1.self_attn.v.diff"]
"""Changes of parameters of each kind as they are."""
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KINDS = {
    "nf4": {"quant_type": "nf4"},
    "fp32": {"quant_type": None, "dtype": torch.float32},
    "bf16": {"quant_type": None, "dtype": torch.bfloat16},
}


def parameter_of(key):
    layer, _, kind = key.rpartition(".")
    return f"{layer}.bias" if kind == "diff_b" else layer if layer in SHAPES else f"{layer}.weight"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model in every kind of file, and `lora`: rank 4 on every linear layer, and changes of other parameters."""
    folder, random = tmp_path_factory.mktemp("lora"), torch.Generator().manual_seed(3)
    (folder / "config.json").write_text('{"text_len": 24, "num_heads": 2}')
    paths = {kind: folder / f"{kind}.safetensors" for kind in KINDS}
    for kind, options in KINDS.items():
        write_expert(paths[kind], CONFIG, random_state(CONFIG).items(), **options)
    tensors = {key: 0.1 * torch.randn(SHAPES[parameter_of(key)], generator=random) for key in WHOLE}
    for layer in LINEAR:
        rows, columns = SHAPES[f"{layer}.weight"]
        tensors[f"{layer}.lora_A.weight"] = torch.randn(4, columns, generator=random) / columns**0.5
        tensors[f"{layer}.lora_B.weight"] = 0.2 * torch.randn(rows, 4, generator=random)
    save_file(tensors, folder / "lora.safetensors")
    return paths | {"lora": folder / "lora.safetensors"}


def velocity(model, device="cpu"):
    inputs = random_inputs(CONFIG, 2, (2, 4, 4))
    return model(**{name: tensor.to(device) for name, tensor in inputs.items()}).cpu()


def loaded(files, kind, strength=0.5, device="cpu", **settings):
    checkpoint = open_checkpoint(files[kind], [LoraFile(files["lora"], strength)])
    return load_expert(checkpoint, device, torch.float32, **settings)


def merged(files, kind):
    """The model with the changes in its weights."""
    model = load_expert(files[kind], dtype=torch.float32)
    state = {
        name: weight.decode(torch.float32) if hasattr(weight, "decode") else weight.float()
        for name, weight in model.named_parameters()
    }
    for name, changes in read_loras([LoraFile(files["lora"], 0.5)], SHAPES).items():
        for change in changes:
            state[name] = change.apply_to(state[name])
    return with_state(CONFIG, state)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_a_lora_is_the_one_with_the_lora_merged(files, kind, device):
    want, plain = velocity(merged(files, kind)), velocity(load_expert(files[kind], dtype=torch.float32))
    gap = (velocity(loaded(files, kind, device=device), device) - want).abs().max()
    assert gap < (1e-5 if device == "cpu" else 1e-4) < 1e-2 < (plain - want).abs().max()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "settings",
    [{"resident_blocks": 1, "copy": True}, {"resident_blocks": 0}, {"copy": True}, {"decoded_blocks": 2}],
    ids=str,
)
def test_wherever_the_weights_lie_the_bits_are_the_same(files, settings, device):
    model = loaded(files, "nf4", device=device, **settings)
    want = velocity(loaded(files, "nf4", device=device), device)
    assert all(torch.equal(velocity(model, device), want) for _ in range(2))


def test_a_changed_layer_computes_exactly_where_others_take_8_bits(files):
    want, eight_bit = velocity(loaded(files, "nf4")), velocity(loaded(files, "nf4", arithmetic="int8"))
    assert torch.equal(eight_bit, want)
    assert not torch.equal(velocity(loaded(files, "nf4", 0.0, arithmetic="int8")), velocity(loaded(files, "nf4", 0.0)))


def test_strength_0_is_no_lora_to_the_bit(files):
    assert torch.equal(velocity(loaded(files, "nf4", 0.0)), velocity(load_expert(files["nf4"], dtype=torch.float32)))


@pytest.mark.parametrize("resident", [None, 1])
def test_what_a_lora_takes_is_counted(files, resident):
    plain, changed = (
        weight_bytes(open_checkpoint(files["nf4"], [LoraFile(files["lora"], strength)]), resident)
        for strength in (0.0, 1.0)
    )
    assert changed - plain >= files["lora"].stat().st_size - 100_000


@pytest.mark.parametrize("key", [f"{LINEAR[0]}.lora_B.weight", f"{LINEAR[0]}.diff_b"])
def test_a_lora_that_is_not_finite_is_refused_by_its_name(files, tmp_path, key):
    path = tmp_path / "bad.safetensors"
    tensors = {
        f"{LINEAR[0]}.lora_A.weight": torch.ones(4, SHAPES[f"{LINEAR[0]}.weight"][1]),
        f"{LINEAR[0]}.lora_B.weight": torch.ones(SHAPES[f"{LINEAR[0]}.weight"][0], 4),
        f"{LINEAR[0]}.diff_b": torch.ones(SHAPES[f"{LINEAR[0]}.bias"]),
    }
    tensors[key].view(-1)[1] = float("nan")
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=f"bad.safetensors: {key} holds NaN"):
        load_expert(open_checkpoint(files["nf4"], [LoraFile(path)]), dtype=torch.float32)
