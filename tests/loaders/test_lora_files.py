"""LoRA files as trainers write them: every spelling of the layers, and the scale wherever it is stated."""

import json
import math

import pytest
import torch
from lingbot_world.errors import CheckpointError
from lingbot_world.loaders.diffusers_names import diffusers_name, official_name
from lingbot_world.loaders.lora import LoraChange, read_loras
from lingbot_world.options import LoraFile
from model_cases import SMALL
from safetensors.torch import save_file

SHAPES = SMALL.parameter_shapes()
LAYERS = ["blocks.0.self_attn.q", "blocks.1.self_attn.o", "blocks.0.cross_attn.k", "blocks.1.ffn.0", "blocks.0.ffn.2"]
LAYERS += ["time_embedding.0", "time_projection.1", "text_embedding.2", "head.head"]
RANK = 4


def halves(layer: str, rank=RANK) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = SHAPES[f"{layer}.weight"]
    random = torch.Generator().manual_seed(len(layer))
    return torch.randn(rows, rank, generator=random), torch.randn(rank, columns, generator=random)


def read(
    folder, tensors, metadata=None, config=None, name="adapter_model", strength=1.0
) -> dict[str, list[LoraChange]]:
    file = folder / f"{name}.safetensors"
    save_file(tensors, file, metadata=metadata)
    if config is not None:
        (folder / "adapter_config.json").write_text(json.dumps(config))
    return read_loras([LoraFile(file, strength)], SHAPES)


def delta(change: LoraChange, name: str) -> torch.Tensor:
    return change.apply_to(torch.zeros(SHAPES[name]))


def flat(layer: str) -> str:
    return layer.replace(".", "_")


SPELLINGS = {
    "ComfyUI": lambda layer: (f"diffusion_model.{layer}.lora_up.weight", f"diffusion_model.{layer}.lora_down.weight"),
    "bare": lambda layer: (f"{layer}.lora_B.weight", f"{layer}.lora_A.weight"),
    "PEFT": lambda layer: (f"base_model.model.{layer}.lora_B.weight", f"base_model.model.{layer}.lora_A.weight"),
    "adapter's name": lambda layer: (f"{layer}.lora_B.default.weight", f"{layer}.lora_A.default.weight"),
    "another name": lambda layer: (f"{layer}.lora_B.my_style-2.weight", f"{layer}.lora_A.my_style-2.weight"),
    "DiffSynth": lambda layer: (f"pipe.dit.{layer}.lora_B.weight", f"pipe.dit.{layer}.lora_A.weight"),
    "kohya": lambda layer: (f"lora_unet_{flat(layer)}.lora_up.weight", f"lora_unet_{flat(layer)}.lora_down.weight"),
    "Wan-Fun": lambda layer: (f"lora_unet__{flat(layer)}.lora_up.weight", f"lora_unet__{flat(layer)}.lora_down.weight"),
    "diffusers": lambda layer: tuple(f"transformer.{diffusers_name(layer)}.lora_{each}.weight" for each in "BA"),
    "PEFT of diffusers": lambda layer: tuple(
        f"base_model.model.{diffusers_name(layer)}.lora_{each}.weight" for each in "BA"
    ),
    "kohya of diffusers": lambda layer: tuple(
        f"lora_unet_{flat(diffusers_name(layer))}.lora_{each}.weight" for each in ("up", "down")
    ),
    "OneTrainer": lambda layer: tuple(
        f"lora_transformer_{flat(diffusers_name(layer))}.lora_{each}.weight" for each in ("up", "down")
    ),
    "older diffusers": lambda layer: (f"transformer.{layer}.lora.up.weight", f"transformer.{layer}.lora.down.weight"),
    "oldest diffusers": lambda layer: (f"unet.{layer}_lora.up.weight", f"unet.{layer}_lora.down.weight"),
    "linear layer": lambda layer: tuple(f"{layer}.lora_linear_layer.{each}.weight" for each in ("up", "down")),
    "no weight": lambda layer: (f"{layer}.lora_B", f"{layer}.lora_A"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_names_the_same_layers(tmp_path, spelling):
    tensors = {}
    for layer in LAYERS:
        tensors |= zip(SPELLINGS[spelling](layer), halves(layer), strict=True)
    changes = read(tmp_path, tensors)
    assert changes.keys() == {f"{layer}.weight" for layer in LAYERS}
    for layer in LAYERS:
        up, down = halves(layer)
        (change,) = changes[f"{layer}.weight"]
        torch.testing.assert_close(delta(change, f"{layer}.weight"), up @ down)


def test_diffusers_names_and_back():
    for name in SHAPES:
        assert official_name(diffusers_name(name)) == name


LAYER = "blocks.0.self_attn.q"


def peft(layer=LAYER, rank=RANK) -> dict[str, torch.Tensor]:
    return dict(zip(SPELLINGS["PEFT"](layer), halves(layer, rank), strict=True))


def scale(changes, layer=LAYER) -> float:
    (change,) = changes[f"{layer}.weight"]
    return change.scale


@pytest.mark.parametrize(("alpha", "told"), [(0.0, 1), (1.0, 0)])
def test_a_lora_of_scale_0_is_told(tmp_path, caplog, alpha, told):
    read(tmp_path, peft() | {f"base_model.model.{LAYER}.alpha": torch.tensor(alpha)})
    assert [record.message for record in caplog.records].count(
        f"{tmp_path / 'adapter_model.safetensors'}: its scale is 0 in all layers, so it changes nothing."
    ) == told


CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIG, 4.0),
        (CONFIG | {"use_rslora": True}, 8.0),
        (CONFIG | {"alpha_pattern": {"self_attn.q": 2}}, 0.5),
        (CONFIG | {"alpha_pattern": {"self_attn.k": 2}}, 4.0),
        (CONFIG | {"alpha_pattern": {r"blocks\.\d+\.self_attn\.q": 2}}, 0.5),
        (CONFIG | {"r": 64, "rank_pattern": {"q": RANK}}, 4.0),
        (CONFIG | {"lora_dropout": 0.1, "bias": "none", "modules_to_save": None, "init_lora_weights": True}, 4.0),
        ({"peft_type": "LORA", "r": RANK}, 1.0),
    ],
)
def test_pefts_side_file(tmp_path, config, expected):
    assert scale(read(tmp_path, peft(), config=config)) == pytest.approx(expected)
    assert scale(read(tmp_path, peft(), config=config, strength=0.5)) == pytest.approx(expected / 2)


