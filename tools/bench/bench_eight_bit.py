"""Parts of bench_gpu.py that look at 8 bits alone: products by shape, attention, and what makes their operands."""

import traceback
from collections.abc import Callable
from functools import partial
from itertools import product
from unittest import mock

import torch
from bench_kernels import TOKENS
from bench_report import Report, timed
from lingbot_world.model.attention import choose_8bit as eight_bit_attention
from lingbot_world.model.attention import exact as attention
from lingbot_world.model.attention import fp8 as fp8_attention
from lingbot_world.model.attention import fp8_cudnn
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.ops import linear_8bit as eight_bit
from lingbot_world.model.ops import pointwise
from lingbot_world.model.ops.matrix_8bit import EightBit
from lingbot_world.model.ops.products_8bit import plain_product
from lingbot_world.model.quantized import codec
from lingbot_world.model.quantized.parameters import FourBitParameter
from lingbot_world.options import AttentionMode
from torch.nn import functional as F

REPEATS = 5


def bench_eight_bit(report: Report, config: ModelConfig) -> None:
    """Each part; what fails is told, and the others go on."""
    dim, ffn_dim = config.dim, config.ffn_dim
    parts: list[Callable[[], None]] = [
        partial(_products, report, TOKENS, *sides) for sides in ((dim, dim), (dim, ffn_dim), (ffn_dim, dim))
    ]
    parts += [partial(_products, report, 4680, dim, dim)]
    for arithmetic, dtype in eight_bit.DTYPES.items():
        parts += [partial(_weights, report, arithmetic, dtype, *sides) for sides in ((dim, dim), (dim, ffn_dim))]
        parts += [partial(_activations, report, arithmetic, dtype, config)]
    for part in parts:
        try:
            part()
        except Exception:
            traceback.print_exc()
        torch.cuda.empty_cache()


def bench_attention(report: Report, config: ModelConfig) -> None:
    """Self-attention of one row: exact, in 8 bits with all that belongs to it, and its parts. Tokens are those of a
    video, of a causal chunk with 18 latent frames, and of one of four processes; keys have large channels."""
    for queries, keys, heads in ((TOKENS, TOKENS, 40), (4680, 28080, 40), (4680, 4680, 40), (TOKENS, TOKENS, 10)):
        q, k, v = (
            torch.randn(1, count, heads * config.head_dim, device="cuda").bfloat16() for count in (queries, keys, keys)
        )
        k += 4 * torch.randn_like(k[:, :1]) * (torch.rand_like(k[:, :1]) < 0.1)
        v += torch.randn_like(v[:, :1])
        name, work = f"attention of {queries} to {keys} tokens, {heads} heads", 4 * queries * keys * k.shape[-1]
        want = attention.sdpa(q, k, v, heads, {})
        _add(report, f"{name}, exact", partial(attention.sdpa, q, k, v, heads, {}), work)
        plain = fp8_attention.plain_attention(q, k, v, heads)
        for kernel in eight_bit_attention.KERNELS:
            try:
                attend = partial(_attend_to_copy, kernel.attend, q, k, v, heads)
                _add(report, f"{name}, {kernel.package}", attend, work, want, plain)
            except Exception:
                traceback.print_exc()
        if fp8_cudnn.padding(keys):
            with mock.patch.object(fp8_attention, "padding", return_value=0):
                attend = partial(_attend_to_copy, fp8_cudnn.cudnn_attention, q, k, v, heads)
                _add(report, f"{name}, cuDNN without added keys", attend, work, want, plain)
        _add(report, f"{name}, a copy of q", q.clone, work)
        _add(report, f"{name}, operands in 8 bits", partial(fp8_attention.operands, q, k, v), work)
        torch.cuda.empty_cache()


def _attend_to_copy(attend: Callable, q: torch.Tensor, *others) -> torch.Tensor:
    """q may be overwritten."""
    return attend(q.clone(), *others)


