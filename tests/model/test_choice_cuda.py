"""The table's candidates on a GPU: those that the card has are right, replay rightly, and serve a model."""

from functools import partial

import pytest
import torch
from lingbot_world.doctor.recordings import replays_correctly
from lingbot_world.model.attention.choose_8bit import KERNELS
from lingbot_world.model.choice.card import card_of
from lingbot_world.model.choice.table import KITCHEN, WORKS, candidates, missing
from lingbot_world.model.choice.trials import KERNEL_TESTS, Size, try_all
from lingbot_world.model.ops import linear_8bit
from lingbot_world.model.ops.linear_8bit import EightBitLayer
from lingbot_world.model.ops.pointwise import encode_8bit
from lingbot_world.model.ops.rotation import encode_rotated
from lingbot_world.model.quantized.parameters import WideParameter
from lingbot_world.vae import convolutions  # noqa: F401
from torch.nn import functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("work", WORKS)
def test_every_candidate_of_the_card_is_right(work):
    if work not in KERNEL_TESTS:
        pytest.skip("its candidates are tried with other work")
    for candidate in candidates(work, card_of(GPU)):
        if missing(candidate.name, card_of(GPU)) is None:
            (trial,) = try_all([candidate], GPU, Size(), timed=False)
            assert trial.reason is None, trial


@pytest.fixture
def kitchen():
    if why := missing(KITCHEN, card_of(GPU)):
        pytest.skip(why)


@pytest.mark.parametrize("encode", [partial(encode_8bit, dtype=torch.int8), encode_rotated], ids=["plain", "rotated"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_of_int8_by_comfy_kitchen_agrees_with_torchs_and_replays(kitchen, monkeypatch, caplog, encode, dtype):
    monkeypatch.setitem(linear_8bit.CHOSEN, ("int8", GPU), KITCHEN)
    torch.manual_seed(0)
    weight, bias = torch.randn(1536, 512, device=GPU).to(dtype), torch.randn(1536, device=GPU).to(dtype)
    x = torch.randn(300, 512, device=GPU).to(dtype)
    layer = EightBitLayer(encode(weight), bias, dtype)
    assert layer.input_dtype is None
    want = F.linear(x.float(), weight.float(), bias.float())
    assert (layer(x).float() - want).norm() / want.norm() < 0.02
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(out.clone(), layer(x))
    assert "slower" not in caplog.text


def test_outliers_cost_a_rotated_layer_little(kitchen, monkeypatch):
    monkeypatch.setitem(linear_8bit.CHOSEN, ("int8", GPU), KITCHEN)
    torch.manual_seed(0)
    plain, x = torch.randn(5120, 5120, device=GPU).bfloat16(), torch.randn(2000, 5120, device=GPU).bfloat16()
    x[:, ::100] *= 40
    weight, want = WideParameter.of(plain), F.linear(x.float(), plain.float())
    unrotated, rotated = (
        EightBitLayer(weight.recode(torch.int8, each), None, x.dtype)(x).float() for each in (False, True)
    )
    assert (rotated - want).norm() / want.norm() < 0.013
    assert (unrotated - want).norm() > 2 * (rotated - want).norm()


@pytest.mark.parametrize("columns", [1536, 8960, 13824])
def test_gelu_is_applied_as_comfy_kitchen_quantizes(kitchen, monkeypatch, caplog, columns):
    """At the widths of both models' feed-forwards, and of a block."""
    monkeypatch.setitem(linear_8bit.CHOSEN, ("int8", GPU), KITCHEN)
    torch.manual_seed(0)
    weight, bias = torch.randn(512, columns, device=GPU).bfloat16(), torch.randn(512, device=GPU).bfloat16()
    x = torch.randn(300, columns, device=GPU).bfloat16()
    layer = EightBitLayer(encode_rotated(weight), bias, x.dtype)
    of_gelu = layer.after_gelu()
    assert of_gelu.applies_gelu
    want = F.linear(F.gelu(x.float(), approximate="tanh"), weight.float(), bias.float())
    got = of_gelu(linear_8bit.activated(x, "gelu", of_gelu))
    apart = layer(F.gelu(x, approximate="tanh"))
    assert (got.float() - want).norm() / want.norm() < 0.02
    assert (got.float() - apart.float()).norm() / want.norm() < 0.02
    assert "slower" not in caplog.text


def test_attention_in_8_bits_by_comfy_kitchen_may_be_recorded(kitchen):
    assert replays_correctly(KERNELS[KITCHEN].attend, GPU)


def test_a_function_on_another_stream_may_not_be_recorded():
    """As SageAttention 2 launches. Reading its result waits for nothing here, so the capture does not fail."""
    other = torch.cuda.Stream(GPU)

    def attend(q, k, v, heads):
        out = torch.zeros_like(q)
        if not torch.cuda.is_current_stream_capturing():
            other.wait_stream(torch.cuda.current_stream(GPU))
            with torch.cuda.stream(other):
                out.copy_(q)
            other.synchronize()
        return out

    assert not replays_correctly(attend, GPU)
