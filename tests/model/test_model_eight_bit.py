"""Linear layers in 8-bit arithmetic: what it costs in exactness, which layers it reaches, and where it is refused."""

from dataclasses import replace

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.loaders import load_expert
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.choice import trials
from lingbot_world.model.choice.card import Card
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.layers.operations import Linear, prepared
from lingbot_world.model.memory import activation_bytes
from lingbot_world.model.ops import linear_8bit, pointwise
from lingbot_world.model.ops import linear_8bit as eight_bit
from lingbot_world.model.ops import products_8bit as products
from lingbot_world.model.ops.linear_8bit import (
    DTYPES,
    EightBitLayer,
    arithmetic_note,
    choose_arithmetic,
    input_dtype,
    suited_arithmetic,
)
from lingbot_world.model.ops.matrix_8bit import LARGEST, EightBit
from lingbot_world.model.ops.pointwise import encode_8bit, layer_norm_8bit
from lingbot_world.model.ops.products_8bit import plain_product
from lingbot_world.model.quantized import codec
from lingbot_world.model.quantized.parameters import FourBitParameter
from lingbot_world.options import Precision
from lingbot_world.toy.experts import write_expert
from model_cases import SMALL, random_inputs, random_state, with_state
from played_card import CUDA, PlayedCard, forget
from test_model_accuracy import attend_in_parts, peak_bytes_on_meta, relative_rms
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY = pytest.mark.parametrize("arithmetic", DTYPES)
CPU = torch.device("cpu")
CONFIG = ModelConfig(dim=256, ffn_dim=768, num_heads=2, num_layers=4, freq_dim=64, text_dim=64, text_len=32)
GRID = (3, 16, 16)


def decoded(rows):
    return rows.values.float() * rows.scales


def four_bit(weight):
    packed, scales = codec.encode(weight)
    return FourBitParameter.of(packed, scales, tuple(weight.shape))


@pytest.mark.parametrize(
    ("arithmetic", "alone", "over_nf4"),
    [("fp8", (0.035, 0.039), (0.096, 0.102)), ("int8", (0.009, 0.013), (0.09, 0.095))],
)
def test_the_error_of_a_product(arithmetic, alone, over_nf4):
    torch.manual_seed(0)
    dtype, x, weight = DTYPES[arithmetic], torch.randn(512, 1024), torch.randn(512, 1024) / 32
    want, quantized = x @ weight.t(), four_bit(weight)
    products = {
        alone: EightBitLayer(encode_8bit(weight, dtype=dtype), None, torch.float32)(x),
        over_nf4: EightBitLayer(quantized.recode(dtype), None, torch.float32)(x),
    }
    for (least, most), product in products.items():
        assert least < relative_rms(product, want) < most
    assert 0.09 < relative_rms(x @ quantized.decode(torch.float32).t(), want) < 0.094


@EVERY
def test_products_are_those_of_the_8_bit_operands(arithmetic):
    torch.manual_seed(1)
    x, weight = (encode_8bit(torch.randn(*size), dtype=DTYPES[arithmetic]) for size in ((40, 96), (64, 96)))
    bias = torch.randn(64)
    want = decoded(x).double() @ decoded(weight).double().t() + bias
    got = eight_bit.product(x, weight, bias, torch.float32)
    assert (got - want).abs().max() < 1e-4
    assert eight_bit.product(x, weight, bias, torch.bfloat16).dtype == torch.bfloat16


def test_the_int8_product_of_a_gpu_in_parts_and_of_few_tokens(monkeypatch):
    """torch has the same int8 product for the CPU."""
    monkeypatch.setattr(products, "PRODUCT_TOKENS", 128)
    torch.manual_seed(2)
    weight, bias = encode_8bit(torch.randn(64, 96)), torch.randn(64)
    for tokens in (1, 31, 300):
        x = encode_8bit(torch.randn(tokens, 96))
        got = products.int8_product(x, weight, bias, torch.float32)
        assert torch.allclose(got, plain_product(x, weight, bias, torch.float32), atol=1e-4, rtol=0)