def bench_error(
    report: Report, model: LingBotWorldModel, inputs: dict, attentions: tuple[AttentionMode, ...] = ("exact",)
) -> None:
    """How far a forward is from that of the model's own bf16 weights, some of whose channels are twenty times as large:
    with the blocks' weights in NF4, plain and searched, and in 8-bit arithmetic and attention on top."""
    model.set_arithmetic("auto")
    for name, parameter in model.blocks.named_parameters():
        if name.endswith(("modulation", "norm3.weight", "ffn.0.bias")):
            channels = torch.randperm(parameter.shape[-1], generator=torch.Generator().manual_seed(0))
            parameter.data[..., channels[: parameter.shape[-1] // 640].to(parameter.device)] *= 20
    want = model(**inputs)
    layers = [layer for layer in model.blocks.modules() if isinstance(layer, torch.nn.Linear)]
    weights = [layer.weight for layer in layers]
    for search in (False, True):
        name, alone = "NF4, searched scales" if search else "NF4", None
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight = FourBitParameter.of(*codec.encode(weight, search=search), tuple(weight.shape))
        for attention_mode, arithmetic in product(attentions, ("bf16", *eight_bit.DTYPES)):
            model.set_attention(attention_mode)
            model.set_arithmetic(arithmetic)
            error = _error(model(**inputs), want)
            alone = alone or error
            case = f"{arithmetic}, {attention_mode} attention"
            report.add(f"whole model, {name}, {case}", error, "", f"{error / alone:.3f} of NF4 alone")


def _products(report: Report, tokens: int, width: int, out_width: int) -> None:
    """A bf16 product, then the same with 8-bit operands that are there, and with an input that is put into 8 bits."""
    x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(out_width, width, device="cuda", dtype=torch.bfloat16) / width**0.5
    bias = torch.randn(out_width, device="cuda", dtype=torch.bfloat16)
    want = F.linear(x, weight, bias)
    name, work = f"product {tokens} x {width} x {out_width}", 2 * tokens * width * out_width
    _add(report, f"{name}, bf16", lambda: F.linear(x, weight, bias), work, want, want)
    for arithmetic, dtype in eight_bit.DTYPES.items():
        rows, quantized = (pointwise.encode_8bit(t, dtype=dtype) for t in (x, weight))
        layer = eight_bit.EightBitLayer(quantized, bias, torch.bfloat16)
        plain = plain_product(rows, quantized, bias, torch.bfloat16)
        _add(report, f"{name}, {arithmetic}", partial(layer, rows), work, want, plain)
        _add(report, f"{name}, {arithmetic}, input put into 8 bits", partial(layer, x), work, want, plain)
        if arithmetic == "int8":
            sums = partial(torch._int_mm, rows.values, quantized.values.t())
            _add(report, f"{name}, int8, whole sums alone", sums, work)
        else:
            exact = partial(_exact_sums, rows, quantized, bias)
            _add(report, f"{name}, fp8, fp32 sums", exact, work, want, plain)


def _exact_sums(x: EightBit, weight: EightBit, bias: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(
        x.values,
        weight.values.t(),
        scale_a=x.scales,
        scale_b=weight.scales.view(1, -1),
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )


def _add(report: Report, name: str, function: Callable, work: int, want=None, plain=None) -> None:
    seconds = timed(function, REPEATS, "cuda")[0]
    note = f"{work / seconds / 1e12:.0f} T operations/s"
    if want is not None:
        got = function()
        note += f"; against bf16 {_error(got, want):.4f}, against plain torch {_error(got, plain):.1e}"
    report.add(name, seconds * 1e3, "ms", note)


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.float() - want.float()).norm() / want.float().norm()).item()


def _weights(report: Report, arithmetic: str, dtype: torch.dtype, rows: int, width: int) -> None:
    """A 4-bit weight, decoded to bf16 and recoded to 8 bits."""
    packed, scales = codec.encode(torch.randn(rows, width, device="cuda") / width**0.5)
    weight = FourBitParameter.of(packed, scales, (rows, width))
    plain = codec.recode(packed, scales, (rows, width), dtype)
    note = f"to bf16 {timed(partial(weight.decode, torch.bfloat16), REPEATS, 'cuda')[0] * 1e3:.3f} ms, "
    note += _difference(weight.recode(dtype), plain)
    seconds = timed(partial(weight.recode, dtype), REPEATS, "cuda")[0]
    report.add(f"4-bit weight {rows} x {width} to {arithmetic}", seconds * 1e3, "ms", note)


def _activations(report: Report, arithmetic: str, dtype: torch.dtype, config: ModelConfig) -> None:
    """Norm, activation functions and bare rows in 8 bits, with their bf16 forms' times in the note."""
    dim, stream = config.dim, torch.randn(TOKENS, config.dim, device="cuda")
    wide = torch.randn(TOKENS, config.ffn_dim, device="cuda", dtype=torch.bfloat16)
    narrow, weight, bias = stream.bfloat16(), 1 + 0.1 * torch.randn(dim, device="cuda"), torch.randn(dim, device="cuda")
    norm = stream, weight, bias, 1e-6
    encode = partial(pointwise.encode_8bit, dtype=dtype)
    cases = {
        "layer_norm": (
            partial(pointwise.layer_norm_8bit, *norm, dtype),
            partial(pointwise.layer_norm, *norm, torch.bfloat16),
        ),
        "gelu": (partial(encode, wide, activation="gelu"), partial(pointwise.gelu_, wide.clone())),
        "silu": (partial(encode, narrow, activation="silu"), partial(F.silu, narrow.clone(), inplace=True)),
        "rows": (partial(encode, narrow), narrow.clone),
    }
    for name, (function, usual) in cases.items():
        got = function()
        with mock.patch.object(pointwise, "implementation", _eager):
            plain = function()
        note = f"in bf16 {timed(usual, REPEATS, 'cuda')[0] * 1e3:.3f} ms, {_difference(got, plain)}"
        report.add(f"kernel {name}, {arithmetic}", timed(function, REPEATS, "cuda")[0] * 1e3, "ms", note)


_chosen = pointwise.implementation


def _eager(name: str, device_type: str) -> Callable:
    return _chosen(name, device_type, "eager")


def _difference(got: EightBit, plain: EightBit) -> str:
    other = (got.values.view(torch.uint8) != plain.values.view(torch.uint8)).float().mean().item()
    scales = ((got.scales - plain.scales).abs() / plain.scales).max().item()
    return f"against plain torch {other:.1e} of the values differ, scales by {scales:.1e}"
