"""The convolution kernel for Hopper GPUs against torch's, and the decoder that the table chooses on other cards."""

import pytest
import torch
from lingbot_world.model.choice.card import Card
from lingbot_world.model.choice.tiles import tile_of
from lingbot_world.model.kernels.hopper import convolution as convolution_hopper
from lingbot_world.toy.weights import vae_tensors
from lingbot_world.vae import load_vae, pooled
from lingbot_world.vae.convolutions import KitchenDecoder, convolution_kernel
from lingbot_world.vae.network import Decoder
from lingbot_world.vae.weights import vae_shapes
from played_card import CUDA, PlayedCard, forget
from torch.nn import functional as F

GPU = "cuda"
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
needs_hopper = pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
ROUNDED = 3e-4
"""Relative RMS error of a result in fp16."""


def slots_of(*slots):
    return torch.tensor([*slots, 0], dtype=torch.int32, device=GPU)


def pictures(channels, out, size):
    """Three frames as rows, their slots, weights as a matrix, a bias, a picture to be added; and what comes of it."""
    frames, weight = torch.randn(3, channels, *size), torch.randn(out, 3 * channels, 3, 3) / (27 * channels) ** 0.5
    given = frames, weight, torch.randn(out), torch.randn(out, *size)
    frames, weight, bias, added = (x.to(GPU, torch.float16) for x in given)
    rows, added_rows = (F.pad(x, (0, 1, 0, 1)).movedim(-3, -1).flatten(0, -2).contiguous() for x in (frames, added))
    matrix, slots = weight.permute(0, 2, 3, 1).flatten(1).contiguous(), slots_of(0, 1, 2)
    want = F.conv2d(frames.flatten(0, 1)[None].double(), weight.double(), bias.double(), padding=1)[0]
    return (rows, slots, matrix, bias, size), added_rows, want, added


@needs_hopper
@pytest.mark.parametrize(
    ("channels", "out", "size"),
    [(32, 96, (1, 1)), (96, 96, (5, 6)), (96, 96, (64, 97)), (192, 384, (33, 70)), (384, 192, (40, 52))],
)
def test_our_convolution_is_torchs(channels, out, size):
    """The zeros beside the picture are there for the next one. What is added is rounded once."""
    given, added_rows, want, added = pictures(channels, out, size)
    for more, wanted in ((None, want), (added_rows, want + added)):
        got = convolution_hopper.convolve(*given, more).view(size[0] + 1, size[1] + 1, out)
        inner = got[:-1, :-1].movedim(-1, 0)
        assert ((inner - wanted).norm() / wanted.norm()).item() < ROUNDED
        assert not got[-1].any()
        assert not got[:, -1].any()


@needs_hopper
def test_frames_may_lie_in_any_order():
    (rows, _, matrix, bias, size), _, want, _ = pictures(96, 96, (20, 30))
    turned = rows.unflatten(0, (3, -1))[[1, 2, 0]].flatten(0, 1)
    got = convolution_hopper.convolve(turned, slots_of(2, 0, 1), matrix, bias, size)
    assert ((got.view(21, 31, 96)[:-1, :-1].movedim(-1, 0) - want).norm() / want.norm()).item() < ROUNDED


@needs_hopper
@pytest.mark.parametrize(
    ("channels", "out", "size", "side", "fits"),
    [
        (96, 96, (480, 832), 3, True),
        (384, 384, (120, 208), 3, True),
        (384, 384, (60, 104), 3, False),
        (96, 3, (480, 832), 3, False),
        (384, 768, (60, 104), 1, False),
        (16, 384, (60, 104), 3, False),
    ],
)
def test_it_is_taken_for_many_pixels_and_whole_parts_of_channels(channels, out, size, side, fits):
    x = torch.empty(1, channels, dtype=torch.float16, device=GPU)
    assert convolution_hopper.suits(x, x.new_empty(out, 1), size, side) == fits


