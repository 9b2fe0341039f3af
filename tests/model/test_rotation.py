"""int8 products whose operands are rotated: comfy-kitchen's plain torch stands for its kernels here."""

from contextlib import nullcontext, suppress

import numpy as np
import pytest
import torch
from lingbot_world.model.attention import choose_8bit  # noqa: F401
from lingbot_world.model.choice import trials
from lingbot_world.model.choice.card import Card
from lingbot_world.model.choice.table import KITCHEN, TABLE
from lingbot_world.model.choice.trials import KERNEL_FUNCTIONS, KERNEL_TESTS, Size
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.layers.operations import Linear, joined, prepared
from lingbot_world.model.ops import linear_8bit, products_8bit
from lingbot_world.model.ops.linear_8bit import EightBitLayer
from lingbot_world.model.ops.pointwise import encode_8bit
from lingbot_world.model.ops.rotation import GROUP, Rotated, encode_rotated, rotate
from lingbot_world.model.quantized import codec
from lingbot_world.model.quantized.parameters import (
    BlockParameter,
    FourBitParameter,
    LayoutParameter,
    ScaledParameter,
    WideParameter,
    keep_together,
)
from lingbot_world.vae import convolutions  # noqa: F401
from model_cases import random_inputs, random_state, with_state
from test_model_accuracy import relative_rms
from torch.nn import functional as F

gguf = pytest.importorskip("gguf")
WIDTH = 2 * GROUP


@pytest.fixture(autouse=True)
def kitchen():
    return pytest.importorskip("comfy_kitchen")


@pytest.fixture
def by_kitchen(monkeypatch):
    """A device on which comfy-kitchen multiplies int8."""
    monkeypatch.setattr(linear_8bit, "_by_kitchen", lambda dtype, device: dtype == torch.int8)
    torch.manual_seed(0)


@pytest.fixture(params=["its kernel", "without it"])
def product(request, monkeypatch, kitchen):
    """comfy-kitchen's product, and ours where it has none."""
    if request.param == "its kernel":
        plain = kitchen.registry.get_implementation("int8_linear", backend="eager")
        found = kitchen.registry.get_capable_backend
        answer = {"int8_linear": "cuda"}
        monkeypatch.setattr(
            kitchen.registry, "get_capable_backend", lambda name, given=None: answer.get(name) or found(name, given)
        )
        monkeypatch.setattr(kitchen, "int8_linear", plain)


def with_outliers(rows):
    """Inputs of a layer in which one column in a hundred is 40 times as large, as in trained transformers."""
    x = torch.randn(rows, WIDTH)
    x[:, ::100] *= 40
    return x


def weights():
    """A weight in each class of parameter that is rotated."""
    plain = torch.randn(96, WIDTH)
    eight_bit = encode_8bit(plain, dtype=torch.int8)
    layout = pytest.importorskip("comfy_kitchen.tensor").TensorWiseINT8Layout
    values, params = layout.quantize(plain, per_channel=True, convrot=True, convrot_groupsize=GROUP)
    fields = {"scale": params.scale, "convrot": True, "convrot_groupsize": GROUP}
    return {
        "wide": WideParameter.of(plain),
        "scaled": ScaledParameter.of(*eight_bit),
        "rotated in its file": LayoutParameter.of(values, "TensorWiseINT8Layout", tuple(plain.shape), fields),
    }


def test_the_rotation_is_the_librarys_and_its_own_inverse(by_kitchen, kitchen):
    x = torch.randn(7, WIDTH)
    values, scales = kitchen.registry.get_implementation("quantize_int8_convrot_weight")(x, GROUP)
    assert torch.allclose(values * scales.view(-1, 1), rotate(x), atol=0.02)
    assert torch.allclose(rotate(rotate(x)), x, atol=1e-5)


def test_outliers_cost_less(by_kitchen, product):
    x, weight = with_outliers(50), torch.randn(96, WIDTH)
    want = F.linear(x, weight)
    plain, rotated = (EightBitLayer(encode(weight), None, x.dtype) for encode in (_in_int8, encode_rotated))
    assert relative_rms(rotated(x), want) < 0.012
    assert relative_rms(plain(x), want) > 2 * relative_rms(rotated(x), want)


@pytest.mark.parametrize(("old", "capability"), [(False, (8, 6)), (True, (8, 6)), (False, (7, 5))])
def test_gelu_is_applied_as_an_input_is_quantized(by_kitchen, product, kitchen, monkeypatch, old, capability):
    """Old versions of comfy-kitchen cannot get GELU(x), and on Turing a copy of x would hold it."""
    monkeypatch.setattr(products_8bit, "card_of", lambda device: Card("nvidia", "A Card", capability))
    x, weight, bias = torch.randn(50, WIDTH), torch.randn(96, WIDTH), torch.randn(96)
    want, plain = F.linear(F.gelu(x, approximate="tanh"), weight, bias), kitchen.int8_linear
    if old:

        def int8_linear(x, weight, weight_scale, bias, out_dtype, convrot, convrot_groupsize):
            return plain(x, weight, weight_scale, bias, out_dtype, convrot, convrot_groupsize)

        monkeypatch.setattr(kitchen, "int8_linear", int8_linear)
    products_8bit.kitchen_takes_gelu.cache_clear()
    layer = EightBitLayer(encode_rotated(weight), bias, x.dtype).after_gelu()
    assert layer.applies_gelu == (not old and capability > (7, 5))
    assert relative_rms(layer(linear_8bit.activated(x, "gelu", layer)), want) < 0.012
    products_8bit.kitchen_takes_gelu.cache_clear()


