"""Wan's VAE: the official numbers, the file format, a video part by part, the empty frames, tiles, progress."""

import pickle

import numpy as np
import pytest
import torch
from lingbot_world.errors import CheckpointError, InputError
from lingbot_world.model.choice.card import Card
from lingbot_world.model.choice.tiles import tile_of
from lingbot_world.toy.weights import VAE_WIDTH, Weights, vae_tensors
from lingbot_world.vae import Stripe, VideoDecoder, decode_latent, encode_first_frame, load_vae, pooled, read_vae
from lingbot_world.vae.decoding import CONTEXT_FRAMES
from lingbot_world.vae.encoding import SETTLED
from lingbot_world.vae.network import Decoder, Encoder
from lingbot_world.vae.weights import vae_shapes
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = pytest.mark.parametrize("case", ["f9_32x48", "f17_48x32"])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("vae") / "Wan2.1_VAE.pth"
    torch.save(vae_tensors(0), file)
    return file


@pytest.fixture(scope="module")
def vae(path):
    return load_vae(path)


@pytest.fixture(scope="module")
def frame():
    return torch.rand(3, 48, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.fixture(scope="module")
def official(golden):
    return load_file(golden / "vae/Wan2.1_VAE_tiny.safetensors")


def numbers(golden, case):
    return {name: torch.from_numpy(array) for name, array in np.load(golden / f"vae/{case}.npz").items()}


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def decoded(vae, latent, stripe=None):
    """Frames [3, F, H, W] of a normalised latent [16, f, h, w], as numbers from -1 to 1."""
    decoder = Decoder(vae.weights, stripe=stripe)
    frames = [frame for each in latent.unbind(1) for frame in decoder.decode(vae.denormalized(each[None]))]
    return torch.cat(frames).transpose(0, 1).clamp(-1, 1)


@CASES
def test_encoding_gives_the_official_numbers(case, golden, official):
    vae, expected = load_vae(official), numbers(golden, case)
    encoder = Encoder(vae.weights)
    given = [encoder.encode(each[None]) for each in expected["video"].unbind(1)]
    latent = torch.cat([vae.normalized(each) for each in given if each is not None])
    torch.testing.assert_close(latent.transpose(0, 1), expected["latent_video"], atol=1e-5, rtol=0)
    latent = encode_first_frame(vae, expected["image"], expected["video"].shape[1])
    torch.testing.assert_close(latent[0], expected["latent_image"], atol=1e-5, rtol=0)


@CASES
def test_decoding_gives_the_official_numbers(case, golden, official):
    expected = numbers(golden, case)
    exact = decoded(load_vae(official, dtype=torch.float64), expected["latent"]).float()
    torch.testing.assert_close(exact, expected["decoded"], atol=1e-5, rtol=0)
    vae = load_vae(official)  # the golden itself is 7e-6 away from float64
    torch.testing.assert_close(decoded(vae, expected["latent"]), expected["decoded"], atol=2e-5, rtol=0)
    pixels = (expected["decoded"].permute(1, 2, 3, 0) + 1) * 127.5
    assert (decode_latent(vae, expected["latent"][None]) - pixels).abs().max() <= 0.5 + 127.5 * 2e-5


def test_decoding_in_half_gives_nearly_the_same_frames(vae):
    half, latent = vae.decoding_in_half(), noise(1, 16, 3, 6, 8)
    assert (half.dtype, half.width) == (torch.float16, vae.width)
    frames = [decode_latent(each, latent).float() for each in (vae, half)]
    assert 0 < (frames[0] - frames[1]).square().mean() < 255**2 / 1e5  # 50 dB


def test_a_number_too_large_for_half_is_told():
    tensors = vae_tensors(0)
    tensors["decoder.conv1.weight"] = 1e7 * tensors["decoder.conv1.weight"]  # the norms take that off again
    vae, latent = load_vae(tensors), noise(1, 16, 2, 6, 8)
    assert decode_latent(vae, latent).float().std() > 1
    with pytest.raises(OverflowError, match="too large for fp16"):
        decode_latent(vae.decoding_in_half(), latent)
    decoder = VideoDecoder(vae.decoding_in_half(), 6, 8)
    decoder.decode(latent, non_blocking=True)
    with pytest.raises(OverflowError, match="too large for fp16"):
        decoder.check()


def test_a_latent_that_is_not_finite_is_no_black_video(vae):
    latent = noise(1, 16, 2, 6, 8)
    latent[0, 3, 1, 2, 2] = torch.nan
    with pytest.raises(InputError, match="The latent holds numbers that are not finite"):
        decode_latent(vae, latent)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_computes_what_the_cpu_does(vae, frame):
    on_gpu, latent = load_vae(vae_tensors(0), device="cuda"), noise(1, 16, 3, 6, 8)
    with torch.backends.cudnn.flags(allow_tf32=False):
        encoded, decoded = encode_first_frame(on_gpu, frame, 9), decode_latent(on_gpu, latent)
    torch.testing.assert_close(encoded.cpu(), encode_first_frame(vae, frame, 9), atol=1e-3, rtol=1e-3)
    assert (decoded.int() - decode_latent(vae, latent).int()).abs().max() <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", ["on the GPU", "parked", "in tiles"])
def test_frames_that_come_later_are_the_same(way):
    vae, latent = load_vae(vae_tensors(0), device="cuda"), noise(1, 16, 9, 34, 34)
    vae.use_tiling = way == "in tiles"
    decoders = [VideoDecoder(vae, 34, 34, park=way == "parked") for _ in range(2)]
    for part in latent.split(3, dim=2):
        now, later = decoders[0].decode(part), decoders[1].decode(part, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(now, later)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)
@pytest.mark.parametrize("way", ["on the GPU", "parked", "in tiles", "by the blocks of GeForce"])
def test_the_pooled_decoder_gives_nearly_the_frames_of_the_plain_one(way, monkeypatch):
    if way == "by the blocks of GeForce":
        convolution = pytest.importorskip("lingbot_world.model.kernels.convolution")
        ada = Card("nvidia", "RTX 4090", (8, 9))
        monkeypatch.setattr(convolution, "_tile", lambda _device, *channels: tile_of(ada, *channels))
        monkeypatch.setattr(pooled, "_convolution_hopper", lambda _device: None)
    random, latent = Weights(0), noise(1, 16, 5, 34, 34)
    tensors = {name: random.layer(name, shape, gain=1.0) for name, shape in vae_shapes(96).items()}
    whole = load_vae(tensors, device="cuda")
    half = whole.decoding_in_half()
    whole.use_tiling = half.use_tiling = way == "in tiles"
    assert pooled.suits(half)
    decoder = VideoDecoder(half, 34, 34, park=way == "parked")
    frames = torch.cat([decoder.decode(part) for part in latent.split([1, 3, 1], dim=2)])
    assert torch.equal(frames, decode_latent(half, latent))
    assert 0 < (frames.float() - decode_latent(whole, latent).float()).square().mean() < 255**2 / 1e5  # 50 dB


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_latent_may_lie_on_another_gpu():
    """In the plain decoder's fp32, and in fp16 by the kernels of Hopper GPUs."""
    random = Weights(0)
    tensors = {name: random.layer(name, shape, gain=1.0) for name, shape in vae_shapes(96).items()}
    vaes = [load_vae(tensors, device=f"cuda:{index}") for index in range(2)]
    latent = noise(1, 16, 4, 20, 22).to(vaes[0].device)
    for half in (False, True):
        made = [decode_latent(vae.decoding_in_half() if half else vae, latent) for vae in vaes]
        assert torch.equal(*made)


def test_the_real_file_has_these_keys_and_shapes():
    shapes = vae_shapes(96)
    assert len(shapes) == 194
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 126_892_531
    assert shapes["decoder.upsamples.3.time_conv.weight"] == (768, 384, 3, 1, 1)
    assert shapes["encoder.downsamples.5.time_conv.weight"] == (192, 192, 3, 1, 1)


def test_width_is_read_from_the_weights(vae):
    assert vae.width == VAE_WIDTH == 8
    assert vae.dtype == torch.float32
    assert vae.device == torch.device("cpu")


def test_safetensors_pth_and_tensors_are_the_same(vae, tmp_path, frame):
    save_file(vae_tensors(0), tmp_path / "wan_2.1_vae.safetensors")
    expected = encode_first_frame(vae, frame, 5)
    for source in (tmp_path / "wan_2.1_vae.safetensors", vae_tensors(0)):
        assert torch.equal(encode_first_frame(load_vae(source), frame, 5), expected)


def test_decoding_gives_bytes_of_every_frame(vae):
    frames = decode_latent(vae, noise(1, 16, 3, 6, 8))
    assert frames.shape == (9, 48, 64, 3)
    assert frames.dtype == torch.uint8
    assert frames.float().std() > 10


@pytest.mark.parametrize("tiling", [False, True])
def test_a_video_part_by_part_has_the_bits_of_all_at_once(path, tiling):
    vae, latent = load_vae(path), noise(1, 16, 5, 34, 3)
    vae.use_tiling = tiling
    stream = VideoDecoder(vae, 34, 3, park=True)
    parts = [stream.decode(part) for part in latent.split([1, 1, 3], dim=2)]
    assert [len(part) for part in parts] == [1, 4, 12]
    assert torch.equal(torch.cat(parts), decode_latent(vae, latent))


@pytest.mark.parametrize("size", [(3, 40), (41, 2), (4, 6)])
@pytest.mark.parametrize("count", [2, 5])
def test_stripes_together_are_the_whole(official, size, count):
    vae, latent = load_vae(official, dtype=torch.float64), noise(1, 16, 3, *size)
    whole = decoded(vae, latent[0])
    together = torch.full_like(whole, torch.nan)
    for index in range(count):
        stripe = Stripe.of(*size, index, count)
        own = decoded(vae, latent[0], stripe)
        stripe.within(together.permute(1, 2, 3, 0)).copy_(own.permute(1, 2, 3, 0))
        first = VideoDecoder(vae, *size, stripe=stripe).decode(latent[:, :, :1])
        assert first.shape[1:3] == own.shape[2:]
    torch.testing.assert_close(together, whole, atol=1e-12, rtol=0)


def test_what_lies_far_enough_back_has_left_the_decoder(vae):
    """So a world that goes on needs no more than its last latents."""
    latent = noise(1, 16, CONTEXT_FRAMES + 8, 2, 2)
    whole = decode_latent(vae, latent)
    for known, same in ((CONTEXT_FRAMES, True), (CONTEXT_FRAMES // 2, False)):
        later = VideoDecoder(vae, 2, 2)
        later.decode(latent[:, :, -known - 3 : -3])
        assert torch.equal(later.decode(latent[:, :, -3:]), whole[-12:]) is same


def test_empty_frames_settle_and_are_computed_no_more(vae, frame):
    image, empty = frame[None, :, :16, :16], torch.zeros(1, 3, 16, 16)
    encoder, other = Encoder(vae.weights), Encoder(vae.weights)
    latents, computed = [], []
    for index in range(4 * SETTLED + 9):
        latents.append(encoder.encode(empty if index else image))
        computed.append(other.encode(empty.clone() if index else image))  # another tensor each time: nothing is known
    latents, computed = ([each for each in given if each is not None] for given in (latents, computed))
    assert torch.equal(torch.cat(latents), torch.cat(computed))
    assert latents[SETTLED] is latents[SETTLED - 1]
    assert not torch.equal(computed[SETTLED - 1], computed[SETTLED - 3])


def test_later_frames_do_not_reach_back(vae, frame):
    assert torch.equal(encode_first_frame(vae, frame, 9)[:, :, :2], encode_first_frame(vae, frame, 5))


def test_progress_counts_latent_frames_and_an_exception_from_it_ends_the_work(vae, frame):
    seen = []
    latent = encode_first_frame(vae, frame, 9, lambda *counts: seen.append(counts))
    decode_latent(vae, latent, lambda *counts: seen.append(counts))
    assert seen == 2 * [(1, 3), (2, 3), (3, 3)]

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_latent(vae, latent, interrupt)
    assert torch.equal(decode_latent(vae, latent), decode_latent(vae, latent))


def test_tiles_cover_the_frame_and_are_counted(path):
    tiled, whole, seen = load_vae(path), load_vae(path), []
    tiled.enable_tiling()
    latent = noise(1, 16, 1, 40, 24)
    frames = decode_latent(tiled, latent, lambda *counts: seen.append(counts))
    assert frames.shape == (1, 320, 192, 3)
    assert seen == [(1, 2), (2, 2)]
    same = slice(0, 120)  # far from the seam and the second tile
    difference = (frames[:, same].float() - decode_latent(whole, latent)[:, same].float()).abs()
    assert difference.median() <= 8


@pytest.mark.parametrize("size", [(40, 36), (57, 33)])
def test_overlaps_are_blended_from_above_then_from_the_left(path, size):
    vae = load_vae(path)
    vae.enable_tiling()
    image = noise(3, 8 * size[0], 8 * size[1]).clamp(-1, 1)
    whole = encode_first_frame(vae, image, 1)[0, :, 0]
    alone = {}
    for top in range(0, size[0], 24):
        for left in range(0, size[1], 24):
            crop = image[:, 8 * top : 8 * top + 256, 8 * left : 8 * left + 256]
            tile = alone[top, left] = encode_first_frame(vae, crop, 1)[0, :, 0]
            for row in range(min(8, tile.shape[1]) if top else 0):
                extent = min(8, tile.shape[1])
                above = alone[top - 24, left][:, row - extent]
                tile[:, row] = above + (tile[:, row] - above) * row / extent
            for column in range(min(8, tile.shape[2]) if left else 0):
                extent = min(8, tile.shape[2])
                beside = alone[top, left - 24][:, :, column - extent]
                tile[:, :, column] = beside + (tile[:, :, column] - beside) * column / extent
            own = tile[:, :24, :24]
            part = whole[:, top : top + own.shape[1], left : left + own.shape[2]]
            torch.testing.assert_close(part, own, atol=1e-5, rtol=0)


def test_files_that_are_not_the_vae_are_refused(tmp_path):
    file = tmp_path / "Wan2.1_VAE.pth"
    with pytest.raises(CheckpointError, match="no such file"):
        load_vae(file)
    file.write_bytes(b"not a zip file")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_vae(file)
    torch.save({"patch_embedding.weight": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match="not a Wan VAE"):
        load_vae(file)
    tensors = vae_tensors(0)
    del tensors["conv1.bias"]
    tensors["encoder.conv1.weight"] = torch.zeros(1, 2, 3)
    torch.save(tensors | {"extra": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError) as error:
        read_vae(file)
    for part in (str(file), "conv1.bias", "extra", "encoder.conv1.weight [1, 2, 3] (expected [8, 3, 3, 3, 3])"):
        assert part in str(error.value)


def test_a_truncated_file_is_refused(path, tmp_path):
    save_file(vae_tensors(0), tmp_path / "whole.safetensors")
    for whole, name in ((path, "cut.pth"), (tmp_path / "whole.safetensors", "cut.safetensors")):
        (tmp_path / name).write_bytes(whole.read_bytes()[:-5000])
        with pytest.raises(CheckpointError, match=name):
            load_vae(tmp_path / name)


class Malice:
    def __reduce__(self):
        return print, ("this must not run",)


def test_a_malicious_pickle_is_refused_and_does_not_run(tmp_path, capsys):
    file = tmp_path / "Wan2.1_VAE.pth"
    for save in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
        save({"decoder.head.0.gamma": Malice()}, file)
        with pytest.raises(CheckpointError, match=r"refused|cannot be read"):
            load_vae(file)
    assert "must not run" not in capsys.readouterr().out
