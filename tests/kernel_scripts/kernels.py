"""Every Triton kernel of the model without a GPU, computed by Triton's interpreter (TRITON_INTERPRET=1) and compared
with plain torch. Prints what failed, as JSON. cards.py compiles them."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from block_cases import blocks
from einops import rearrange
from lingbot_world.model.attention import fp8 as fp8_attention
from lingbot_world.model.choice.tiles import Tile
from lingbot_world.model.kernels import add_norm, convolution, merge, scatter_qkv, sizes
from lingbot_world.model.kernels import matrix_8bit as quantized_kernels
from lingbot_world.model.kernels import pointwise as kernels
from lingbot_world.model.kernels import weights_4bit as four_bit_kernels
from lingbot_world.model.kernels import weights_blocks as block_kernels
from lingbot_world.model.ops import matrix_8bit as quantized
from lingbot_world.model.ops import plain
from lingbot_world.model.ops.implementation import our_kernel
from lingbot_world.model.quantized import codec, ggml
from lingbot_world.toy.weights import Weights, vae_tensors
from lingbot_world.vae import decode_latent, encode_first_frame, load_vae, network
from lingbot_world.vae.pooled import PooledDecoder
from lingbot_world.vae.weights import vae_shapes
from pointwise_cases import NAMES, check
from torch.nn import functional as F
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

FP8 = torch.float8_e4m3fn
DTYPES = [torch.float32]
EIGHT_BITS = [FP8]  # the interpreter has no function that rounds to int8
WEIGHTS = [{}, {"nested": False}, {"quant_type": "fp4", "blocksize": 128}]
WORST = 2e-6


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=WORST, rtol=WORST)


def pointwise(name: str, dtype: torch.dtype) -> None:
    check(our_kernel(name), name, 5, 96, dtype, "cpu", WORST)


def into_8_bits(eight_bit: torch.dtype, dtype: torch.dtype) -> None:
    """Only the scales are compared: the interpreter rounds to 8 bits otherwise."""
    x, weight, bias = torch.randn(7, 96).to(dtype), torch.randn(96), torch.randn(96)
    for activation in ("none", "gelu", "silu"):
        for heads in (1, 4):
            values, scales = torch.empty_like(x, dtype=eight_bit), torch.empty(7, heads)
            wanted = torch.empty_like(values), torch.empty_like(scales)
            quantized_kernels.encode_8bit_(values, scales, x, activation)
            quantized.encode_8bit_(*wanted, x, activation)
            same(scales, wanted[1])
    outs = [(torch.empty_like(x, dtype=eight_bit), torch.empty(7, 1)) for _ in "12"]
    quantized_kernels.encode_8bit_(*outs[0], x, "silu", 3 * x)
    quantized.encode_8bit_(*outs[1], x, "silu", 3 * x)
    same(outs[0][1], outs[1][1])
    long, outs = torch.randn(3, 8320).to(dtype), [(torch.empty(3, 8320).to(eight_bit), torch.empty(3, 1)) for _ in "12"]
    quantized_kernels.encode_8bit_(*outs[0], long, "gelu")
    quantized.encode_8bit_(*outs[1], long, "gelu")
    same(outs[0][1], outs[1][1])
    outs = [(torch.empty(7, 96).to(eight_bit), torch.empty(7, 1)) for _ in "12"]
    add_norm.layer_norm_8bit_(*outs[0], x.float(), weight, bias, 1e-6)
    quantized.layer_norm_8bit_(*outs[1], x.float(), weight, bias, 1e-6)
    same(outs[0][1], outs[1][1])


def out_of_8_bits(dtype: torch.dtype) -> None:
    """Keys and values of a cache, and products of int8."""
    values, scales = torch.randint(-99, 99, (7, 96), dtype=torch.int8), torch.rand(7, 4)
    same(
        quantized_kernels.decode_8bit_(torch.empty(7, 96, dtype=dtype), values, scales),
        quantized.decode_8bit_(torch.empty(7, 96, dtype=dtype), values, scales),
    )
    products, scales, weight_scales = torch.randint(-9, 9, (7, 96)).int(), torch.rand(7, 1), torch.rand(96)
    for given in (torch.rand(96), None):
        out, want = torch.empty(2, 7, 96, dtype=dtype)
        same(
            quantized_kernels.rescale_(out, products, scales, weight_scales, given),
            quantized.rescale_(want, products, scales, weight_scales, given),
        )


def attention_operands(dtype: torch.dtype) -> None:
    x, mean = torch.randn(7, 96).to(dtype), torch.randn(96)
    given = x[::3], mean, 4.0
    for got, want in zip(quantized_kernels.fp8_scale(*given), fp8_attention.plain_scale(*given), strict=True):
        same(got, want)
    values, outs = torch.randn(7, 96).to(FP8), torch.empty(2, 7, 96, dtype=dtype)
    moved, rows = torch.zeros(20, 96).to(FP8), torch.randperm(20)[:7]
    quantized_kernels.to_fp8_(made := torch.empty_like(values), x, mean, torch.ones(1))
    same(quantized_kernels.scatter_fp8_(moved, rows, x, mean, torch.ones(1)).float()[rows], made.float())
    same(
        quantized_kernels.from_fp8_(outs[0], values, mean, torch.ones(1)),
        quantized.from_fp8_(outs[1], values, mean, torch.ones(1)),
    )


def several_in_one(dtype: torch.dtype) -> None:
    """Of 8 bits only the scales are compared: the interpreter rounds otherwise."""
    x, y, scale, shift, weight, bias = torch.randn(7, 96), *torch.randn(3, 7, 96).to(dtype), *torch.randn(2, 96)
    for added, affine in (((y, weight), (scale, shift)), ((y, None), (None, None)), ((None, None), (scale, shift))):
        eight_bit = torch.empty(2, 7, 96).to(FP8), torch.empty(2, 7, 1)
        for (got, want), scales in ((torch.empty(2, 7, 96, dtype=dtype), (None, None)), eight_bit):
            given = x.clone(), x.clone()
            add_norm.add_norm_(given[0], got, scales[0], added, affine, (weight, bias, 1e-6))
            plain.add_norm_(given[1], want, scales[1], added, affine, (weight, bias, 1e-6))
            same(*given)
            same(*((got, want) if scales[0] is None else scales))
    angles, rows, y = torch.randn(7, 12), torch.randperm(20)[:7], torch.cat([y, scale], 1)[:, :96]  # rows are apart
    norm_rope = plain.NormRope(weight, angles.cos(), angles.sin(), 1e-6)
    for kind, scaling in ((dtype, (None, None)), (FP8, (bias, torch.full((1,), 3.0)))):
        got, want = torch.zeros(2, 20, 96).to(kind)
        kernels.scatter_rope_(got, rows, y.clone(), norm_rope, *scaling)
        plain.scatter_rope_(want, rows, y.clone(), norm_rope, *scaling)
        near(got, want)
    other, scalings = norm_rope._replace(weight=bias), ((bias, torch.full((1,), 3.0)), (weight, torch.full((1,), 2.0)))
    for eight_bit, placed in ((False, True), (True, True), (True, False)):
        made = []
        for put in (scatter_qkv.scatter_qkv_, plain.scatter_qkv_):
            estimate_releases = torch.zeros(2, 20, 96).to(FP8 if eight_bit else dtype)
            given = torch.cat([y, shift, y], 1).chunk(3, dim=1)
            queries = (torch.empty(7, 96).to(FP8), *torch.empty(2, 1)) if eight_bit else None
            put(
                estimate_releases[0],
                estimate_releases[1] if placed else None,
                rows,
                given,
                (norm_rope, other),
                queries,
                scalings if eight_bit else None,
            )
            made.append((*estimate_releases, *(queries or given[:1])))
        for got, want in zip(*made, strict=True):
            near(got, want)
    got, want = ((torch.empty(7, 96).to(FP8), *torch.empty(2, 1)) for _ in range(2))
    scatter_qkv.rope_fp8_(*got, y.clone(), norm_rope)
    plain.rope_fp8_(*want, y.clone(), norm_rope)
    same(got[1], want[1])
    same(got[2], want[2])
    near(got[0], want[0])


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    """The interpreter rounds to 8 bits otherwise: what is next to a power of two becomes half of it."""
    if got.dtype == FP8:
        assert (got.float() - want.float()).abs().mean() <= 0.03 * want.float().abs().mean()
    else:
        same(got, want)


def tokens_in_two() -> None:
    """The two parts hold a token, and each of a channel's threads is its only one."""
    for dim in (32, 64, 96, 128, 192, 256, 1024, 1536, 2048, 4160, 5120, 8960, 13824):
        for channels_per_warp in (320, 1280, 2048):
            first, second, warps = sizes.token_sizes(dim, channels_per_warp).values()
            assert first < dim <= first + second, dim
            assert warps == 1 or sizes.WARP * warps <= second <= first, dim


