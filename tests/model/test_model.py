"""Batches, cameras, gradients, hooks and bad input of the model."""

import dataclasses
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from lingbot_world.errors import CameraError, InputError
from lingbot_world.model.layers.operations import Linear, TorchOperations
from lingbot_world.model.layers.rope import RopeScale, rope_table
from model_cases import SMALL, random_inputs, random_state, with_state
from torch.nn import functional as F

GRID = (3, 6, 8)


@pytest.fixture(scope="module")
def model():
    return with_state(SMALL, random_state(SMALL))


def estimate_releases(inputs, index):
    alone = {name: inputs[name][index : index + 1] for name in ("x", "timestep", "context")}
    return alone | {"camera": inputs["camera"]}


def test_rows_of_a_batch_do_not_meet(model):
    inputs = random_inputs(SMALL, 3, GRID)
    together = model(**inputs)
    alone = torch.cat([model(**estimate_releases(inputs, index)) for index in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_one_camera_serves_every_row(model):
    inputs = random_inputs(SMALL, 2, GRID)
    repeated = inputs | {"camera": inputs["camera"].repeat(2, 1, 1, 1, 1)}
    assert model.embed_camera(repeated["camera"]).tokens.shape[0] == 1
    assert torch.equal(model(**inputs), model(**repeated))


def test_each_row_may_have_its_own_camera(model):
    inputs = random_inputs(SMALL, 2, GRID)
    cameras = torch.cat([inputs["camera"], -inputs["camera"]])
    together = model(**inputs | {"camera": cameras})
    second = model(**estimate_releases(inputs, 1) | {"camera": cameras[1:]})
    torch.testing.assert_close(together[1:], second, atol=1e-5, rtol=0)
    assert not torch.allclose(together[1:], model(**inputs)[1:], atol=1e-3)


def test_a_prompt_may_be_longer_than_in_training(model):
    inputs = random_inputs(SMALL, 1, GRID)
    prompt = torch.randn(1, SMALL.text_len + 6, SMALL.text_dim)
    whole, cut = (model(**inputs | {"context": context}) for context in (prompt, prompt[:, : SMALL.text_len]))
    assert not torch.allclose(whole, cut, atol=1e-3)
    twice = model(**inputs | {"context": torch.cat([prompt[:, : SMALL.text_len]] * 2, dim=1)})
    torch.testing.assert_close(twice, cut, atol=1e-4, rtol=0)


def test_one_token_of_padding_counts_as_often_as_there_is_padding(model):
    inputs = random_inputs(SMALL, 2, GRID, text=7)
    padded = F.pad(inputs["context"], (0, 0, 0, SMALL.text_len - 7))
    torch.testing.assert_close(model(**inputs), model(**inputs | {"context": padded}), atol=2e-6, rtol=0)


def test_rope_positions_are_scaled_and_shifted():
    """With scale 2 and shift 4 the frames stand where every other frame of a longer video does, from its fifth on."""
    grid, device = (3, 2, 2), torch.device("cpu")
    scaled = rope_table(grid, 32, device, scale=RopeScale((2.0, 1.0, 1.0), (4.0, 0.0, 0.0)))
    whole = rope_table((10, 2, 2), 32, device)
    for part, table in zip(scaled, whole, strict=True):
        torch.testing.assert_close(part.unflatten(0, grid), table.unflatten(0, (-1, 2, 2))[4::2], atol=1e-6, rtol=0)


@pytest.mark.parametrize("frames", [1, 2])
def test_sizes_need_not_be_those_of_training(model, frames):
    grid = (frames, 2, 10)
    assert model(**random_inputs(SMALL, 1, grid)).shape == (1, 16, *grid)


def test_arguments_stay_as_they_are(model):
    inputs = random_inputs(SMALL, 2, GRID)
    before = {name: value.clone() for name, value in inputs.items()}
    model(**inputs)
    assert all(torch.equal(inputs[name], before[name]) for name in inputs)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_grad_mode_gives_the_same(model, mode):
    inputs = random_inputs(SMALL, 1, GRID)
    with torch.no_grad():
        want = model(**inputs)
    model.requires_grad_(True)
    with mode():
        got = model(**inputs)
    model.requires_grad_(False)
    assert not got.requires_grad
    assert torch.equal(got, want)


def test_a_hook_on_a_linear_layer_takes_part(model):
    inputs = random_inputs(SMALL, 1, GRID)
    want = model(**inputs)
    for layer in (model.blocks[0].self_attn.v, model.blocks[1].ffn[0], model.blocks[1].cam_scale_layer):
        hook = layer.register_forward_hook(lambda _layer, _inputs, out: out * 1.5)
        assert not torch.allclose(model(**inputs), want, atol=1e-3)
        hook.remove()
    assert torch.equal(model(**inputs), want)


def test_a_replaced_forward_takes_part(model):
    inputs = random_inputs(SMALL, 1, GRID)
    want, layer = model(**inputs), model.blocks[0].cross_attn.o
    original = layer.forward
    layer.forward = lambda x: original(x) + 0.1
    changed = model(**inputs)
    del layer.forward
    assert not torch.allclose(changed, want, atol=1e-3)
    assert torch.equal(model(**inputs), want)


def test_options_and_both_attentions_reach_the_host():
    seen = []

    def spy(kind):
        def attend(q, k, v, heads, options):
            seen.append((kind, q.shape[1], k.shape[1], heads, options["mark"]))
            return F.scaled_dot_product_attention(q, k, v)

        return attend

    model = with_state(SMALL, random_state(SMALL), attention=spy("self"), cross_attention=spy("cross"))
    model(**random_inputs(SMALL, 1, GRID), options={"mark": 7})
    assert seen == [("self", 36, 36, 2, 7), ("cross", 36, 24, 2, 7)] * SMALL.num_layers


def test_a_weight_is_prepared_once_for_all_rows():
    counts = Counter()

    class CountingLinear(Linear):
        def prepared(self, reference):
            counts[self] += 1
            return nullcontext(lambda x: F.linear(x, self.weight, self.bias))

    class Operations(TorchOperations):
        Linear = CountingLinear

    model = with_state(SMALL, random_state(SMALL), operations=Operations)
    model(**random_inputs(SMALL, 3, GRID))
    in_blocks = [layer for block in model.blocks for layer in block.modules() if isinstance(layer, CountingLinear)]
    assert {counts[layer] for layer in in_blocks} == {1}


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"x": torch.zeros(1, 16, *GRID)}, InputError, "36, frames"),
        ({"x": torch.zeros(1, 36, 3, 5, 8)}, InputError, "even height and width"),
        ({"x": torch.zeros(0, 36, *GRID)}, InputError, "36, frames"),
        ({"x": torch.zeros(1, 36, 0, 6, 8)}, InputError, "36, frames"),
        ({"x": torch.zeros(1, 36, 3, 0, 8)}, InputError, "36, frames"),
        ({"timestep": torch.zeros(2)}, InputError, r"timestep is \[2\]"),
        ({"context": torch.zeros(1, 8, 33)}, InputError, r"expected \[1, tokens, 32\]"),
        ({"camera": torch.zeros(1, 448, *GRID)}, CameraError, r"\[1, 448.*action.*384.*camera: ray origin"),
        ({"camera": torch.zeros(1, 100, *GRID)}, CameraError, r"\[1, 100.*takes \[batch, 384"),
        ({"camera": torch.zeros(1, 384, 3, 4, 8)}, CameraError, r"\[3, 4, 8\].*\[3, 6, 8\]"),
        ({"camera": torch.zeros(2, 384, *GRID)}, CameraError, "one camera"),
    ],
)
def test_input_that_does_not_fit(model, change, error, said):
    with pytest.raises(error, match=said):
        model(**random_inputs(SMALL, 1, GRID) | change)


