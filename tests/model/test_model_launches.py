"""What a GPU is asked for in a block of a causal model, in order: each name is one kernel there."""

from dataclasses import replace

import pytest
import torch
from lingbot_world.loaders import load_expert
from lingbot_world.loaders.load import _keep_decoded
from lingbot_world.model import dit
from lingbot_world.model.attention.exact import sdpa
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.kv.cache import KeyValueCache
from lingbot_world.model.kv.place import KeyValuePlace
from lingbot_world.model.layers import attention as attention_layers
from lingbot_world.model.layers import operations
from lingbot_world.model.layers.operations import joined, prepared_layers
from lingbot_world.model.layers.residual import Residual, deferred_first, residuals
from lingbot_world.model.ops import linear_8bit, pointwise
from lingbot_world.model.ops.linear_8bit import EightBitLayer
from lingbot_world.model.ops.matrix_8bit import EightBit
from lingbot_world.model.ops.pointwise import encode_8bit
from lingbot_world.model.quantized import codec
from lingbot_world.model.quantized.parameters import FourBitParameter, WideParameter, keep_together
from lingbot_world.options import Window
from model_cases import SMALL, random_inputs, random_state, with_state
from safetensors.torch import save_file

CONFIG = replace(SMALL, causal=True)
AROUND_ATTENTION = ["attention", "linear", "add_norm_"]
EXACT = [
    "modulated",
    "layer_norm",
    "linear",
    "scatter_qkv_",
    *AROUND_ATTENTION,
    "linear",
    "rms_norm_",
    *AROUND_ATTENTION,
    "linear",
    "gelu_",
    "linear",
]
IN_8_BITS = [
    "modulated",
    "layer_norm_8bit_",
    "linear",
    "scatter_qkv_",
    *AROUND_ATTENTION,
    "linear",
    "rms_norm_",
    "attention",
    "encode_8bit_",
    "linear",
    "add_norm_",
    "linear",
    "encode_8bit_",
    "linear",
]


@pytest.fixture
def launched(monkeypatch):
    """The names so far, and a function that makes a function tell its own; what it calls itself tells nothing."""
    names = []

    def telling(function, name=None):
        def run(*given, **more):
            names.append(name or given[0])
            count = len(names)
            try:
                return function(*given, **more)
            finally:
                del names[count:]

        return run

    for module, kernel, name in (
        (pointwise, "run", None),
        (operations, "gelu_", "gelu_"),
        (linear_8bit, "product", "linear"),
        (torch.nn.functional, "linear", "linear"),
        (attention_layers, "attend_fp8", "attention"),
    ):
        monkeypatch.setattr(module, kernel, telling(getattr(module, kernel), name))
    return names, telling


@pytest.mark.parametrize(("arithmetic", "attention", "wanted"), [("bf16", "exact", EXACT), ("fp8", "8bit", IN_8_BITS)])
def test_the_kernels_of_a_block(launched, monkeypatch, arithmetic, attention, wanted):
    names, telling = launched
    model = with_state(CONFIG, random_state(CONFIG), attention=telling(sdpa, "attention"))
    for each in model.blocks:
        put_side_by_side(each)  # as a loaded model has them
        _keep_decoded(each, wide=arithmetic == "fp8")
    model.set_arithmetic(arithmetic)
    model.set_attention(attention)
    place, by_block, run = KeyValuePlace(fp8=attention == "8bit"), [], model.run_block
    history = KeyValueCache(CONFIG, 16, Window(6), device="cpu", dtype=torch.float32, place=place)
    inputs, options = random_inputs(CONFIG, 1, (3, 8, 8)), {"kv_cache": history, "camera_cache": CameraCache()}

    def run_block(*given):
        names.clear()
        out = run(*given)
        by_block.append(list(names))
        return out

    monkeypatch.setattr(model, "run_block", run_block)
    history.begin()
    for history.keep in (False, True, False):  # the first fills what is cached, the clean one says the scales
        by_block.clear()
        model(**inputs, options=options)
    later = ["add_norm_" if "layer_norm" in name else name for name in wanted]  # with what the block before has added
    assert by_block == [wanted] + [later] * (CONFIG.num_layers - 1)


def test_weights_of_two_shapes_cannot_share_memory():
    """The second one would overwrite a part of the first."""
    weights = [FourBitParameter.of(*codec.encode(torch.randn(rows, 64)), (rows, 64)) for rows in (32, 16)]
    keep_together(*weights)
    weights[0].decode(torch.float32)
    with pytest.raises(ValueError, match=r"\[16, 64\] cannot share memory"):
        weights[1].decode(torch.float32)