def test_comfy_kitchens_decoder_gives_the_frames_of_the_plain_one():
    """By its kernels for the CPU, which are torch's."""
    pytest.importorskip("comfy_kitchen")
    vae, latent = load_vae(vae_tensors(0)), torch.randn(3, 1, 16, 3, 5, generator=torch.Generator().manual_seed(0))
    plain, kitchen = Decoder(vae.weights), KitchenDecoder(vae.weights)
    for each in latent:
        want, got = (list(decoder.decode(each)) for decoder in (plain, kitchen))
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("capability", "found", "seconds", "name", "recorded"),
    [
        ((9, 0), {}, {}, "LingBot-World", True),  # the order was measured: nothing is tried
        ((8, 9), {}, {"triton": 1, "comfy-kitchen": 2, "torch": 3}, "triton", True),
        ((12, 0), {}, {"triton": 3, "comfy-kitchen": 1, "torch": 2}, "comfy-kitchen", False),
        ((8, 6), {"comfy-kitchen": "too inexact"}, {"triton": 3, "torch": 2}, "torch", False),
        ((7, 5), {}, {"comfy-kitchen": 1, "torch": 2}, "comfy-kitchen", False),
    ],
)
def test_a_card_decodes_by_its_fastest_right_convolution(monkeypatch, capability, found, seconds, name, recorded):
    monkeypatch.setattr(pooled, "triton_loads", lambda: True)
    card = PlayedCard(monkeypatch, *capability, why=None, found=found, seconds=seconds)
    assert convolution_kernel(CUDA) == name
    assert pooled.can_record(CUDA, torch.float16, 96) is recorded
    assert not pooled.can_record(CUDA, torch.bfloat16, 96)
    assert card.tried == (1 if seconds else 0)
    forget()


def test_without_memory_for_a_trial_torch_decodes(monkeypatch):
    PlayedCard(monkeypatch, 8, 9)

    def full(*_arguments, **_settings):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("lingbot_world.model.choice.trials.try_all", full)
    assert convolution_kernel(CUDA) == "torch"
    forget()


def test_a_setting_of_another_cards_kernel_leaves_torch(monkeypatch):
    PlayedCard(monkeypatch, 9, 0)
    monkeypatch.setenv("LINGBOT_WORLD_KERNELS", "convolution=comfy-kitchen")
    assert convolution_kernel(CUDA) is None
    assert not pooled.can_record(CUDA, torch.float16, 96)
    forget()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("capability", [(8, 6), (8, 9), (12, 0)])
@pytest.mark.parametrize(("channels", "out", "side"), [(384, 384, 3), (192, 192, 3), (96, 96, 3), (192, 96, 2)])
def test_sums_of_geforce_in_fp16_are_near_those_in_fp32(capability, channels, out, side, monkeypatch):
    convolution = pytest.importorskip("lingbot_world.model.kernels.convolution")
    tile, (height, width), frames = tile_of(Card("nvidia", "A Card", capability), channels, out), (20, 26), 3
    assert tile.fp16_sums
    torch.manual_seed(0)
    depth = side * side * channels * (frames if side == 3 else 1)
    rows = torch.randn(frames * (height + 1) * (width + 1), channels, device="cuda").half()
    weight = (torch.randn(out * (4 if side == 2 else 1), depth, device="cuda") / depth**0.5).half()
    slots = torch.arange(4, dtype=torch.int32, device="cuda") if side == 3 else None
    made = []
    for half in (True, False):
        monkeypatch.setattr(convolution, "_tile", lambda *_any, half=half: tile._replace(fp16_sums=half))
        given = rows if side == 3 else rows[: (height + 1) * (width + 1)]
        result = convolution.convolve(given, slots, weight, torch.zeros_like(weight[:out, 0]), (height, width), side)
        scale = 2 if side == 2 else 1
        made.append(result.view(scale * height + 1, scale * width + 1, out)[:-1, :-1].float())
    assert 0 < (made[0] - made[1]).norm() < 1.6e-3 * made[1].norm()  # 56 dB


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), None])
def test_a_tile_divides_every_convolution_of_the_decoder_and_fits_the_card(capability):
    """Products are loaded while others are computed: of `stages` blocks all but one lie in shared memory."""
    card = Card("amd", "A Card", arch="gfx1100") if capability is None else Card("nvidia", "A Card", capability)
    for name, shape in vae_shapes(96).items():
        if name.startswith("decoder.") and len(shape) > 3 and shape[-1] == 3 and "conv1" not in name:
            out, channels = shape[:2]
            tile = tile_of(card, channels, out)
            assert channels % (tile.channels + tile.channels_rest) == 0, name
            outs = tile.out + tile.out_rest
            assert out % outs == 0 or out < outs, name
            block = 2 * (tile.pixels + outs) * (tile.channels + tile.channels_rest)
            assert (tile.stages - 1) * block <= card.shared_memory, name
