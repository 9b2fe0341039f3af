"""Attention to prompts on GPUs that have our kernel for it: padding is looked at once. Here plain torch stands in."""

import pytest
import torch
from lingbot_world.model import dit
from lingbot_world.model.attention import exact as attention
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.forward import ForwardInputs
from model_cases import random_inputs, random_state, with_state

SMALL = ModelConfig(dim=64, ffn_dim=96, num_heads=4, num_layers=2, freq_dim=32, text_dim=24, text_len=48)
TOLERANCE = {"atol": 2e-6, "rtol": 0}
LENGTHS = [11, 20, 20, 11]
"""Of the two rows' prompts in the order in which the two blocks take them: the row that waits comes first."""


def attention_of_all(q, k, v, heads, options):
    """Not the engine's own: on a processor it would have one token stand for the padding already."""
    return attention.sdpa(q, k, v, heads, options)


@pytest.fixture
def model():
    return with_state(SMALL, random_state(SMALL), cross_attention=attention_of_all)


@pytest.fixture
def seen(monkeypatch):
    """The numbers of tokens that our kernel was told of."""
    told = []

    def by_plain_torch(q, k, v, heads, frame_mask=None, padding_start=None):  # noqa: ARG001
        missing = 0
        if padding_start is not None:
            told.append(int(padding_start))
            missing = max(0, len(k) - told[-1] - 1)
            k, v = (torch.cat([x[: len(x) - missing], torch.full_like(x[:missing], torch.nan)]) for x in (k, v))
        return attention.attend_to_padded(q, k[: len(k) - missing], v[: len(v) - missing], heads, missing)

    monkeypatch.setattr(attention, "_attend_by_ours", by_plain_torch)
    for module in (attention, dit):
        monkeypatch.setattr(module, "uses_our_kernel", lambda _q, _heads: True)
    return told


def padded_inputs():
    """Of two rows; the second prompt has zeros behind it."""
    inputs = random_inputs(SMALL, 2, (1, 4, 4), text=20)
    inputs["context"] = torch.randn(2, 20, 24)
    inputs["context"][1, 11:] = 0
    return inputs


def test_padding_is_looked_at_once_with_the_same_result(model, request):
    inputs = padded_inputs()
    want = model(**inputs)
    told = request.getfixturevalue("seen")
    torch.testing.assert_close(model(**inputs), want, **TOLERANCE)
    assert told == LENGTHS


@pytest.mark.parametrize("given", [0, 1, 48])
def test_prompts_that_are_empty_or_full(model, request, given):
    inputs = padded_inputs()
    inputs["context"] = torch.randn(1, 48, 24)
    inputs["context"][:, given:] = 0
    want = model(**inputs)
    told = request.getfixturevalue("seen")
    torch.testing.assert_close(model(**inputs), want, **TOLERANCE)
    assert told == 4 * [given]


def test_lengths_are_those_of_the_prompt_at_hand_and_cached_with_it(model, seen):
    inputs, options = padded_inputs(), {"camera_cache": CameraCache()}
    for _ in range(2):
        model(**inputs, options=options)
    assert seen == 2 * LENGTHS
    inputs["context"] = inputs["context"][:, :7]
    seen.clear()
    model(**inputs, options=options)
    assert seen == 2 * [7, 7]


def test_a_recording_reads_lengths_from_its_own_memory():
    tensors = [torch.zeros(2) for _ in range(7)]
    x, e, e0, context, cos, sin, lengths = tensors
    given = ForwardInputs(x, (e, e0), context, None, (cos, sin), lengths)
    copied = given.clone()
    assert len(copied.tensors) == len(tensors)
    assert not {each.data_ptr() for each in copied.tensors} & {each.data_ptr() for each in given.tensors}
    assert len(ForwardInputs(x, (e, e0), context, None, (cos, sin)).clone().tensors) == 6


def test_a_host_whose_blocks_are_not_alone_attends_to_all_tokens(model, seen, monkeypatch):
    """Its options stay its own."""
    monkeypatch.setattr(model, "stream_is_private", lambda _options: False)
    model(**padded_inputs())
    assert seen == []


class Begun:
    """A thread that is done at once."""

    def __init__(self, target, daemon):
        assert daemon
        self.start = target


def test_nothing_is_compiled_ahead_but_for_our_kernels_gpus(monkeypatch):
    asked = []
    monkeypatch.setattr(attention, "_compile", lambda: asked.append("compiled"))
    attention.compile_ahead(torch.device("cpu"))
    assert asked == []
    monkeypatch.setattr(attention, "_serves_ours", lambda _device: True)
    monkeypatch.setattr(attention, "Thread", Begun)
    attention.compile_ahead(torch.device("cpu"))
    assert asked == ["compiled"]