def merged(dtype: torch.dtype) -> None:
    """Results of attention in 8 bits: several parts, with a rest, and one part alone."""
    parts, rest = torch.randn(3, 7, 4, 24).to(FP8), torch.randn(1, 7, 4, 24).to(FP8)
    shift, factor = torch.randn(96), torch.ones(1)
    sums, rest_sums = 4 * torch.randn(3, 4, 7), 4 * torch.randn(1, 4, 7)
    for given in ((parts, sums, rest, rest_sums), (parts, sums, None, None), (rest, None, None, None)):
        got, want = torch.empty(2, 7, 96, dtype=dtype)
        same(
            merge.merge_fp8_(got, None, *given, shift, factor),
            plain.merge_fp8_(want, None, *given, shift, factor),
        )
        values, scales = torch.empty(7, 96).to(FP8), torch.empty(2, 7, 1)
        merge.merge_fp8_(values, scales[0], *given, shift, factor)
        plain.merge_fp8_(values, scales[1], *given, shift, factor)
        torch.testing.assert_close(*scales, atol=0, rtol=WORST if given[1] is None else 1e-2)  # bf16 between


def four_bits(settings: dict, dtype: torch.dtype) -> None:
    for shape in ((5, 192), (33, 1)):
        packed, scales = codec.encode(torch.randn(shape) / 30, **settings)
        same(four_bit_kernels.decode_4bit(packed, scales, shape, dtype), codec.decode(packed, scales, shape, dtype))