@EVERY
@pytest.mark.parametrize("activation", ["none", "gelu", "silu"])
def test_a_row_has_one_scale_and_its_largest_value_is_exact(monkeypatch, arithmetic, activation):
    monkeypatch.setattr("lingbot_world.model.ops.implementation.EAGER_TOKENS", 128)
    dtype, x = DTYPES[arithmetic], torch.randn(300, 96) * torch.logspace(-6, 6, 300)[:, None]
    x[7] = 0
    functions = {"gelu": lambda t: torch.nn.functional.gelu(t, approximate="tanh"), "silu": torch.nn.functional.silu}
    want = functions.get(activation, torch.clone)(x)
    rows = encode_8bit(x, dtype=dtype, activation=activation)
    assert isinstance(rows, EightBit)
    assert rows.values.dtype == dtype
    assert rows.scales.shape == (300, 1)
    half_step = rows.scales / 2 if arithmetic == "int8" else torch.maximum(want.abs() / 16, rows.scales / 1024)
    got, largest = decoded(rows), want.abs().amax(1, keepdim=True)
    assert ((got - want).abs() <= 1.001 * half_step).all()
    assert torch.allclose(got.abs().amax(1, keepdim=True), largest)


@EVERY
def test_the_norm_in_8_bits_is_that_of_the_fp32_norm(monkeypatch, arithmetic):
    monkeypatch.setattr("lingbot_world.model.ops.implementation.EAGER_TOKENS", 128)
    x, weight, bias = torch.randn(300, 96), 1 + torch.randn(96), torch.randn(96)
    norm = torch.nn.functional.layer_norm(x, (96,), weight, bias, 1e-6)
    for got, want in zip(
        layer_norm_8bit(x, weight, bias, 1e-6, DTYPES[arithmetic]),
        encode_8bit(norm, dtype=DTYPES[arithmetic]),
        strict=True,
    ):
        assert torch.equal(got, want)


@EVERY
@pytest.mark.parametrize("shape", [(48, 128), (37, 50), (5, 33)])
def test_a_4_bit_weight_is_recoded_as_its_values_are(arithmetic, shape):
    weight = four_bit(torch.randn(shape))
    want = encode_8bit(weight.decode(torch.float32), dtype=DTYPES[arithmetic])
    assert all(map(torch.equal, weight.recode(DTYPES[arithmetic]), want))


@EVERY
@pytest.mark.parametrize("settings", [{"search": True}, {"quant_type": "fp4", "blocksize": 128}])
def test_a_recoded_row_has_the_scale_of_its_largest_block(arithmetic, settings):
    """A block's largest value may be less than its scale; so the row's may be, and none is cut off."""
    dtype, weight = DTYPES[arithmetic], torch.randn(48, 256) * torch.logspace(-3, 3, 48)[:, None]
    packed, scales = codec.encode(weight, **settings)
    four_bit_weight = FourBitParameter.of(packed, scales, tuple(weight.shape))
    got, want = four_bit_weight.recode(dtype), four_bit_weight.decode(torch.float32)
    blocks = scales.block_scales().view(48, -1).abs().amax(1, keepdim=True)
    assert torch.allclose(got.scales * LARGEST[dtype], blocks)
    step = got.scales / 2 if arithmetic == "int8" else torch.maximum(want.abs() / 16, got.scales / 1024)
    assert ((decoded(got) - want).abs() <= 1.001 * step).all()


def with_outliers(config, seed=0):
    """Random weights with some channels of the residual stream and of the feed-forward twenty times as large as the
    others; trained transformers have such channels."""
    state = random_state(config, seed)
    torch.manual_seed(seed)
    for name, weight in state.items():
        if name.endswith(("modulation", "norm3.weight", "ffn.0.bias")) and name.startswith("blocks."):
            weight.view(-1, weight.shape[-1])[:, torch.randperm(weight.shape[-1])[:4]] *= 20
    return state


