"""What only a GPU can show: the Triton kernels, the choice of attention kernel, and peak memory against the formula."""

import pytest
import torch
from block_cases import blocks
from lingbot_world.errors import InputError
from lingbot_world.loaders import load_expert
from lingbot_world.model.attention import choose_8bit as eight_bit_attention
from lingbot_world.model.attention import exact as attention
from lingbot_world.model.attention import fp8 as fp8_attention
from lingbot_world.model.attention.splitting import MIN_KEYS_TO_SPLIT_TAIL
from lingbot_world.model.choice.card import card_of
from lingbot_world.model.choice.table import candidates
from lingbot_world.model.choice.trials import Size
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.graphs.capture import on_recording_stream
from lingbot_world.model.layers.operations import ExactLayer, _product_then_gelu
from lingbot_world.model.memory import activation_bytes
from lingbot_world.model.ops import linear_8bit as eight_bit
from lingbot_world.model.ops import pointwise, products_8bit
from lingbot_world.model.ops import scatter as puts
from lingbot_world.model.ops.implementation import implementation
from lingbot_world.model.ops.matrix_8bit import EightBit
from lingbot_world.model.ops.plain import NormRope
from lingbot_world.model.ops.pointwise import encode_8bit, layer_norm_8bit
from lingbot_world.model.ops.products_8bit import plain_product
from lingbot_world.model.quantized import codec, ggml
from lingbot_world.model.quantized.parameters import BlockParameter, FourBitParameter
from lingbot_world.options import Precision
from model_cases import random_inputs, random_state, with_state
from pointwise_cases import NAMES, check
from scaled_cases import E5M2, FP8, INT8, quantized, save
from scaled_cases import NAMES as SCALED

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = "cuda"
MIDDLING = ModelConfig(dim=1024, ffn_dim=2816, num_heads=8, num_layers=3, freq_dim=256, text_dim=256, text_len=64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [96, 1024, 5120])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_triton(name, dim, dtype, caplog):
    pytest.importorskip("triton")
    tolerance = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    for tokens in (1, 777):
        check(implementation(name, GPU, "triton"), name, tokens, dim, dtype, GPU, tolerance)
    assert "slower" not in caplog.text, "fell back to eager"