HEADERS = {
    "transformer": {"transformer.lora_alpha": "16", "transformer.r": "4"},
    "bare": {"lora_alpha": "16", "r": "4"},
    "float": {"lora_alpha": "16.0", "rank": "4"},
    "kohya": {"ss_network_alpha": "16", "ss_network_dim": "4"},
    "diffusers": {"lora_adapter_metadata": json.dumps({"transformer.r": 4, "transformer.lora_alpha": 16})},
    "packed": {"adapter_config": json.dumps({"r": 4, "lora_alpha": 16})},
    "another object": {"training": json.dumps({"lora_alpha": 16, "rank": 8, "steps": 10})},
    "config": {"config": json.dumps({"rank": 4, "alpha": 16})},
    "scale": {"transformer.lora_scale": "4.0"},
    "scale and alpha": {"scaling": "4", "network_alpha": "16", "network_dim": "4"},
    "camel case": {"loraAlpha": "16", "loraRank": "4"},
    "rslora": {"alpha": "8", "rs_lora": "True"},
    "kohya's arguments": {"ss_network_alpha": "8", "ss_network_args": json.dumps({"rank_stabilized": "True"})},
    "diffusers' patterns": {
        "lora_adapter_metadata": json.dumps(
            {"transformer.r": 8, "transformer.lora_alpha": 1, "transformer.alpha_pattern": {"self_attn.q": 16}}
            | {"transformer.rank_pattern": {"self_attn.q": 4}, "transformer.use_rslora": False}
        )
    },
}


@pytest.mark.parametrize("header", HEADERS)
def test_the_headers_scale(tmp_path, header):
    assert scale(read(tmp_path, peft(), {"format": "pt"} | HEADERS[header])) == 4.0


KOHYA = {"ss_network_module": "networks.lora_wan", "ss_network_alpha": "16", "ss_network_dim": "4"}


@pytest.mark.parametrize(
    ("spelling", "more", "expected"),
    [("kohya", {}, 4.0), ("ComfyUI", {}, 4.0), ("PEFT", {}, 1.0), ("PEFT", {f"{LAYER}.alpha": torch.tensor(8.0)}, 2.0)],
)
def test_a_converted_loras_scale_is_in_its_matrices(tmp_path, spelling, more, expected):
    """Converters to PEFT's names multiply the scale into the matrices, and keep kohya's header."""
    tensors = dict(zip(SPELLINGS[spelling](LAYER), halves(LAYER), strict=True))
    assert scale(read(tmp_path, tensors | more, KOHYA)) == expected