def test_weights_that_are_kept_together_are_one_layers():
    torch.manual_seed(0)
    weights, bias, x = [WideParameter.of(torch.randn(32, 16)) for _ in range(3)], torch.randn(96), torch.randn(5, 16)
    keep_together(*weights)
    kinds = torch.float8_e4m3fn, torch.int8
    for kind in kinds:
        made = [weight.recode(kind) for weight in weights]
        layers = [EightBitLayer(each, own, torch.float32) for each, own in zip(made, bias.chunk(3), strict=True)]
        whole = joined(*layers)
        assert torch.equal(whole(x), torch.cat([layer(x) for layer in layers], dim=1))
        for weight, each in zip(weights, made, strict=True):
            own = encode_8bit(weight.data, dtype=kind)
            assert torch.equal(each.values.float(), own.values.float())
            assert torch.equal(each.scales, own.scales)
        assert joined(*layers[1:])(x).shape == (5, 64)
        assert joined(*layers[::-1]) is None, "in another order"
        assert joined(layers[0], torch.nn.Identity()) is None
        alone = EightBitLayer(encode_8bit(weights[1].data, dtype=kind), bias[32:64], torch.float32)
        assert joined(layers[0], alone) is None, "elsewhere"


def put_side_by_side(block):
    for name in ("weight", "bias"):
        together = torch.cat([getattr(layer, name).data for layer in block.joint_layers]).chunk(3)
        for layer, parameter in zip(block.joint_layers, together, strict=True):
            setattr(layer, name, torch.nn.Parameter(parameter))


@pytest.mark.parametrize("four_bits", [False, True])
def test_exact_weights_are_one_layers_too(four_bits):
    """Where they lie side by side; and those of 4 bits whose decoded weights are kept."""
    model = with_state(CONFIG, random_state(CONFIG))
    block, x = model.blocks[0], torch.randn(5, CONFIG.dim)
    if four_bits:
        for layer in block.joint_layers:
            layer.weight = FourBitParameter.of(*codec.encode(layer.weight.data), layer.weight.shape)
    want = torch.cat([layer(x) for layer in block.joint_layers], dim=1)
    with prepared_layers(x, *block.joint_layers) as layers:
        assert joined(*layers) is None, "each lies for itself"
    _keep_decoded(block, wide=False) if four_bits else put_side_by_side(block)
    for _ in range(2):
        with prepared_layers(x, *block.joint_layers) as layers:
            torch.testing.assert_close(joined(*layers)(x), want)
            assert joined(layers[0], layers[2]) is None


def test_an_uploaded_model_has_these_weights_side_by_side(tmp_path):
    save_file(random_state(replace(CONFIG, dim=128, num_heads=1)), tmp_path / "model.safetensors")
    model = load_expert(tmp_path / "model.safetensors", dtype=torch.float32, copy=True)
    for block in model.blocks:
        with prepared_layers(torch.zeros(1), *block.joint_layers) as layers:
            assert joined(*layers) is not None


@pytest.mark.parametrize("eight_bit", [False, True])
def test_what_waits_for_a_norm_is_what_would_have_been_added(eight_bit):
    torch.manual_seed(0)
    x, y, scale, shift = torch.randn(4, 9, 32)
    gate, weight, bias = torch.randn(3, 32)
    layer = EightBitLayer(encode_8bit(torch.randn(8, 32), dtype=torch.int8), None, torch.float32)
    made = []
    for waits in ("always", "never"):
        row, out = Residual(x.clone(), waits), []
        for step in range(4):
            row.add(y, gate if step % 2 else None)
            if step:
                row.scale_and_shift(scale, shift)
            if step > 1:
                row.scale_and_shift(shift, scale)
            if step < 3:
                normed = row.normed(weight, bias, 1e-6, torch.float32, *([layer] if eight_bit else []))
                out += normed if isinstance(normed, EightBit) else [normed]
        part = row.part(slice(0, 9))
        assert part is row
        assert (row.part(slice(0, 4)).settle() == row.settle()[:4]).all()
        made.append([*out, row.settle()])
    assert all(map(torch.equal, *made))


def test_a_row_that_waits_comes_first_and_nothing_is_kept_while_another_computes():
    rows, norm, orders = residuals(torch.randn(2, 9, 32)), (torch.ones(32), torch.zeros(32), 1e-6, torch.float32), []
    for _ in range(4):
        orders.append([])
        for row, number in deferred_first(rows, range(2)):
            orders[-1].append(number)
            row.normed(*norm)
            assert not any(each.waiting for each in rows)
            row.add(torch.randn(9, 32))
        assert [row.waiting for row in rows] == [number == orders[-1][-1] for number in range(2)]
    assert orders == [[0, 1], [1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("arithmetic", "attention", "apart"), [("bf16", "exact", 3), ("fp8", "exact", 3), ("fp8", "8bit", 0)]
)
def test_two_rows_have_the_bits_of_sums_that_do_not_wait(launched, monkeypatch, arithmetic, attention, apart):
    """In exact attention one row's sums wait, in 8 bits both. The camera's scale and shift always do."""
    names, _ = launched
    model, inputs = with_state(SMALL, random_state(SMALL)), random_inputs(SMALL, 2, (2, 8, 8))
    model.set_arithmetic(arithmetic)
    model.set_attention(attention)
    got = model(**inputs)
    settled_at_last = 1 if attention == "exact" else 2
    assert names.count("gated_add_") == apart * SMALL.num_layers + settled_at_last
    assert "affine_" not in names
    monkeypatch.setattr(dit, "residuals", lambda x, _: [Residual(row, "never") for row in x])
    assert torch.equal(model(**inputs), got)
    assert names.count("affine_") == 2 * SMALL.num_layers