@pytest.mark.parametrize("tokens", [900, MIN_KEYS_TO_SPLIT_TAIL + 120])
def test_attention_is_exact_and_remembers_its_kernel(tokens):
    q, k, v = (torch.randn(1, tokens, 1024, device=GPU, dtype=torch.bfloat16) for _ in range(3))
    got = attention.sdpa(q, k, v, 8, {})
    heads = [t.double().unflatten(-1, (8, -1)).transpose(1, 2) for t in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    assert (got.double() - want).abs().max() < 1e-2
    assert got.is_contiguous()


@pytest.fixture(scope="module")
def state():
    return random_state(MIDDLING)


def on_gpu(state, dtype):
    model = with_state(MIDDLING, {name: t.bfloat16() for name, t in state.items()}, dtype)
    return model.to(GPU)


def test_gpu_agrees_with_cpu(state):
    inputs = random_inputs(MIDDLING, 2, (2, 12, 12))
    want = with_state(MIDDLING, {name: t.bfloat16() for name, t in state.items()})(**inputs)
    inputs = {name: value.to(GPU) for name, value in inputs.items()}
    for dtype, tolerance in ((torch.float32, 2e-3), (torch.bfloat16, 1e-2)):
        got = on_gpu(state, dtype)(**inputs).cpu()
        assert (got - want).square().mean().sqrt() / want.square().mean().sqrt() < tolerance


@pytest.mark.parametrize("dtype", [FP8, E5M2, INT8])
@pytest.mark.parametrize("arithmetic", ["bf16", "fp8", "int8"])
def test_8_bit_files_are_decoded_to_the_cpus_bits_and_streamed(state, tmp_path, dtype, arithmetic):
    tensors, layers = quantized(state, dtype)
    file = save(tmp_path / "x.safetensors", tensors, {layer: {"format": SCALED[dtype]} for layer in layers})
    cpu, gpu, streamed = (
        load_expert(file, device, arithmetic=arithmetic, resident_blocks=blocks)
        for device, blocks in (("cpu", None), (GPU, None), (GPU, 1))
    )
    for name in (f"{layer}.weight" for layer in layers):
        ours, theirs = (model.get_parameter(name).decode(torch.bfloat16) for model in (gpu, cpu))
        assert torch.equal(ours.cpu(), theirs), name
    inputs = {name: value.to(GPU) for name, value in random_inputs(MIDDLING, 1, (2, 12, 12)).items()}
    with torch.inference_mode():
        assert torch.equal(streamed(**inputs), gpu(**inputs))


def test_bf16_stays_close_to_fp32_through_forty_blocks():
    """With enough tokens for the last keys to be attended to apart."""
    config = ModelConfig(dim=256, ffn_dim=512, num_heads=2, num_layers=40, freq_dim=64, text_dim=64, text_len=32)
    weights = {name: t.bfloat16() for name, t in random_state(config).items()}
    inputs = {name: value.to(GPU) for name, value in random_inputs(config, 2, (9, 64, 62)).items()}
    want, got = (with_state(config, weights, dtype).to(GPU)(**inputs) for dtype in (torch.float32, torch.bfloat16))
    assert (got - want).square().mean().sqrt() / want.square().mean().sqrt() < 7e-3


def peak_of_a_second_forward(model, grid):
    """Bytes over what was held before it."""
    inputs = {name: value.to(GPU) for name, value in random_inputs(MIDDLING, 2, grid).items()}
    model(**inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model(**inputs)
    return torch.cuda.max_memory_allocated() - before


def test_peak_memory_is_within_ten_percent_of_the_formula(state):
    grid = (12, 64, 64)
    model = on_gpu(state, torch.bfloat16)
    measured = peak_of_a_second_forward(model, grid)
    formula = activation_bytes(MIDDLING, *grid)
    assert 0.9 * formula < measured < 1.1 * formula, (measured, formula)


def needs(arithmetic):
    if not candidates(arithmetic, card_of(torch.device(GPU))):
        pytest.skip(f"needs a GPU that multiplies {arithmetic}")


def same_8bit(got, want, most=2e-3):
    """The scales agree. So do the values, but for the few, at `most`, that lie between two neighbours of 8 bits."""
    assert isinstance(got, EightBit)
    assert torch.allclose(got.scales, want.scales, rtol=1e-5)
    assert (got.values.view(torch.uint8) != want.values.view(torch.uint8)).float().mean() < most
    size = want.values.float().abs().amax()
    assert (got.values.float() - want.values.float()).abs().max() <= size / 14


@pytest.fixture
def in_plain_torch(monkeypatch):
    """Runs a function with pointwise's plain forms."""

    def run(function, *arguments, **settings):
        with monkeypatch.context() as patch:
            patch.setattr(
                "lingbot_world.model.ops.implementation.implementation",
                lambda name, device: implementation(name, device, "eager"),
            )
            return function(*arguments, **settings)

    return run


@pytest.mark.parametrize("arithmetic", eight_bit.DTYPES)
@pytest.mark.parametrize("dim", [96, 5120, 13824])
def test_triton_in_8_bits(in_plain_torch, caplog, arithmetic, dim):
    pytest.importorskip("triton")
    needs(arithmetic)
    dtype, x = eight_bit.DTYPES[arithmetic], torch.randn(77, dim, device=GPU)
    for activation in ("none", "gelu", "silu"):
        for values in (x, x.bfloat16()):
            settings = {"dtype": dtype, "activation": activation}
            same_8bit(encode_8bit(values, **settings), in_plain_torch(encode_8bit, values, **settings))
    norm = x, 1 + torch.randn(dim, device=GPU), torch.randn(dim, device=GPU), 1e-6, dtype
    same_8bit(layer_norm_8bit(*norm), in_plain_torch(layer_norm_8bit, *norm))
    assert "slower" not in caplog.text, "fell back to plain torch"


@pytest.mark.parametrize("arithmetic", eight_bit.DTYPES)
@pytest.mark.parametrize("width", [64, 5120, 13824])
@pytest.mark.parametrize("settings", [{}, {"nested": False}, {"search": True}, {"quant_type": "fp4", "blocksize": 128}])
def test_triton_recodes_4_bits_as_plain_torch_does(caplog, arithmetic, width, settings):
    pytest.importorskip("triton")
    needs(arithmetic)
    width += width % settings.get("blocksize", 64)
    dtype, weight = eight_bit.DTYPES[arithmetic], torch.randn(77, width, device=GPU) / 30
    packed, scales = codec.encode(weight, **settings)
    fp4 = "quant_type" in settings  # half of its largest number is 63.5 of int8, between two neighbours
    same_8bit(
        FourBitParameter.of(packed, scales, weight.shape).recode(dtype),
        codec.recode(packed, scales, tuple(weight.shape), dtype),
        2e-2 if fp4 else 2e-3,
    )
    assert "slower" not in caplog.text, "fell back to plain torch"


@pytest.mark.parametrize("kind", ggml.BLOCKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_triton_decodes_blocks_to_the_bits_of_plain_torch(caplog, kind, dtype):
    pytest.importorskip("triton")
    for shape in ((5120, 13824), (77, 2816), (8, 32)):
        shape = (shape[0], max(shape[1], ggml.BLOCKS[kind].values))
        packed = torch.from_numpy(blocks(kind, shape[0] * shape[1]))
        got = BlockParameter.of(packed.to(GPU), kind, shape).decode(dtype)
        assert torch.equal(got.cpu(), ggml.decode(packed, kind, shape, dtype))
    assert "slower" not in caplog.text, "fell back to plain torch"


@pytest.mark.parametrize("arithmetic", eight_bit.DTYPES)
@pytest.mark.parametrize("tokens", [1, 40, 9000])
def test_8_bit_products(caplog, arithmetic, tokens):
    needs(arithmetic)
    dtype = eight_bit.DTYPES[arithmetic]
    x, weight = (encode_8bit(torch.randn(rows, 1024, device=GPU), dtype=dtype) for rows in (tokens, 2816))
    bias = torch.randn(2816, device=GPU, dtype=torch.bfloat16)
    for with_bias in (bias, None):
        got = eight_bit.product(x, weight, with_bias, torch.bfloat16)
        want = plain_product(x, weight, with_bias, torch.float32)
        assert ((got.float() - want).norm() / want.norm()) < 4e-3
    assert "slower" not in caplog.text, "fell back to plain torch"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 40, 1508])
def test_gelu_in_a_products_kernel_rounds_less(caplog, tokens, dtype):
    x, weight, bias = (torch.randn(size, device=GPU).to(dtype) for size in ((tokens, 1024), (2816, 1024), 2816))
    weight /= 16
    for with_bias in (bias, None):
        got = ExactLayer(weight, with_bias).gelu(x)
        products = torch.nn.functional.linear(x.double(), weight.double(), None if with_bias is None else bias.double())
        want, apart = torch.nn.functional.gelu(products, approximate="tanh"), _product_then_gelu(x, weight, with_bias)
        assert (got - want).norm() <= (apart - want).norm() < 4e-3 * want.norm()
        assert torch.equal(got, apart) == (with_bias is None or dtype == torch.float32)
    assert "slower" not in caplog.text, "fell back to plain torch"


@pytest.mark.parametrize("arithmetic", eight_bit.DTYPES)
def test_a_forward_in_8_bits_agrees_with_the_cpu(state, arithmetic):
    needs(arithmetic)
    inputs, grid = random_inputs(MIDDLING, 2, (2, 12, 12)), (12, 64, 64)
    weights = {name: t.bfloat16() for name, t in state.items()}
    exact, model = with_state(MIDDLING, weights), on_gpu(state, torch.bfloat16)
    want = exact(**inputs)
    model.set_arithmetic(arithmetic)
    got = model(**{name: value.to(GPU) for name, value in inputs.items()}).cpu()
    assert 1e-3 < (got - want).norm() / want.norm() < 6e-2
    formula = activation_bytes(MIDDLING, *grid, Precision(torch.bfloat16, arithmetic))
    assert peak_of_a_second_forward(model, grid) < 1.1 * formula


@pytest.mark.parametrize("dim", [96, 5120])
@pytest.mark.parametrize("largest", [1e-20, 0.1, 448.0])
def test_triton_finds_the_scale_of_fp8(caplog, dim, largest):
    pytest.importorskip("triton")
    x, mean = torch.randn(777, dim, device=GPU).bfloat16(), torch.randn(dim, device=GPU)
    x *= largest / (x - mean).abs().max()
    for given, shift in ((x, mean * 0), (x[::3], mean), (x * 0, mean * 0)):
        assert fp8_attention._scale(given, shift, 4.0) == fp8_attention.plain_scale(given, shift, 4.0)
    assert "slower" not in caplog.text, "fell back to plain torch"


@pytest.mark.parametrize("dim", [96, 5120])
def test_triton_in_and_out_of_fp8(in_plain_torch, caplog, dim):
    pytest.importorskip("triton")
    needs("fp8")
    x, shift, factor = (torch.randn(*size, device=GPU) for size in ((777, dim), (dim,), (1,)))
    factor[:] = 200
    for given in (x, x.bfloat16()):
        got, want = torch.empty(2, *x.shape, device=GPU, dtype=torch.float8_e4m3fn)
        pointwise.to_fp8_(got, given, shift, factor)
        in_plain_torch(pointwise.to_fp8_, want, given, shift, factor)
        assert (got.view(torch.uint8) != want.view(torch.uint8)).float().mean() < 2e-3
        assert want.float().abs().max() == 448
        back = pointwise.from_fp8_(torch.empty_like(given), want, shift, 1 / factor)
        plain = in_plain_torch(pointwise.from_fp8_, torch.empty_like(given), want, shift, 1 / factor)
        torch.testing.assert_close(back, plain, atol=1e-6 if given is x else 4e-2, rtol=0)
    assert "slower" not in caplog.text, "fell back to plain torch"


def in_steps(x, added, affine, *norm):
    """`add_norm` by the kernels that it stands for."""
    if added[0] is not None:
        pointwise.gated_add_(x, *added)
    if affine[0] is not None:
        pointwise.affine_(x, *affine)
    return (layer_norm_8bit if norm[-1] in eight_bit.DTYPES.values() else pointwise.layer_norm)(x, *norm)


@pytest.mark.parametrize("dim", [96, 1536, 5120])
def test_several_kernels_in_one(caplog, dim):
    """The stream has the bits of the kernels that it stands for; a norm adds its channels up in another order."""
    pytest.importorskip("triton")
    needs("fp8")
    x, (gate, weight, bias) = torch.randn(777, dim, device=GPU), torch.randn(3, dim, device=GPU)
    y, scale, shift = torch.randn(3, 777, dim, device=GPU).bfloat16()
    for added, affine in (((y, gate), (scale, shift)), ((y, None), (None, None)), ((None, None), (scale, shift))):
        for dtype in (torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8):
            streams = x.clone(), x.clone()
            got, want = (
                make(stream, added, affine, weight, bias, 1e-6, dtype)
                for make, stream in zip((pointwise.add_norm, in_steps), streams, strict=True)
            )
            assert torch.equal(*streams)
            same_8bit(got, want, 5e-3) if isinstance(got, EightBit) else torch.testing.assert_close(got, want)
    assert "slower" not in caplog.text, "fell back to plain torch"


@pytest.mark.parametrize("dim", [256, 1536, 5120])
def test_keys_and_queries_are_normed_and_turned_where_they_go(in_plain_torch, caplog, dim):
    """Rows lie apart, as a product of several layers leaves them."""
    pytest.importorskip("triton")
    needs("fp8")
    angles, rows = torch.randn(777, 64, device=GPU), torch.randperm(2000, device=GPU)[:777]
    norm_rope = NormRope(torch.randn(dim, device=GPU).bfloat16(), angles.cos(), angles.sin(), 1e-6)
    x, shift = torch.randn(777, 3 * dim, device=GPU).bfloat16(), torch.randn(dim, device=GPU)
    given = lambda: puts.BeforeRope(x.clone()[:, dim : 2 * dim], norm_rope)  # noqa: E731
    out = torch.zeros(2, 2000, dim, device=GPU, dtype=torch.bfloat16)
    puts.scatter_rope_(out[0], rows, given())
    puts.scatter_(out[1], rows, given().apply_rope_())
    torch.testing.assert_close(*out)
    for scaling in ((shift, torch.full((1,), 16.0, device=GPU)), (None, None)):
        if scaling[0] is None:
            got, *scales = puts.rope_fp8(given())
            want, *others = in_plain_torch(puts.rope_fp8, given())
            assert scales == others
        else:
            got, want = torch.zeros(2, 2000, dim, device=GPU).to(torch.float8_e4m3fn)
            puts.scatter_rope_(got, rows, given(), scaling)
            in_plain_torch(puts.scatter_rope_, want, rows, given(), scaling)
        assert (got.float() - want.float()).norm() < 0.03 * want.float().norm()
        assert (got.view(torch.uint8) != want.view(torch.uint8)).float().mean() < 0.08  # there bf16 comes first
    assert "slower" not in caplog.text, "fell back to plain torch"


def nearly_all_alike(got, want):
    """In 8 bits. A norm that adds its channels up in another order comes to the other side of a half now and then."""
    assert (got.view(torch.uint8) != want.view(torch.uint8)).float().mean() < 1e-4
    assert (got.float() - want.float()).norm() < 1e-3 * want.float().norm()


@pytest.mark.parametrize("dim", [256, 1536, 5120])
def test_a_chunks_own_queries_keys_and_values_go_where_they_belong_at_once(caplog, dim):
    """In one kernel as in three."""
    pytest.importorskip("triton")
    needs("fp8")
    angles, rows = torch.randn(777, 64, device=GPU), torch.randperm(2000, device=GPU)[:777]
    norm_ropes = [NormRope(torch.randn(dim, device=GPU), angles.cos(), angles.sin(), 1e-6) for _ in range(2)]
    x, scalings = torch.randn(777, 3 * dim, device=GPU).bfloat16(), []
    for _ in range(2):
        scalings.append((torch.randn(dim, device=GPU), torch.full((1,), 16.0, device=GPU)))

    def given():
        q, k, v = x.clone().chunk(3, dim=1)
        return puts.BeforeRope(q, norm_ropes[0]), puts.BeforeRope(k, norm_ropes[1]), v

    out = torch.zeros(2, 2, 2000, dim, device=GPU).bfloat16()
    q, k, v = given()
    made = puts.scatter_qkv_((out[0, 0], out[0, 1]), rows, (q, k, v))
    assert made.data_ptr() == q.x.data_ptr()
    q, k, v = given()
    torch.testing.assert_close(made, q.apply_rope_())
    puts.scatter_rope_(out[1, 0], rows, k)
    puts.scatter_(out[1, 1], rows, v)
    torch.testing.assert_close(*out[:, 0])
    assert torch.equal(*out[:, 1])
    out = torch.zeros(2, 2, 2000, dim, device=GPU).to(FP8)
    for values in (out[0, 1], None):
        made = puts.scatter_qkv_((out[0, 0], values), rows, given(), tuple(scalings))
    q, k, v = given()
    (got, *scales), (want, *others) = made, puts.rope_fp8(q)
    assert scales == others
    nearly_all_alike(got, want)
    puts.scatter_rope_(out[1, 0], rows, k, scalings[0])
    puts.scatter_fp8_(out[1, 1], rows, v, *scalings[1])
    nearly_all_alike(*out[:, 0])
    assert torch.equal(*out[:, 1].float())
    assert "slower" not in caplog.text, "fell back to plain torch"


@pytest.mark.parametrize("heads", [12, 40])
def test_results_of_attention_in_8_bits_are_merged_as_plain_torch_does(in_plain_torch, caplog, heads):
    pytest.importorskip("triton")
    needs("fp8")
    parts, rest = (torch.randn(count, 300, heads, 128, device=GPU).to(torch.float8_e4m3fn) for count in (3, 1))
    sums, rest_sums = (4 * torch.randn(count, heads, 300, device=GPU) for count in (3, 1))
    scaling = torch.randn(heads * 128, device=GPU), torch.ones(1, device=GPU) / 2
    like = torch.empty(300, heads * 128, device=GPU)
    for given in ((parts, *scaling, sums, (rest, rest_sums)), (parts, *scaling, sums), (rest, *scaling)):
        for dtype in (torch.float32, torch.float8_e4m3fn):
            got = pointwise.merge_fp8_(pointwise.empty_rows(like, dtype), *given)
            want = in_plain_torch(pointwise.merge_fp8_, pointwise.empty_rows(like, dtype), *given)
            if not isinstance(got, EightBit):
                torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)
            elif len(given) == 3:
                same_8bit(got, want)
            else:  # bf16 between
                one, other = (each.values.float() * each.scales for each in (got, want))
                assert (one - other).norm() < 0.03 * other.norm()
    assert "slower" not in caplog.text, "fell back to plain torch"