def in_blocks(kind: str, dtype: torch.dtype) -> None:
    """Of a number of blocks that one program works on, and of fewer."""
    for shape in ((6, 512), (3, 256)):
        packed = torch.from_numpy(blocks(kind, shape[0] * shape[1]))
        got, want = block_kernels.decode_blocks(packed, kind, shape, dtype), ggml.decode(packed, kind, shape, dtype)
        assert torch.equal(got, want)


def vae() -> None:
    """A VAE whose norms are the kernel's. Behind attention their pixels are not contiguous."""
    model, given = load_vae(vae_tensors(0)), (torch.rand(3, 16, 24), torch.randn(1, 16, 1, 2, 3))
    made, plain = [], network.rms_silu
    for network.rms_silu in (plain, kernels.rms_silu):
        made.append((encode_first_frame(model, given[0], 1), decode_latent(model, given[1]).float() / 255))
    network.rms_silu = plain
    for got, want in zip(made[1], made[0], strict=True):
        assert (got - want).abs().max() < 5e-3


def convolved(channels: int, out: int, side: int, frames: int) -> None:
    """Pictures with their line and column of zeros; frames of a pool do not lie in order."""
    size, quarters = (5, 6), 4 if side == 2 else 1
    rows = F.pad(torch.randn(frames, *size, channels), (0, 0, 0, 1, 0, 1)).flatten(0, 2)
    slots = None if frames == 1 else torch.tensor([2, 0, 1, 0], dtype=torch.int32)
    weight, added = torch.randn(quarters * out, side * side * frames * channels), torch.randn(6 * 7, out)
    as_torch(convolution.convolve, rows, slots, weight, torch.randn(out), size, side, None if side == 2 else added)


def summed_in_half(side: int, frames: int) -> None:
    """The sums of GeForce cards: of all channels of a pixel in fp16, and of these in fp32."""
    own, convolution._tile = (
        convolution._tile,
        lambda *_: Tile(16, 32, 16, 16, 0, 4, 2, by_tma=False, fp16_sums=True),
    )
    size, depth = (3, 4), side * side * frames * 32
    rows = F.pad(torch.randn(frames, *size, 32), (0, 0, 0, 1, 0, 1)).flatten(0, 2).half()
    slots = None if frames == 1 else torch.tensor([2, 0, 1, 0], dtype=torch.int32)
    weight, bias = torch.randn(48 * (4 if side == 2 else 1), depth).half() / depth**0.5, torch.zeros(48)
    got = convolution.convolve(rows, slots, weight, bias.half(), size, side).float()
    want = plainly_convolved(rows.float(), slots, weight.float(), bias, size, side)
    got, want = (each.unflatten(0, [size[0] * (2 if side == 2 else 1) + 1, -1])[:-1, :-1] for each in (got, want))
    convolution._tile = own
    assert 0 < (got - want).norm() < 1e-3 * want.norm()