def test_a_camera_needs_camera_layers():
    config = dataclasses.replace(SMALL, control=None)
    model = with_state(config, random_state(config))
    inputs = random_inputs(config, 1, GRID)
    assert model(**inputs).isfinite().all()
    with pytest.raises(CameraError, match="no camera layers"):
        model(**inputs | {"camera": torch.zeros(1, 384, *GRID)})


def test_an_action_model_takes_seven_values():
    config = dataclasses.replace(SMALL, control=7)
    model = with_state(config, random_state(config))
    inputs = random_inputs(config, 1, GRID)
    assert inputs["camera"].shape[1] == 448
    assert not torch.allclose(model(**inputs), model(**inputs | {"camera": None}), atol=1e-3)


def test_rope_beyond_1024_frames_and_by_the_book():
    cos, sin = rope_table((1100, 2, 3), 32, torch.device("cpu"))
    token = (1099 * 2 + 1) * 3 + 2
    widths = (12, 10, 10)
    angles = [
        place * 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        for place, width in zip((1099, 1, 2), widths, strict=True)
    ]
    angles = torch.cat(angles)
    torch.testing.assert_close(cos[token].double(), angles.cos(), atol=1e-7, rtol=0)
    torch.testing.assert_close(sin[token].double(), angles.sin(), atol=1e-7, rtol=0)