@pytest.fixture
def kernel():
    """The kernel of attention in 8 bits that this card and what is installed allow."""
    try:
        return eight_bit_attention.find_kernel(torch.device(GPU), 128)
    except InputError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("queries", "keys"), [(900, 900), (77, 2000), (8312, 8312)])
def test_attention_in_8_bits_is_that_of_its_operands(kernel, caplog, queries, keys):
    """Of keys with large channels. The kernel adds a softmax and a result in 8 bits."""
    q, k, v = (torch.randn(1, count, 1024, device=GPU).bfloat16() for count in (queries, keys, keys))
    k += 20 * torch.randn_like(k[:, :1]) * (torch.rand_like(k[:, :1]) < 0.1)
    kept = k.clone(), v.clone()
    exact, plain = attention.sdpa(q, k, v, 8, {}).float(), fp8_attention.plain_attention(q, k, v, 8).float()
    got = eight_bit_attention.attend_8bit(q.clone(), k, v, 8, {}).float()
    assert (got - exact).norm() / exact.norm() < 0.09
    assert (got - plain).norm() / exact.norm() < 0.07
    assert all(map(torch.equal, kept, (k, v)))
    assert "slower" not in caplog.text, "fell back to plain torch"


def test_a_kernel_that_fails_is_replaced_by_exact_attention_of_its_operands(kernel, monkeypatch, caplog):
    def broken(q, k, v, heads):
        raise RuntimeError("no plan")

    monkeypatch.setattr(eight_bit_attention, "find_kernel", lambda device, head_dim: kernel._replace(attend=broken))
    q, k, v = torch.randn(3, 1, 300, 256, device=GPU).bfloat16()
    got = eight_bit_attention.attend_8bit(q.clone(), k, v, 2, {})
    assert torch.equal(got, fp8_attention.plain_attention(q, k, v, 2))
    assert "slower: no plan" in caplog.text


