"""Weights in NVFP4 and MXFP8 that are multiplied in their own format."""

from contextlib import ExitStack

import pytest
import torch
from lingbot_world.model.choice import trials
from lingbot_world.model.choice.table import TABLE
from lingbot_world.model.choice.trials import KERNEL_FUNCTIONS, Size
from lingbot_world.model.layers.operations import Linear, prepared
from lingbot_world.model.ops.linear_8bit import EightBitLayer
from lingbot_world.model.quantized import own_format
from played_card import CUDA, PlayedCard, forget

CPU = torch.device("cpu")
FORMS = pytest.mark.parametrize("form", own_format.LAYOUTS)


@pytest.fixture(autouse=True)
def _kitchen():
    pytest.importorskip("comfy_kitchen.tensor")  # here, as this imports torch's compiler


@FORMS
def test_its_trial_takes_a_right_product_and_refuses_plain_code(form, monkeypatch):
    """The attempt itself multiplies on a card only; here comfy-kitchen would do it in plain torch."""
    (candidate,) = (each for each in TABLE if each.work == form)
    (tried,) = trials.try_all([candidate], CPU, Size(rows=37, dim=256, out=128), timed=False)
    assert tried.reason is not None
    assert "eager" in tried.reason or "No backend" in tried.reason or "support" in tried.reason, tried
    monkeypatch.setitem(
        KERNEL_FUNCTIONS,
        (form, candidate.name),
        lambda x, weight, bias: own_format.torch_multiply(x, weight, bias, x.dtype),
    )
    (tried,) = trials.try_all([candidate], CPU, Size(rows=37, dim=256, out=128), timed=False)
    assert tried.reason is None, tried
    assert own_format.WORST[form] / 4 < tried.error < own_format.WORST[form]


@FORMS
def test_a_layer_multiplies_in_its_weights_format_where_the_card_does(form, monkeypatch):
    x, weight, bias = own_format._random(form, CPU, Size(rows=37, dim=256, out=128))
    layer = Linear(256, 128, dtype=torch.bfloat16)
    layer.weight, layer.bias, layer.arithmetic = weight, torch.nn.Parameter(bias, requires_grad=False), "int8"
    kinds = []
    for asked, computes in ((True, True), (True, False), (False, True)):
        layer.own_format = asked
        monkeypatch.setattr(own_format, "_computes", lambda *_arguments, computes=computes: computes)
        with ExitStack() as stack:
            made = stack.enter_context(prepared(layer, x))
            kinds.append(type(made))
            want = own_format._exact(x, weight, bias)
            assert ((made(x).float() - want).norm() / want.norm()) < own_format.WORST[form]
    assert kinds == [own_format.OwnFormatLayer, EightBitLayer, EightBitLayer]


@pytest.mark.parametrize(
    ("capability", "why", "computes"), [((12, 0), None, True), ((12, 0), "wrong", False), ((8, 9), None, False)]
)
def test_only_cards_whose_trial_is_right_multiply_in_the_format(monkeypatch, capability, why, computes):
    PlayedCard(monkeypatch, *capability, why=why)
    own_format._computes.cache_clear()
    assert own_format._computes("nvfp4", CUDA) is computes
    assert not own_format._computes("nvfp4", CPU)
    own_format._computes.cache_clear()
    forget()
