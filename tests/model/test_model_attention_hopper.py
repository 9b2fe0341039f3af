"""Our own attention kernel for Hopper GPUs, in 8 bits and in bf16, against the same attention in plain torch."""

import pytest
import torch
from lingbot_world.model.attention import exact as attention
from lingbot_world.model.attention import fp8 as fp8_attention
from lingbot_world.model.attention.fp8_cudnn import cudnn_attention_fp8_qkv
from lingbot_world.model.attention.fp8_hopper import hopper_attention_fp8_qkv
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.kernels.hopper.attention import attend, transpose
from lingbot_world.model.ops import scatter as puts
from lingbot_world.model.ops.matrix_8bit import EightBit
from model_cases import random_inputs, random_state, with_state
from scaled_cases import FP8
from torch.nn import functional as F

GPU = "cuda"
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
ROUNDED = 0.0035
"""Relative RMS error of numerators and results that are rounded to bf16."""


def three_operands(queries, keys, heads, sharpness):
    """Queries, keys and values in 8 bits; what they are multiplied by makes some scores far larger than others."""
    q, k, v = (torch.randn(count, heads * 128, device=GPU) for count in (queries, keys, keys))
    return fp8_attention.to_operands(*(x[None].bfloat16() for x in (sharpness * q, sharpness * k, v + 1)))


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 2.5])
@pytest.mark.parametrize(
    ("queries", "keys", "heads"),
    [(1, 7, 1), (64, 159, 2), (193, 161, 1), (500, 5000, 3), (200, 30000, 2), (4000, 700, 12), (1600, 9000, 40)],
)
def test_our_kernel_attends_in_8_bits(queries, keys, heads, sharpness):
    q, k, v = three_operands(queries, keys, heads, sharpness)
    want = fp8_attention.plain_attention_fp8_qkv(q, k, v, heads, torch.float32)
    for got in (
        hopper_attention_fp8_qkv(q, k, v, heads, torch.bfloat16),
        hopper_attention_fp8_qkv(q, k, v, heads, FP8),
    ):
        got = got.values.float() * got.scales if isinstance(got, EightBit) else got
        off, rounded = want - v.scaling.mean, 0.004 if got.dtype == torch.bfloat16 else 0.04
        assert (got.float() - want).norm() < 0.05 * off.norm() + rounded * want.norm()
    again = hopper_attention_fp8_qkv(q, k, v, heads, torch.bfloat16)
    assert torch.equal(again, hopper_attention_fp8_qkv(q, k, v, heads, torch.bfloat16)), (
        "parts are added up in one order"
    )


def test_our_kernel_is_right_where_all_scores_are_negative():
    """Then the largest is not found by comparing integers."""
    q, k, v = three_operands(300, 2000, 2, 1.0)
    q.values.view(torch.uint8).bitwise_and_(0x7F)  # positive queries, negative keys
    k.values.view(torch.uint8).bitwise_or_(0x80)
    want = fp8_attention.plain_attention_fp8_qkv(q, k, v, 2, torch.float32)
    got = hopper_attention_fp8_qkv(q, k, v, 2, torch.float32)
    assert (got - want).norm() < 0.07 * (want - v.scaling.mean).norm() + 0.004 * want.norm()


@pytest.mark.parametrize("there", [1, 2, 5])
@pytest.mark.parametrize("frame", [40, 312, 1000])
def test_our_kernel_attends_to_the_frames_that_are_there(there, frame):
    q, k, v = three_operands(130, 5 * frame, 3, 1.5)
    k.values[there * frame :].view(torch.uint8).fill_(0x70)  # as large as can be
    frame_mask = torch.zeros(5, device=GPU)
    frame_mask[there:] = -torch.inf
    seen = [each._replace(values=each.values[: there * frame]) for each in (k, v)]
    want = fp8_attention.plain_attention_fp8_qkv(q, *seen, 3, torch.float32)
    got = hopper_attention_fp8_qkv(q, k, v, 3, torch.float32, frame_mask)
    assert (got - want).norm() < 0.05 * (want - v.scaling.mean).norm() + 0.004 * want.norm()