@pytest.mark.parametrize("arithmetic", ["bf16", "fp8"])
def test_a_forward_with_attention_in_8_bits_agrees_with_the_cpu(kernel, state, arithmetic):
    inputs, grid = random_inputs(MIDDLING, 2, (2, 12, 12)), (12, 64, 64)
    weights = {name: t.bfloat16() for name, t in state.items()}
    want, model = with_state(MIDDLING, weights)(**inputs), on_gpu(state, torch.bfloat16)
    model.set_arithmetic(arithmetic)
    exact = model(**{name: value.to(GPU) for name, value in inputs.items()}).cpu()
    model.set_attention("8bit")
    got = model(**{name: value.to(GPU) for name, value in inputs.items()}).cpu()
    assert 1e-3 < (got - want).norm() / want.norm() < 6e-2
    assert 1e-3 < (got - exact).norm() / want.norm() < 5e-2
    formula = activation_bytes(MIDDLING, *grid, Precision(torch.bfloat16, arithmetic, "8bit"))
    assert peak_of_a_second_forward(model, grid) < 1.3 * formula  # small models: at full size it is 1.00


def test_no_other_work_gets_the_stream_of_recordings():
    """Torch hands out its streams again and again. A recording would include what another thread queues on its own."""
    with on_recording_stream(torch.ones(1, device=GPU)):
        recording = torch.cuda.current_stream()
    assert recording not in [torch.cuda.Stream() for _ in range(64)]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_comfy_kitchen_multiplies_on_another_than_the_current_gpu(caplog):
    pytest.importorskip("comfy_kitchen")
    x, weight, bias, rotated = products_8bit._random_int8(torch.device("cuda", 1), Size())
    got = products_8bit.kitchen_or_torch(x, rotated, bias, torch.bfloat16)
    want = products_8bit._exact_product(x, weight, bias)
    assert (got.float() - want).norm() / want.norm() < 0.02
    assert "plain torch" not in caplog.text