def test_a_resized_loras_header_states_no_number(tmp_path):
    alpha = {f"{LAYER}.alpha": torch.tensor(8.0)}
    header = KOHYA | {"ss_network_alpha": "Dynamic", "ss_network_dim": "Dynamic"}
    assert scale(read(tmp_path, peft() | alpha, header)) == 2.0


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"ss_network_alpha": "16", "ss_network_dim": "8"}, "states rank 8"),
        ({"lora_scale": "3", "alpha": "16", "rank": "4"}, "states scale 3, and alpha 16 of rank 4, which is scale 4"),
        ({"lora_alpha": "16", "config": '{"alpha": 8}'}, "lora_alpha is both 16 and 8"),
        ({"lora_config": "{"}, "lora_config is not JSON"),
    ],
)
def test_headers_that_contradict_are_refused(tmp_path, header, message):
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, peft(), header)


def test_a_headers_rslora(tmp_path):
    assert scale(read(tmp_path, peft(), {"lora_alpha": "16", "use_rslora": "True"})) == 8.0


def test_tensors_come_before_the_header_and_that_before_the_side_file(tmp_path):
    alpha = {f"base_model.model.{LAYER}.alpha": torch.tensor(2.0)}
    assert scale(read(tmp_path, peft() | alpha, HEADERS["bare"], CONFIG | {"lora_alpha": 8})) == 0.5
    assert scale(read(tmp_path, peft(), HEADERS["bare"], CONFIG | {"lora_alpha": 8})) == 4.0
    only_one = alpha | peft() | peft("blocks.1.self_attn.q")
    changes = read(tmp_path, only_one, HEADERS["bare"])
    assert scale(changes) == 0.5
    assert scale(changes, "blocks.1.self_attn.q") == 4.0


def test_a_side_file_of_another_lora_is_left_alone(tmp_path):
    save_file(peft(), tmp_path / "other.safetensors")
    assert scale(read(tmp_path, peft(), config=CONFIG, name="style")) == 1.0
    (tmp_path / "other.safetensors").unlink()
    assert scale(read(tmp_path, peft(), config=CONFIG, name="style")) == 4.0


@pytest.mark.parametrize("name", ["style.json", "style_config.json"])
def test_a_json_file_of_the_loras_name(tmp_path, name):
    save_file(peft(), tmp_path / "other.safetensors")
    for stated in ({"lora_alpha": 16, "r": 4}, {"alpha": 16, "rank": 4}, {"lora": {"alpha": 16}}, {"lora_scale": 4}):
        (tmp_path / name).write_text(json.dumps(stated))
        assert scale(read(tmp_path, peft(), name="style")) == 4.0
    for other in ("[1]", "no JSON", '{"preferred weight": 0.5}', '{"scale": 4, "strength": 2}'):
        (tmp_path / name).write_text(other)
        assert scale(read(tmp_path, peft(), name="style")) == 1.0


@pytest.mark.parametrize("around", [{"alpha": 8}, {"config": {"lora_alpha": 8, "r": 4}}])
def test_a_scale_around_the_tensors_of_a_pt_file_is_refused(tmp_path, around):
    torch.save({"lora": peft(), **around}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="next to a LoRA's tensors"):
        read_loras([LoraFile(tmp_path / "a.pt")], SHAPES)
    torch.save({"lora": peft(), "step": 8}, tmp_path / "a.pt")
    assert scale(read_loras([LoraFile(tmp_path / "a.pt")], SHAPES)) == 1.0


@pytest.mark.parametrize(("more", "expected"), [({"scale": 3.0}, 3.0), ({"scalar": 3.0}, 12.0), ({"alpha": 2}, 0.5)])
def test_scales_of_a_layer(tmp_path, more, expected):
    tensors = peft() | {f"base_model.model.{LAYER}.{name}": torch.tensor(value) for name, value in more.items()}
    assert scale(read(tmp_path, tensors, HEADERS["bare"])) == pytest.approx(expected)


def test_biases_of_up_have_the_loras_scale(tmp_path):
    bias = torch.arange(float(SHAPES[f"{LAYER}.bias"][0]))
    tensors = peft() | {f"base_model.model.{LAYER}.lora_B.bias": bias}
    (change,) = read(tmp_path, tensors, config=CONFIG | {"lora_bias": True})[f"{LAYER}.bias"]
    torch.testing.assert_close(delta(change, f"{LAYER}.bias"), 4 * bias)


@pytest.mark.parametrize("key", ["blocks.1.diff_m", "blocks.1.modulation.diff_m", "blocks.1.modulation.diff"])
def test_modulations(tmp_path, key):
    value = torch.full(SHAPES["blocks.1.modulation"], 0.05)
    head = torch.full(SHAPES["head.modulation"], 0.05)
    changes = read(tmp_path, {f"diffusion_model.{key}": value, "diffusion_model.head.diff_m": head})
    assert changes.keys() == {"blocks.1.modulation", "head.modulation"}
    (change,) = changes["blocks.1.modulation"]
    torch.testing.assert_close(delta(change, "blocks.1.modulation"), value)