@pytest.mark.parametrize("aligned", [True, False])
def test_our_kernel_takes_values_as_a_cache_holds_them(caplog, aligned):
    q, k, v = three_operands(200, 1000, 4, 1.0)
    x = fp8_attention.decode(v, torch.bfloat16)
    tokens = torch.cat([torch.arange(333, device=GPU), 333 + torch.randperm(667, device=GPU)])
    held = torch.zeros(512, 1024, dtype=FP8, device=GPU)
    given = x[tokens] if aligned else torch.cat([x[tokens], x[:, :1]], dim=1)[:, :512]
    puts.scatter_transposed_(held, fp8_attention.transposed_columns(tokens), given, v.scaling.mean, v.scaling.factor)
    values = v._replace(values=held, transposed_tokens=1000)
    assert torch.equal(values.rows.view(torch.uint8), v.values.view(torch.uint8))
    assert torch.equal(transpose(v.values).view(torch.uint8), held.view(torch.uint8))
    assert torch.equal(*(hopper_attention_fp8_qkv(q, k, each, 4, torch.bfloat16) for each in (v, values)))
    assert "slower" not in caplog.text, "fell back to plain torch"


def test_our_kernel_is_closer_than_cudnns():
    """cuDNN's result is in 8 bits."""
    pytest.importorskip("cudnn")
    q, k, v = three_operands(1000, 6000, 4, 2.0)
    want = fp8_attention.plain_attention_fp8_qkv(q, k, v, 4, torch.float32)
    ours, cudnns = (attend(q, k, v, 4, torch.float32) for attend in (hopper_attention_fp8_qkv, cudnn_attention_fp8_qkv))
    assert (ours - want).norm() < 0.7 * (cudnns - want).norm()


