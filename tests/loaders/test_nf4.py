"""The 4-bit layouts against bitsandbytes' own output and against torch's ways of calling a weight."""

import json
import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lingbot_world.errors import DependencyError
from lingbot_world.model.layers.operations import TorchOperations
from lingbot_world.model.quantized import codec, parameters
from safetensors.torch import load_file

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
VARIANTS = ("bf16_bs64_dq_ragged_37x50", "fp16_bs64_dq_48x64", "fp32_bs64_nodq_24x128")


def components_of(tensors, name):
    return {key.removeprefix(f"{name}.weight"): tensors[key] for key in tensors if key.startswith(f"{name}.weight")}


def four_bit_tensor(packed, scales, shape, state_dtype, dtype, quant_type="nf4"):
    return parameters.load_layouts().four_bit_tensor(
        packed,
        scales,
        tuple(shape),
        quant_type,
        state_dtype=state_dtype,
        dtype=dtype,
        standard_code=torch.equal(scales.code, torch.tensor(codec.CODES[quant_type])),
    )


def read_weight(tensors, name, dtype):
    found = components_of(tensors, name)
    state = json.loads(bytes(found[".quant_state.bitsandbytes__nf4"].numpy()))
    offset = torch.tensor(state["nested_offset"]) if "nested_offset" in state else None
    scales = codec.Scales(
        found[".absmax"],
        found[".quant_map"],
        found.get(".nested_absmax"),
        found.get(".nested_quant_map"),
        offset,
        state["blocksize"],
        state.get("nested_blocksize", 256),
    )
    return four_bit_tensor(found[""], scales, state["shape"], getattr(torch, state["dtype"]), dtype)


def quantized(shape=(48, 128), dtype=torch.bfloat16, declared=None, **kwargs):
    original = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    packed, scales = codec.encode(original, **kwargs)
    return four_bit_tensor(packed, scales, shape, dtype, declared or dtype, kwargs.get("quant_type", "nf4"))


@pytest.fixture
def without_bitsandbytes(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    layouts = parameters.load_layouts()
    layouts.bitsandbytes_functional.cache_clear()
    yield
    layouts.bitsandbytes_functional.cache_clear()


@pytest.mark.parametrize("expert", ["high", "low"])
def test_decodes_the_golden_weights_to_the_bit(golden, expert):
    tensors = load_file(golden / f"nf4/{expert}_noise_model_bnb_nf4/model.safetensors")
    expected = np.load(golden / "nf4/expected.npz")
    keys = [key for key in expected if key.startswith(f"{expert}/weight_")]
    assert keys
    for key in keys:
        _, kind, name = key.split("/")
        dtype = torch.float32 if kind == "weight_fp32" else torch.bfloat16
        weight = read_weight(tensors, name.removesuffix("[:8]"), dtype)
        rows = slice(8) if name.endswith("[:8]") else slice(None)
        for value in (weight.dequantize(), codec.decode(weight._qdata, weight._params.scales, weight.shape, dtype)):
            assert np.array_equal(value[rows].float().numpy(), expected[key]), key


@pytest.mark.parametrize("name", VARIANTS)
def test_decodes_other_shapes_dtypes_and_single_quantization(golden, name):
    tensors = load_file(golden / "nf4/single_layer_variants.safetensors")
    expected = np.load(golden / "nf4/single_layer_variants_expected.npz")
    weight = read_weight(tensors, name, torch.float32)
    assert np.array_equal(weight.dequantize().numpy(), expected[f"{name}/dequant_fp32"])


@pytest.mark.parametrize("name", VARIANTS)
def test_encodes_to_the_bytes_that_bitsandbytes_wrote(golden, name):
    tensors = load_file(golden / "nf4/single_layer_variants.safetensors")
    original = np.load(golden / "nf4/single_layer_variants_expected.npz")[f"{name}/original"]
    dtype = read_weight(tensors, name, torch.float32)._params.state_dtype
    packed, scales = codec.encode(torch.from_numpy(original).to(dtype), nested="_dq_" in name)
    written = {"": packed, **codec.components(scales, original.shape, "nf4", dtype)}
    stored = components_of(tensors, name)
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[key], stored[key]) for key in stored)


@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nested", [True, False])
def test_agrees_with_bitsandbytes_on_fresh_weights(quant_type, dtype, nested):
    functional = pytest.importorskip("bitsandbytes.functional")
    original = torch.randn((64, 192), generator=torch.Generator().manual_seed(1)).to(dtype)
    packed, state = functional.quantize_4bit(original, quant_type=quant_type, compress_statistics=nested)
    outer = (state.state2.absmax, state.state2.code, state.offset) if nested else (None, None, None)
    scales = codec.Scales(state.absmax, state.code, *outer, 64, 256)
    expected = functional.dequantize_4bit(packed, state)
    assert torch.equal(codec.decode(packed, scales, (64, 192), dtype), expected)
    weight = four_bit_tensor(packed, scales, (64, 192), dtype, dtype, quant_type)
    assert weight._layout_cls == parameters.load_layouts().NATIVE
    assert torch.equal(weight.dequantize(), expected)
    assert torch.equal(codec.encode(original, 64, nested, quant_type)[0], packed)


@pytest.mark.parametrize("in_features", [80, 96])
def test_rows_that_are_not_whole_blocks_are_decoded_without_bitsandbytes(in_features):
    weight = quantized((48, in_features), torch.float32)
    assert weight._layout_cls == parameters.load_layouts().PLAIN
    table = torch.tensor(codec.NF4_CODE)
    nibbles = torch.stack((weight._qdata >> 4, weight._qdata & 15), 1).view(-1).long()
    blocks = weight._params.scales.block_scales().repeat_interleave(64)[: nibbles.numel()]
    assert torch.equal(weight.dequantize(), (table[nibbles] * blocks).view(48, in_features))