def test_norms_and_biases(tmp_path):
    names = {
        "blocks.0.self_attn.norm_k.diff": "blocks.0.self_attn.norm_k.weight",
        "blocks.0.norm3.w_norm": "blocks.0.norm3.weight",
        "blocks.0.norm3.b_norm": "blocks.0.norm3.bias",
        "lora_unet_blocks_0_ffn_0.diff_b": "blocks.0.ffn.0.bias",
        "transformer.blocks.1.norm2.diff_b": "blocks.1.norm3.bias",
    }
    changes = read(tmp_path, {key: torch.ones(SHAPES[name]) for key, name in names.items()})
    assert changes.keys() == set(names.values())


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("hada_w1_a", "LoHa"),
        ("lokr_w1", "LoKr"),
        ("dora_scale", "DoRA"),
        ("lora_magnitude_vector.weight", "DoRA"),
        ("lora_magnitude_vector.default.weight", "DoRA"),
        ("oft_blocks", "OFT"),
        ("lora_mid.weight", "Tucker"),
        ("set_weight", "whole weights"),
        ("modules_to_save.weight", "whole weights"),
    ],
)
def test_other_adapters_are_named(tmp_path, part, kind):
    with pytest.raises(CheckpointError, match=f"{kind}.*a plain LoRA is expected"):
        read(tmp_path, peft() | {f"base_model.model.{LAYER}.{part}": torch.ones(4, 4)})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG | {"use_dora": True}, "use_dora is True"),
        (CONFIG | {"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        (CONFIG | {"alora_invocation_tokens": [1, 2]}, r"alora_invocation_tokens is \[1, 2\]"),
        (CONFIG | {"arrow_config": {"top_k": 2}}, "arrow_config is"),
        (CONFIG | {"peft_type": "LOHA"}, "peft_type is 'LOHA', expected LORA"),
        (CONFIG | {"init_lora_weights": "pissa_niter_4"}, "changes the model's own weights"),
        (CONFIG | {"r": 8}, "states rank 8 for blocks.0.self_attn.q, whose tensors have rank 4"),
        (CONFIG | {"lora_alpha": "much"}, "lora_alpha is 'much', expected a number"),
        (CONFIG | {"lora_alpha": 10**400}, "lora_alpha is 1000.*, expected a number"),
        (CONFIG | {"r": 0}, "a rank of 0"),
        (CONFIG | {"alpha_pattern": [1]}, "expected an object"),
        (CONFIG | {"alpha_pattern": {"(a+)+": 1}}, "cannot be followed"),
        (CONFIG | {"alpha_pattern": {"(a": 1}}, "no pattern"),
    ],
)
def test_side_files_that_say_something_else_are_refused(tmp_path, config, message):
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, peft(), config=config)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (peft() | {f"base_model.model.{LAYER}.bias": torch.ones(64)}, "1 of its 3 tensors belong to no layer"),
        (peft() | {f"{LAYER}.lora_A.weight": torch.ones(4, 64)}, "are the same part"),
        ({f"{LAYER}.alpha": torch.tensor(1.0)}, "has only alpha"),
        (
            peft() | {f"base_model.model.{LAYER}.alpha": torch.ones(2)},
            r"alpha of .* of shape \[2\], expected a number",
        ),
        (peft() | {f"base_model.model.{LAYER}.alpha": torch.tensor(math.nan)}, "expected a number"),
        ({key: half.to(torch.int8) for key, half in peft().items()}, "2 of its 2 tensors"),
        ({key: torch.ones(0, 0) for key in peft()}, "LoRA for another model"),
    ],
)
def test_tensors_that_nobody_can_apply(tmp_path, tensors, message):
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_floats_of_every_size(tmp_path, dtype):
    tensors = {key: half.to(dtype) for key, half in peft().items()}
    (change,) = read(tmp_path, tensors)[f"{LAYER}.weight"]
    up, down = halves(LAYER)
    torch.testing.assert_close(delta(change, f"{LAYER}.weight"), up @ down, atol=0.2, rtol=0.05)
    assert all(each.isfinite().all() for each in change.factors(torch.device("cpu"), torch.float32))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits(tmp_path, dtype):
    tensors = {key: half.to(dtype) for key, half in peft().items()}
    (change,) = read(tmp_path, tensors)[f"{LAYER}.weight"]
    up, down = (tensors[key].float() for key in SPELLINGS["PEFT"](LAYER))
    torch.testing.assert_close(delta(change, f"{LAYER}.weight"), up @ down)
    change.check()


def test_a_folder_is_a_lora(tmp_path):
    read(tmp_path, peft(), config=CONFIG)
    assert scale(read_loras([LoraFile(tmp_path, 1.0)], SHAPES)) == 4.0