@pytest.mark.parametrize(("queries", "keys", "heads"), [(200, 1000, 3), (4000, 700, 12), (77, 9001, 2)])
def test_our_kernel_gives_8_bits_with_one_scale_for_all_tokens(queries, keys, heads):
    """Where values know how large they can become. The scale is repeated, as a product takes one for each token."""
    q, k, v = three_operands(queries, keys, heads, 1.5)
    want = fp8_attention.plain_attention_fp8_qkv(q, k, v, heads, torch.float32)
    exact = hopper_attention_fp8_qkv(q, k, v, heads, torch.bfloat16).float()
    got = hopper_attention_fp8_qkv(q, k, v._replace(scaling=v.scaling.with_bound()), heads, FP8)
    assert (want.abs() <= v.scaling.with_bound().bound).all()
    assert (got.scales == got.scales[0]).all()
    assert (got.values.float() * got.scales - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("longest", [1.0, -1.0])
def test_scores_as_large_as_can_be(longest):
    """Of fp16: of queries and keys as long as they may be, along one direction or against it."""
    direction = torch.randn(2 * 128, device=GPU).sign()
    q, v = (1.375 * direction).repeat(200, 1).bfloat16(), torch.randn(1000, 2 * 128, device=GPU).bfloat16()
    k = direction * torch.linspace(-1.125, 1.125, 1000, device=GPU)[:, None] * longest
    q, k, v = fp8_attention.to_operands(q[None], k[None].bfloat16(), v[None])
    assert 50000 < (q.values.float() @ k.values.float().T).abs().max() / 2 < 65504
    want = fp8_attention.plain_attention_fp8_qkv(q, k, v, 2, torch.float32)
    assert error(hopper_attention_fp8_qkv(q, k, v, 2, torch.bfloat16), want) < 0.03


def exactly(q, k, v, heads):
    """Attention of [tokens, heads * 128] in fp32."""
    q, k, v = (x[None].float().unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    made = [F.scaled_dot_product_attention(part, k, v) for part in q.split(512, 2)]
    return torch.cat(made, 2)[0].transpose(0, 1).flatten(1)


def error(got, want):
    return ((got.float() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(
    ("queries", "keys", "heads"),
    [(1, 7, 1), (64, 80, 2), (193, 81, 1), (500, 5000, 3), (200, 30000, 2), (4000, 700, 12), (1600, 3000, 40)],
)
def test_our_kernel_attends_in_bf16(queries, keys, heads, sharpness):
    q, k, v = (torch.randn(count, heads * 128, device=GPU).bfloat16() for count in (queries, keys, keys))
    q *= sharpness
    got, want = attend(torch.empty_like(q), q, k, v, heads), exactly(q, k, v, heads)
    assert error(got, want) < ROUNDED
    assert torch.equal(got, attend(torch.empty_like(q), q, k, v, heads)), "parts are added up in one order"
    assert torch.equal(got, attend(q, q, k, v, heads)), "in place"


def test_our_kernel_takes_what_lies_apart():
    q, k, v = torch.randn(400, 9 * 128, device=GPU).bfloat16().chunk(3, dim=1)
    assert error(attention.sdpa(q[None], k[None], v[None], 3, {})[0], exactly(q, k, v, 3)) < ROUNDED


def test_rows_of_a_batch_are_attended_to_one_by_one():
    q, k, v = torch.randn(3, 2, 300, 256, device=GPU).bfloat16()
    for got, *row in zip(attention.sdpa(q, k, v, 2, {}), q, k, v, strict=True):
        assert error(got, exactly(*row, 2)) < ROUNDED


@pytest.mark.parametrize("padding_start", [0, 1, 79, 80, 81, 300, 511, 512])
def test_keys_that_are_all_the_same_are_looked_at_once(padding_start):
    q, k, v = (torch.randn(count, 256, device=GPU).bfloat16() for count in (700, 512, 512))
    k[padding_start:], v[padding_start:] = k[-1:].clone(), v[-1:].clone()
    want, count = exactly(q, k, v, 2), torch.tensor([padding_start], dtype=torch.int32, device=GPU)
    k[padding_start + 1 :] = v[padding_start + 1 :] = 1e4  # it would be seen
    got = attention.sdpa(q[None], k[None], v[None], 2, {"padding_start": count})[0]
    assert error(got, want) < ROUNDED


@pytest.mark.parametrize("there", [1, 2, 5])
def test_our_kernel_attends_in_bf16_to_the_frames_that_are_there(there):
    q, k, v = (torch.randn(count, 384, device=GPU).bfloat16() for count in (130, 1560, 1560))
    frame_mask = torch.zeros(5, device=GPU)
    frame_mask[there:] = -torch.inf
    got = attention.attend_to_frames(q, k, v, 3, frame_mask)
    assert error(got, exactly(q, k[: there * 312], v[: there * 312], 3)) < ROUNDED


def test_a_forward_passes_over_the_prompts_padding(monkeypatch):
    """Of two rows with prompts of different lengths. Behind the shorter one are zeros, as ComfyUI's nodes give it."""
    config = ModelConfig(dim=1024, ffn_dim=2816, num_heads=8, num_layers=3, freq_dim=256, text_dim=256, text_len=512)
    inputs = random_inputs(config, 2, (2, 12, 12))
    inputs["context"] = torch.randn(2, 40, 256)
    inputs["context"][1, 11:] = 0
    weights = {name: tensor.bfloat16() for name, tensor in random_state(config).items()}
    model, given = with_state(config, weights, torch.bfloat16).to(GPU), []
    want = with_state(config, weights)(**inputs)
    inputs = {name: value.to(GPU) for name, value in inputs.items()}
    assert attention.our_kernel_works(torch.device(GPU, torch.cuda.current_device()))  # which tries the kernel, once
    kernel = attention._attend_by_ours

    def told(*arguments, padding_start=None, **others):
        given.append(padding_start)
        return kernel(*arguments, padding_start=padding_start, **others)

    monkeypatch.setattr(attention, "_attend_by_ours", told)
    short = model(**inputs).cpu()
    # the row that comes last in a layer comes first in the next one
    assert [int(each) for each in given if each is not None] == [11, 40, 40, 11, 11, 40]
    monkeypatch.setattr(attention, "our_kernel_works", lambda _device: False)
    whole = model(**inputs).cpu()
    assert len(given) == 12
    assert error(short, want) < 1.1 * error(whole, want) < 0.02