def in_four_bits(state, config):
    """The same with the blocks' linear weights in NF4."""
    model = with_state(config, state)
    for name, weight in state.items():
        if name.startswith("blocks.") and name.endswith("weight") and weight.ndim == 2:
            model.get_submodule(name.removesuffix(".weight")).weight = four_bit(weight)
    return model


def test_8_bits_add_little_to_the_error_of_4_bits():
    state, inputs = with_outliers(CONFIG), random_inputs(CONFIG, 1, GRID, seed=2)
    exact, model, errors = with_state(CONFIG, state)(**inputs), in_four_bits(state, CONFIG), {}
    for way in ("bf16 exact", "int8 exact", "fp8 exact", "bf16 8bit", "fp8 8bit"):
        arithmetic, attention = way.split()
        model.set_arithmetic(arithmetic)
        model.set_attention(attention)
        errors[way] = relative_rms(model(**inputs), exact)
    assert errors["bf16 exact"] < errors["fp8 exact"], errors
    assert max(errors.values()) < 1.15 * errors["bf16 exact"], errors


def test_the_blocks_layers_are_reached_and_no_others():
    model = with_state(SMALL, random_state(SMALL))
    model.set_arithmetic("fp8")
    reached = {name for name, layer in model.named_modules() if getattr(layer, "arithmetic", "bf16") == "fp8"}
    layers = [
        *("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "cross_attn.q", "cross_attn.o", "ffn.0", "ffn.2"),
        *("cam_injector_layer1", "cam_injector_layer2", "cam_scale_layer", "cam_shift_layer"),
    ]
    assert reached == {f"blocks.{index}.{layer}" for index in range(SMALL.num_layers) for layer in layers}


def test_without_8_bits_nothing_changes():
    state, inputs = random_state(SMALL), random_inputs(SMALL, 2, (2, 8, 8))
    model = with_state(SMALL, state)
    want = model(**inputs)
    model.set_arithmetic("fp8")
    assert not torch.equal(model(**inputs), want)
    model.set_arithmetic("auto")
    assert torch.equal(model(**inputs), want)


def test_a_layer_with_hooks_computes_as_before_and_its_neighbours_in_8_bits():
    state, inputs = random_state(SMALL), random_inputs(SMALL, 1, (2, 8, 8))
    model, seen = with_state(SMALL, state), []
    model.set_arithmetic("fp8")
    want = model(**inputs)
    model.blocks[0].self_attn.k.register_forward_hook(lambda layer, given, out: seen.append(given[0].dtype))
    got = model(**inputs)
    assert seen == [torch.float32]
    assert 0 < relative_rms(got, want) < 0.05


@pytest.mark.parametrize(
    ("arithmetic", "attention"), [*((each, "exact") for each in DTYPES), ("bf16", "8bit"), ("fp8", "8bit")]
)
def test_the_camera_cache_and_the_rows_change_no_bit(arithmetic, attention):
    model, cache = with_state(SMALL, random_state(SMALL)), CameraCache()
    model.set_arithmetic(arithmetic)
    model.set_attention(attention)
    inputs = random_inputs(SMALL, 2, (2, 8, 8))
    want = model(**inputs)
    for _ in range(2):
        assert torch.equal(model(**inputs, options={"camera_cache": cache}), want)
    assert cache.nbytes


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("expert")
    (folder / "config.json").write_text('{"text_len": 24, "num_heads": 2}')
    write_expert(folder / "model.safetensors", SMALL, random_state(SMALL).items(), quant_type="nf4")
    return folder / "model.safetensors"


@EVERY
def test_a_loaded_expert_and_one_whose_blocks_are_streamed(file, arithmetic):
    inputs = random_inputs(SMALL, 2, (2, 8, 8))
    plain = load_expert(file, dtype=torch.float32)(**inputs)
    want = load_expert(file, dtype=torch.float32, arithmetic=arithmetic)(**inputs)
    assert 0 < relative_rms(want, plain) < 0.1
    streamed = load_expert(file, dtype=torch.float32, copy=True, resident_blocks=0, arithmetic=arithmetic)
    for _ in range(2):
        assert torch.equal(streamed(**inputs), want)


def test_a_weight_that_is_not_quantized():
    layer = Linear(96, 64, dtype=torch.bfloat16)
    layer.weight, layer.arithmetic = torch.nn.Parameter(torch.randn(64, 96).bfloat16()), "fp8"
    torch.nn.init.zeros_(layer.bias)
    x = torch.randn(20, 96).bfloat16()
    with torch.no_grad(), prepared(layer, x) as function:
        got, want = function(x), layer(x)
    assert got.dtype == torch.bfloat16
    assert 0.01 < relative_rms(got.float(), want.float()) < 0.05


@EVERY
def test_a_full_size_step_needs_less_memory(monkeypatch, arithmetic):
    """Two of the forty blocks without storage; products and kernels hold what they hold on a GPU."""
    run = pointwise.run
    monkeypatch.setattr(pointwise, "run", lambda name, x, *rest: x if "8bit" in name else run(name, x, *rest))

    def product(x, weight, bias, dtype):
        out = torch.empty(len(x.values), len(weight.values), dtype=dtype, device="meta")
        if arithmetic == "int8":
            torch.empty(min(len(out), products.PRODUCT_TOKENS), out.shape[1], dtype=torch.int32, device="meta")
        return out

    monkeypatch.setattr(eight_bit, "product", product)
    config, grid = ModelConfig(5120, 13824, 40, 2, freq_dim=256, text_dim=4096), (21, 60, 104)
    model = LingBotWorldModel(config, device="meta", dtype=torch.float32, attention=attend_in_parts)
    model.compute_dtype = torch.bfloat16
    model.set_arithmetic(arithmetic)
    shapes = {"x": (2, 36, *grid), "timestep": (2,), "context": (2, 512, 4096), "camera": (1, 384, *grid)}
    inputs = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    measured = peak_bytes_on_meta(model, inputs)
    formula = activation_bytes(config, *grid, Precision(torch.bfloat16, arithmetic))
    assert formula < activation_bytes(config, *grid)
    assert 0.99 * formula < measured <= formula


def test_what_a_card_cannot_do_is_refused_in_a_sentence(monkeypatch):
    PlayedCard(monkeypatch, 8, 6, why=None)
    needs = "`arithmetic` fp8 needs an NVIDIA GPU of compute capability 8.9 or later"
    with pytest.raises(InputError) as refused:
        choose_arithmetic("fp8", CUDA, SMALL)
    assert str(refused.value) == f"{needs}, this is A Card (compute capability 8.6); leave it out or take int8"
    assert choose_arithmetic("int8", CUDA, SMALL) == choose_arithmetic("8bit", CUDA, SMALL) == "int8"
    assert choose_arithmetic("auto", CUDA, SMALL) == "bf16"
    PlayedCard(monkeypatch, 7, 0)
    with pytest.raises(InputError, match=r"^`arithmetic` int8 needs .* 7.5 or later, .* 7.0\); leave it out$"):
        choose_arithmetic("int8", CUDA, SMALL)
    with pytest.raises(InputError, match="needs an NVIDIA GPU"):
        choose_arithmetic("int8", torch.device("mps"), SMALL)
    PlayedCard(monkeypatch, 8, 6, why="no such instruction")
    with pytest.raises(InputError, match=r"no product in int8 is right on A Card .*no such instruction\); leave"):
        choose_arithmetic("8bit", CUDA, SMALL)
    assert choose_arithmetic("int8", CPU, SMALL) == choose_arithmetic("8bit", CPU, SMALL) == "int8"
    with pytest.raises(InputError, match="multiples of 16, this model has 64 and 120"):
        choose_arithmetic("int8", CPU, replace(SMALL, ffn_dim=120))


@pytest.mark.parametrize(
    ("capability", "taken"), [((7, 5), "int8"), ((8, 6), "int8"), ((8, 9), "int8"), ((9, 0), "fp8"), ((12, 0), "int8")]
)
def test_8bit_is_what_suits_the_card(monkeypatch, capability, taken):
    PlayedCard(monkeypatch, *capability, why=None)
    assert choose_arithmetic("8bit", CUDA, SMALL) == taken
    assert suited_arithmetic("8bit", CUDA) == taken
    assert suited_arithmetic("bf16", CUDA) == "bf16"


def test_an_amd_gpu_multiplies_int8_where_a_kernel_is_right(monkeypatch):
    PlayedCard(monkeypatch, 11, 0, why=None)
    amd = Card("amd", "Radeon", arch="gfx1100")
    monkeypatch.setattr(linear_8bit, "card_of", lambda device: amd)
    monkeypatch.setattr(trials, "card_of", lambda device: amd)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert choose_arithmetic("8bit", CUDA, SMALL) == "int8"
    assert "by comfy-kitchen" in arithmetic_note("8bit", CUDA, SMALL)
    with pytest.raises(InputError, match=r"fp8 needs .* this is Radeon \(gfx1100\); leave it out or take int8"):
        choose_arithmetic("fp8", CUDA, SMALL)


def test_the_candidate_that_takes_inputs_as_they_are_gets_them(monkeypatch, caplog):
    """comfy-kitchen encodes inputs; its plain torch stands for its kernels here."""
    kitchen = pytest.importorskip("comfy_kitchen")
    plain = kitchen.registry.get_implementation("int8_linear", backend="eager")
    monkeypatch.setattr(kitchen.registry, "get_capable_backend", lambda name, arguments: "cuda")
    monkeypatch.setattr(kitchen, "int8_linear", plain)
    monkeypatch.setattr(linear_8bit, "encodes_inputs", lambda values: values.dtype == torch.int8)
    torch.manual_seed(4)
    weight, bias, x = encode_8bit(torch.randn(64, 96)), torch.randn(64), torch.randn(50, 96)
    layer = EightBitLayer(weight, bias, torch.float32)
    assert layer.input_dtype is None
    assert input_dtype(layer, layer) is None
    want = F.linear(x, weight.values * weight.scales, bias)
    assert 1e-4 < (layer(x) - want).norm() / want.norm() < 0.02
    assert "slower" not in caplog.text
    in_fp8 = EightBit(weight.values.to(torch.float8_e4m3fn), weight.scales)
    assert EightBitLayer(in_fp8, bias, x.dtype).input_dtype == torch.float8_e4m3fn


def test_scales_that_come_after_a_product_with_one_scale_are_those_of_the_rows(monkeypatch):
    torch.manual_seed(5)
    x, weight = (encode_8bit(torch.randn(rows, 96), dtype=torch.float8_e4m3fn) for rows in (40, 64))
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, **_: (a.float() @ b.float()).bfloat16())
    got = products._fp8_then_scales(x, weight, None, torch.float32)
    want = plain_product(x, weight, None, torch.float32)
    assert (got - want).norm() / want.norm() < 4e-3


def test_what_computes_is_said_and_a_mode_that_gains_nothing_too(monkeypatch):
    PlayedCard(monkeypatch, 9, 0, why=None)
    assert "hardly faster than bf16 on A Card" in arithmetic_note("int8", CUDA, SMALL)
    assert arithmetic_note("8bit", CUDA, SMALL) == "Products in fp8 by torch."
    assert arithmetic_note("auto", CPU, SMALL) is None
    assert "on the CPU" in arithmetic_note("fp8", CPU, SMALL)
    PlayedCard(monkeypatch, 8, 9, why=None, found={"torch": "not built for Windows"})
    assert "with one scale, and the rows' scales after it" in arithmetic_note("fp8", CUDA, SMALL)
    assert products.CHOSEN["fp8", CUDA] == "torch-one-scale"
    products.CHOSEN.clear()
    assert arithmetic_note("8bit", CUDA, SMALL) == "Products in int8 by comfy-kitchen."
    forget()