def as_torch(interpreted: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
    """Compares a convolution with torch's, and returns that."""
    want, got, (*_, size, side, _) = plainly_convolved(*given), interpreted(*given), given
    got, plain = (each.unflatten(0, [size[0] * (2 if side == 2 else 1) + 1, -1]) for each in (got, want))
    torch.testing.assert_close(got[:-1, :-1], plain[:-1, :-1], atol=2e-6 * want.abs().max().item(), rtol=0)
    assert side == 2 or (not got[-1].any() and not got[:, -1].any())
    return want


def plainly_convolved(x, slots, weight, bias, size, side, added=None) -> torch.Tensor:
    """What `convolution.convolve` computes, by torch's convolution."""
    (height, width), quarters = size, 4 if side == 2 else 1
    maps = x.unflatten(0, (-1, height + 1, width + 1))[[0] if slots is None else slots[:3].tolist()]
    pictures = maps[:, :-1, :-1].permute(0, 3, 1, 2).flatten(0, 1)
    kernels = weight.unflatten(1, (side, side, -1)).permute(0, 3, 1, 2)
    made = F.conv2d(pictures[None], kernels, bias.repeat(quarters), padding=side // 2)[0]
    if side == 2:  # one pixel becomes four, each from its own four neighbours
        parts = made.unflatten(0, (2, 2, -1))
        parts = [parts[a, b, :, a : a + height, b : b + width] for a in range(2) for b in range(2)]
        made = rearrange(parts, "(a b) c h w -> c (h a) (w b)", a=2)
    made = F.pad(made, (0, 1, 0, 1)).permute(1, 2, 0).flatten(0, 1)
    return made if added is None else made + added


class ConvolvedOnce:
    """`convolution.convolve`, interpreted once for each kind of layer, else torch's: all would take a minute."""

    def __init__(self) -> None:
        self._interpreted, self._seen = convolution.convolve, set()

    def __call__(self, x, slots, weight, bias, size, side, added=None) -> torch.Tensor:
        given, kind = (x, slots, weight, bias, size, side, added), (slots is None, weight.shape, side, added is None)
        if kind in self._seen:
            return plainly_convolved(*given)
        self._seen.add(kind)
        return as_torch(self._interpreted, *given)


def pooled() -> None:
    """The decoder that uses these, over three latent frames, against the plain one."""
    random = Weights(0)
    model = load_vae({name: random.layer(name, shape, gain=1.0) for name, shape in vae_shapes(16).items()})
    convolution.convolve = ConvolvedOnce()
    decoders = network.Decoder(model.weights), PooledDecoder(model)
    for _ in range(3):
        latent = torch.randn(1, 16, 1, 2)
        want, got = (list(decoder.decode(latent)) for decoder in decoders)
        torch.testing.assert_close(got, want, atol=2e-5, rtol=0)


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    yield "tokens in two", tokens_in_two
    for dtype in DTYPES:
        yield from ((f"{name}, {dtype}", lambda name=name, dtype=dtype: pointwise(name, dtype)) for name in NAMES)
        yield f"out of 8 bits, {dtype}", lambda dtype=dtype: out_of_8_bits(dtype)
        yield f"several in one, {dtype}", lambda dtype=dtype: several_in_one(dtype)
        yield f"merged, {dtype}", lambda dtype=dtype: merged(dtype)
        yield f"attention, {dtype}", lambda dtype=dtype: attention_operands(dtype)
        for settings in WEIGHTS:
            yield f"4 bits {settings}, {dtype}", lambda settings=settings, dtype=dtype: four_bits(settings, dtype)
        for kind in ggml.BLOCKS:
            yield f"blocks {kind}, {dtype}", lambda kind=kind, dtype=dtype: in_blocks(kind, dtype)
        for kind in EIGHT_BITS:
            yield f"8 bits, {dtype}, {kind}", lambda dtype=dtype, kind=kind: into_8_bits(kind, dtype)
    for shape in ((96, 96, 3, 3), (32, 192, 3, 3), (192, 96, 2, 1), (32, 64, 1, 3), (96, 3, 3, 3)):
        yield f"convolution {shape}", lambda shape=shape: convolved(*shape)
    for given in ((3, 3), (2, 1), (1, 3)):
        yield f"summed in half {given}", lambda given=given: summed_in_half(*given)
    yield "VAE", vae
    yield "pooled VAE", pooled


def take_masks_of_int32() -> None:
    """Have the interpreter take `mask & (row < rows)` of a block and a scalar. It computes int32, which Triton 3.9
    refuses as a mask. Compiled kernels compute one bit."""

    def with_bits(method, position):
        def call(self, *arguments):
            mask = arguments[position]
            bits = TensorHandle(mask.data.astype(bool), mask.dtype)
            return method(self, *arguments[:position], bits, *arguments[position + 1 :])

        return call

    InterpreterBuilder.create_masked_load = with_bits(InterpreterBuilder.create_masked_load, 1)
    InterpreterBuilder.create_masked_store = with_bits(InterpreterBuilder.create_masked_store, 2)


def main() -> None:
    take_masks_of_int32()
    torch.cuda.device_of = lambda _tensor: nullcontext()
    failed, count = {}, 0
    for name, case in cases():
        count += 1
        try:
            case()
        except Exception as reason:
            while reason.__cause__ is not None:
                reason = reason.__cause__
            failed[name] = f"{type(reason).__name__}: {reason}"[-500:]
    print(json.dumps({"cases": count, "failed": failed}))


main()
