"""Wan's VAE through diffusers: the official file format, normalisation, progress, tiles."""

import pickle

import pytest
import torch
from lingbot_world.errors import CheckpointError
from lingbot_world.toy.weights import VAE_WIDTH, vae_shapes, vae_tensors
from lingbot_world.vae import decode_latent, encode_first_frame, load_vae
from safetensors.torch import save_file

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_the_real_file_has_these_keys_and_shapes():
    shapes = vae_shapes(96)
    assert len(shapes) == 194
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 126_892_531
    assert shapes["decoder.upsamples.3.time_conv.weight"] == (768, 384, 3, 1, 1)
    assert shapes["encoder.downsamples.5.time_conv.weight"] == (192, 192, 3, 1, 1)


def test_width_is_read_from_the_weights(vae):
    assert vae.config.base_dim == VAE_WIDTH == 8
    assert vae.dtype == torch.float32
    assert not any(parameter.requires_grad or parameter.is_meta for parameter in vae.parameters())


def test_safetensors_and_pth_are_the_same(vae, tmp_path, frame):
    save_file(vae_tensors(0), tmp_path / "wan_2.1_vae.safetensors")
    other = load_vae(tmp_path / "wan_2.1_vae.safetensors")
    assert torch.equal(encode_first_frame(other, frame, 5), encode_first_frame(vae, frame, 5))


def test_encoding_is_the_normalised_mean_of_image_and_zeros(vae, frame):
    latent = encode_first_frame(vae, frame, 9)
    assert latent.shape == (1, 16, 3, 6, 8)
    video = torch.cat([frame[:, None], torch.zeros(3, 8, 48, 64)], dim=1)[None]
    raw = vae.encode(video).latent_dist.mean
    channel = 7  # Wan's statistics of it: mean 1.5508, standard deviation 2.0743
    torch.testing.assert_close(latent[:, channel], (raw[:, channel] - 1.5508) / 2.0743)
    assert torch.equal(encode_first_frame(vae, frame, 9), latent)


def test_later_frames_do_not_reach_back(vae, frame):
    torch.testing.assert_close(encode_first_frame(vae, frame, 9)[:, :, :2], encode_first_frame(vae, frame, 5))


def test_decoding_gives_bytes_of_every_frame(vae, frame):
    latent = encode_first_frame(vae, frame, 9)
    frames = decode_latent(vae, latent)
    assert frames.shape == (9, 48, 64, 3)
    assert frames.dtype == torch.uint8
    assert frames.float().std() > 10
    mean = torch.tensor(vae.config.latents_mean).view(1, 16, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std).view(1, 16, 1, 1, 1)
    expected = (vae.decode(latent * std + mean).sample[0] + 1) * 127.5
    assert (frames.permute(3, 0, 1, 2).float() - expected).abs().max() <= 0.5 + 1e-3


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
    latent = torch.randn(1, 16, 1, 40, 24, generator=torch.Generator().manual_seed(0))
    frames = decode_latent(tiled, latent, lambda *counts: seen.append(counts))
    assert frames.shape == (1, 320, 192, 3)
    assert seen[-1] == (2, 2)
    same = slice(0, 120)  # far from the seam and the second tile
    difference = (frames[:, same].float() - decode_latent(whole, latent)[:, same].float()).abs()
    assert difference.median() <= 8


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
        load_vae(file)
    for part in (str(file), "quant_conv.bias", "extra", "encoder.conv_in.weight (1, 2, 3) instead of (8, 3, 3, 3, 3)"):
        assert part in str(error.value)


class Malice:
    def __reduce__(self):
        return print, ("this must not run",)


def test_a_malicious_pickle_is_refused_and_does_not_run(tmp_path, capsys):
    file = tmp_path / "Wan2.1_VAE.pth"
    for save in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
        save({"decoder.head.0.gamma": Malice()}, file)
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_vae(file)
    assert "must not run" not in capsys.readouterr().out