@pytest.mark.parametrize("up", ["bf16", "int8"])
def test_a_feed_forward_applies_gelu_once(by_kitchen, product, up):
    """Also where only its second layer multiplies in 8 bits, as with a LoRA of the first."""
    config = ModelConfig(dim=GROUP, ffn_dim=WIDTH, num_heads=2, num_layers=2, freq_dim=64, text_dim=64, text_len=8)
    inputs, model = random_inputs(config, 1, (2, 4, 4)), with_state(config, random_state(config))
    want = model(**inputs)
    for block in model.blocks:
        block.ffn[0].arithmetic, block.ffn[2].arithmetic = up, "int8"
    assert 0 < relative_rms(model(**inputs), want) < 0.01


def _in_int8(weight):
    return encode_8bit(weight, dtype=torch.int8)


@pytest.mark.parametrize("kind", ["wide", "scaled", "rotated in its file"])
def test_every_parameter_is_rotated_in_its_layer(by_kitchen, product, kind):
    parameter = weights()[kind]
    layer, x = Linear(WIDTH, 96, device="meta"), with_outliers(50)
    layer.weight, layer.bias = parameter, torch.nn.Parameter(torch.randn(96), requires_grad=False)
    layer.arithmetic = "int8"
    want = F.linear(x, parameter.decode(torch.float32), layer.bias)
    with prepared(layer, x) as function:
        assert isinstance(function, EightBitLayer)
        assert function.input_dtype is None
        assert relative_rms(function(x), want) < 0.012


def test_a_weight_that_its_file_rotates_is_taken_as_it_is(by_kitchen):
    parameter = weights()["rotated in its file"]
    made = parameter.recode(torch.int8, True)
    assert isinstance(made, Rotated)
    assert made.values.data_ptr() == parameter.data_ptr()
    assert not isinstance(parameter.recode(torch.int8), Rotated)


def test_4_bit_weights_are_recoded_as_they_are(by_kitchen):
    packed, scales = codec.encode(torch.randn(96, WIDTH))
    blocks = torch.from_numpy(gguf.quantize(np.ones((96, WIDTH), np.float32), gguf.GGMLQuantizationType.Q8_0))
    for weight in (
        FourBitParameter.of(packed, scales, (96, WIDTH)),
        BlockParameter.of(blocks.view(torch.uint8), "Q8_0", (96, WIDTH)),
    ):
        made = weight.recode(torch.int8, True)
        assert not isinstance(made, Rotated)
        assert torch.equal(made.values, weight.recode(torch.int8).values)


def test_weights_that_are_kept_together_stay_rotated(by_kitchen):
    parameters, x = [WideParameter.of(torch.randn(32, WIDTH)) for _ in range(3)], torch.randn(5, WIDTH)
    keep_together(*parameters)
    biases = torch.zeros(96).chunk(3)
    rotated, plain = (
        [
            EightBitLayer(each.recode(torch.int8, form), bias, x.dtype)
            for each, bias in zip(parameters, biases, strict=True)
        ]
        for form in (True, False)
    )
    whole = joined(*rotated)
    assert torch.equal(whole(x), torch.cat([layer(x) for layer in rotated], dim=-1))
    want = F.linear(x, torch.cat([each.data for each in parameters]))
    assert relative_rms(whole(x), want) < 0.015
    assert relative_rms(joined(*plain)(x), want) < 0.015


def test_a_width_that_the_kernel_cannot_rotate_stays(by_kitchen):
    assert linear_8bit.rotates(WIDTH, torch.int8, torch.device("cuda", 0))
    assert not linear_8bit.rotates(WIDTH + 64, torch.int8, torch.device("cuda", 0))
    assert not linear_8bit.rotates(WIDTH, torch.float8_e4m3fn, torch.device("cuda", 0))


@pytest.mark.parametrize("work", [work for work, name in KERNEL_FUNCTIONS if name == KITCHEN])
def test_comfy_kitchen_runs_on_the_gpu_of_its_operands(work, monkeypatch):
    """It launches its kernels on the current GPU, which may be another one than that of its operands."""
    arguments, seen = KERNEL_TESTS[work].make(torch.device("cpu"), Size()), []
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: nullcontext(seen.append(x)))
    with suppress(Exception):  # on a CPU it has no kernel
        KERNEL_FUNCTIONS[work, KITCHEN](*arguments)
    assert seen[0] is arguments[0]


@pytest.mark.parametrize("old", [True, False])
def test_torch_multiplies_where_comfy_kitchen_cannot_rotate(monkeypatch, kitchen, old):
    """Its versions before 0.2.20 have no rotation."""
    if old:
        monkeypatch.setattr(kitchen.registry, "get_implementation", lambda *_names, **_given: {}["no such function"])
    found = [each for each in TABLE if each.work == "int8"]
    by_kitchen, by_torch = trials.try_all(found, torch.device("cpu"), Size(), timed=False)
    assert by_torch.reason is None
    assert ("cannot rotate int8 weights; update comfy-kitchen" in by_kitchen.reason) == old