def test_a_table_of_its_own_is_followed_not_bitsandbytes_built_in_one():
    weight = quantized((8, 64), torch.float32)
    scales = weight._params.scales
    scales = scales._replace(code=scales.code * 0.5)
    other = four_bit_tensor(weight._qdata, scales, (8, 64), torch.float32, torch.float32)
    assert torch.equal(other.dequantize(), weight.dequantize() * 0.5)


def test_large_weights_are_decoded_in_steps_to_the_same_values(monkeypatch):
    weight = quantized((37, 50), torch.bfloat16)
    whole = weight.dequantize()
    monkeypatch.setattr(codec, "_DECODED_AT_A_TIME", 128)
    assert torch.equal(weight.dequantize(), whole)


def grad_modes():
    return {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
@pytest.mark.parametrize("layout", ["native", "plain"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("declared", DTYPES)
def test_linear_follows_the_input_whatever_dtype_the_weight_declares(mode, layout, bias, declared):
    weight = quantized((48, 128 if layout == "native" else 80), torch.bfloat16, declared)
    exact = codec.decode(weight._qdata, weight._params.scales, weight.shape, torch.float32)
    with grad_modes()[mode]():
        for dtype in (torch.float32, torch.bfloat16):
            offset = torch.ones(48, dtype=dtype) if bias else None
            for lead in ((5,), (2, 3), ()):
                x = torch.randn(*lead, weight.shape[1]).to(dtype)
                y = F.linear(x, weight, offset)
                assert y.dtype == dtype
                torch.testing.assert_close(y, F.linear(x, exact.to(dtype), offset))


def test_transpose_matmul_and_their_inverse():
    weight = quantized((48, 128), torch.float32)
    full, x = weight.dequantize(), torch.randn(3, 48)
    assert weight.t().shape == (128, 48)
    assert torch.equal(weight.t().dequantize(), full.t())
    assert torch.equal(weight.t().t().dequantize(), full)
    torch.testing.assert_close(x @ weight, x @ full)
    torch.testing.assert_close(torch.randn(2, 4, 128) @ weight.t() * 0, torch.zeros(2, 4, 48))


def test_casting_changes_the_declared_dtype_and_rounds_once():
    weight = quantized((48, 128), torch.bfloat16)
    wide = weight.to(torch.float32)
    assert (weight.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    assert wide._qdata.dtype == torch.uint8
    assert torch.equal(wide.to(torch.bfloat16).dequantize(), weight.dequantize())
    assert not torch.equal(wide.dequantize(), weight.dequantize().float())
    assert weight.to("cpu", torch.float64).dequantize().dtype == torch.float64


def test_clone_detach_and_state_dict_keep_every_component():
    weight = quantized((48, 128))
    state = weight.state_dict("w")
    parts = ["absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state.bitsandbytes__nf4"]
    assert set(state) == {"w", *(f"w.{part}" for part in parts)}
    for copy in (weight.clone(), weight.detach()):
        assert torch.equal(copy.dequantize(), weight.dequantize())
        assert all(torch.equal(copy.state_dict("w")[key], value) for key, value in state.items())
    assert weight.clone()._qdata.data_ptr() != weight._qdata.data_ptr()


def test_a_frozen_parameter_shares_every_byte_and_can_be_assigned():
    weight = quantized((48, 128))
    parameter = parameters.frozen_parameter(weight)
    assert parameter._qdata.data_ptr() == weight._qdata.data_ptr()
    assert parameter._params.scale.data_ptr() == weight._params.scale.data_ptr()
    layer = TorchOperations.Linear(128, 48, bias=False, device="meta").requires_grad_(False)
    layer.load_state_dict({"weight": parameter}, assign=True)
    assert layer.weight._params.scale.data_ptr() == weight._params.scale.data_ptr()
    torch.testing.assert_close(layer(torch.ones(1, 128)), weight.dequantize().float().sum(1)[None], rtol=2e-2, atol=0.5)


def test_requantizing_its_own_values_gives_the_same_weight():
    weight = quantized((48, 128), torch.float32)
    again = weight.requantize_from_float(weight.dequantize())
    assert again._layout_cls == weight._layout_cls
    assert torch.equal(again._qdata, weight._qdata)


def test_without_bitsandbytes_it_says_so_once_and_decodes_the_same(without_bitsandbytes, caplog):
    weight = quantized((48, 128))
    quantized((48, 128))
    assert weight._layout_cls == parameters.load_layouts().PLAIN
    assert weight.dequantize().shape == (48, 128)
    assert math.isfinite(weight.dequantize().float().sum())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert sys.executable in caplog.text


def test_a_missing_package_names_the_interpreter_and_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "comfy_kitchen.tensor", None)
    with pytest.raises(DependencyError, match="pip install --upgrade comfy-kitchen") as caught:
        parameters.load_layouts()
    assert sys.executable in str(caught.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "blocksize", "nested"),
    [
        ((512, 1024), 64, True),
        ((48, 96), 64, True),
        ((100, 80), 64, True),
        ((256, 512), 128, False),
        ((33, 1), 64, True),
    ],
)
def test_the_gpu_kernel_gives_the_bits_of_plain_torch(shape, blocksize, nested, dtype):
    from lingbot_world.model.kernels import weights_4bit as kernels

    packed, scales = codec.encode(torch.randn(shape) * 0.02, blocksize, nested)
    scales = codec.Scales(*(part.to(device="cuda") if isinstance(part, torch.Tensor) else part for part in scales))
    packed = packed.to(device="cuda")
    assert torch.equal(kernels.decode_4bit(packed, scales, shape, dtype), codec.decode(packed, scales, shape, dtype))
