"""The tiny decoder: its authors' numbers, a video in parts, its files, LightTAE's scaling, what is refused."""

import numpy as np
import pytest
import torch
from lingbot_world.errors import CheckpointError, InputError
from lingbot_world.vae import load_tiny_decoder
from lingbot_world.vae.weights import MEAN, STD
from safetensors.torch import save_file
from tiny_cases import tiny_weights

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = pytest.mark.parametrize("case", ["f5_4x6", "f1_3x5"])


@pytest.fixture(scope="module")
def folder(golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    for case in ("f5_4x6", "f1_3x5"):
        torch.save(tiny_weights(golden, case), folder / f"{case}.pth")
    drawn = tiny_weights(golden, "f5_4x6")
    save_file({**drawn, "encoder.0.weight": torch.zeros(64, 3, 3, 3)}, folder / "taew2_1.safetensors")
    save_file(drawn, folder / "lighttaew2_1.safetensors")
    return folder


def numbers(golden, case):
    arrays = np.load(golden / f"taehv/{case}.npz")
    return torch.from_numpy(arrays["latent"]), torch.from_numpy(arrays["frames"])


@CASES
def test_a_video_has_the_authors_numbers(case, golden, folder):
    latent, frames = numbers(golden, case)
    made = load_tiny_decoder(folder / f"{case}.pth").decode(latent)
    assert made.shape == frames.shape
    assert made.dtype == torch.float32
    assert (made - frames).abs().max() <= 2e-5


def test_parts_give_the_same_bits_as_the_whole_video(golden, folder):
    latent, _ = numbers(golden, "f5_4x6")
    decoder = load_tiny_decoder(folder / "f5_4x6.pth")
    whole = decoder.decode(latent)
    again = decoder.anew()
    parts = [again.decode(part) for part in latent.split((1, 0, 3, 1), dim=2)]
    assert [part.shape[2] for part in parts] == [1, 0, 12, 4]
    assert torch.equal(torch.cat(parts, dim=2), whole)


def test_a_file_with_an_encoder_is_read_as_one_without(golden, folder):
    latent, frames = numbers(golden, "f5_4x6")
    assert (load_tiny_decoder(folder / "taew2_1.safetensors").decode(latent) - frames).abs().max() <= 2e-5


def test_lighttae_is_given_the_latent_as_the_vae_takes_it(golden, folder):
    latent, _ = numbers(golden, "f5_4x6")
    mean, std = (torch.tensor(values)[:, None, None, None] for values in (MEAN, STD))
    expected = load_tiny_decoder(folder / "taew2_1.safetensors").decode(latent * std + mean)
    made = load_tiny_decoder(folder / "lighttaew2_1.safetensors").decode(latent)
    assert (made - expected).abs().max() <= 1e-6


def test_half_precision_comes_near(golden, folder):
    latent, frames = numbers(golden, "f5_4x6")
    decoder = load_tiny_decoder(str(folder / "f5_4x6.pth"), device="cpu", dtype=torch.bfloat16)
    assert decoder.dtype == torch.bfloat16
    assert (decoder.decode(latent) - frames).abs().max() < 0.02


def test_a_latent_of_another_shape_is_refused(folder):
    with pytest.raises(InputError, match=r"\[1, 48, 1, 4, 4\].*\[1, 16"):
        load_tiny_decoder(folder / "f5_4x6.pth").decode(torch.zeros(1, 48, 1, 4, 4))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decoder.1.weight": torch.zeros(256, 48, 3, 3)}, r"1 of another shape: decoder.1.weight.*48"),
        ({"decoder.22.bias": None}, "1 missing: decoder.22.bias"),
        ({"decoder.23.bias": torch.zeros(3)}, "1 unexpected: "),
    ],
)
def test_a_file_of_other_tensors_is_refused(change, words, golden, tmp_path):
    changed = {name: value for name, value in {**tiny_weights(golden, "f1_3x5"), **change}.items() if value is not None}
    torch.save(changed, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=words):
        load_tiny_decoder(tmp_path / "other.pth")


def test_values_that_are_no_weights_are_refused_and_scales_applied(golden, tmp_path):
    plain = tiny_weights(golden, "f1_3x5")
    name = "decoder.1.weight"
    for changed, words in (
        (plain[name].to(torch.int8), f"{name} is int8 without"),
        (plain[name] * torch.nan, rf"NaN or infinity in 1 tensors \({name}\)"),
    ):
        torch.save({**plain, name: changed}, tmp_path / "taew2_1.pth")
        with pytest.raises(CheckpointError, match=words):
            load_tiny_decoder(tmp_path / "taew2_1.pth")
    scaled = {name: (plain[name] * 16).to(torch.float8_e4m3fn), "decoder.1.weight_scale": torch.tensor(1 / 16)}
    torch.save(plain | scaled, tmp_path / "taew2_1.pth")
    latent, frames = numbers(golden, "f1_3x5")
    assert (load_tiny_decoder(tmp_path / "taew2_1.pth").decode(latent) - frames).abs().max() < 0.05


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_in_half_precision_it_comes_near(golden, folder):
    latent, frames = numbers(golden, "f5_4x6")
    made = load_tiny_decoder(folder / "f5_4x6.pth", device="cuda", dtype=torch.float16).decode(latent)
    assert (made.cpu() - frames).abs().max() < 4e-3
