"""A walk whose frames are a preview by the tiny decoder, and whose video is the VAE's."""

from copy import copy

import av
import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.live.beginning import find_tiny_decoder
from lingbot_world.headless.live.opening import LiveSettings
from lingbot_world.live import load_walk
from lingbot_world.vae import decode_latent, load_tiny_decoder, load_vae
from live_cases import Server, chunks, walking
from tiny_cases import tiny_weights

pytestmark = pytest.mark.usefixtures("one_thread")
PREVIEW, VIDEO = "walk.preview.mp4", "walk.mp4"


@pytest.fixture
def tiny(golden, tmp_path):
    """A file in models/vae_approx."""
    file = tmp_path / "models/vae_approx/taew2_1.pth"
    file.parent.mkdir(parents=True)
    torch.save(tiny_weights(golden, "f5_4x6"), file)
    return file


def frames_in(video):
    with av.open(str(video)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]).astype(float)


def previewed(tiny, latent):
    """The frames uint8 [n, H, W, 3] of a video by the tiny decoder."""
    frames = load_tiny_decoder(tiny).decode(latent)[0]
    return frames.mul(255).round().byte().permute(1, 2, 3, 0).numpy()


def check_video(package, tiny, walk):
    """The video is the VAE's: nearer to its frames than to the preview's, and no preview is left."""
    latent, video = load_walk(walk).latent, frames_in(walk / VIDEO)
    by_vae = decode_latent(load_vae(package / "Wan2.1_VAE.pth"), latent).numpy()
    errors = [np.abs(video - frames).mean() for frames in (by_vae, previewed(tiny, latent))]
    assert errors[1] > 6 * errors[0]
    assert not (walk / PREVIEW).exists()
    assert (walk / "walk.state").is_file()


def test_a_walk_is_shown_by_the_tiny_decoder_and_kept_by_the_vae(toy_package, tiny, tmp_path):
    server = Server(toy_package, tmp_path / "walks")
    server.loaded = copy(server.loaded)
    server.loaded.settings = LiveSettings(decoder=tiny)
    walk = tmp_path / "walks/walk-1"
    with server:
        client = server.client(lingbot_world=True)
        started = client.status("started")
        assert (started["decoder"], started["preview"]) == ("taew2_1", True)
        client.event("camera_actions", {"mode": "state", "transitions": [{"actions": ["w"]}]}, 1)
        client.chunk(6)
        assert (walk / PREVIEW).is_file()
        assert not (walk / VIDEO).exists()
        client.close()
    check_video(toy_package, tiny, walk)
    shown = np.frombuffer(b"".join(client.frames), np.uint8).reshape(-1, 32, 48, 3)
    want = previewed(tiny, load_walk(walk).latent)[: len(shown)]
    assert np.abs(shown.astype(int) - want).max() <= 1  # convolutions of a part may round otherwise than of all


def test_the_command_finds_the_decoder_by_its_name(toy_package, tiny, tmp_path):
    package = tmp_path / "models/toy"
    package.symlink_to(toy_package, target_is_directory=True)
    with walking(toy_package, tmp_path / "walks") as session:
        session.press("w")
        chunks(session, 4)
    words = ["--replay", tmp_path / "walks/walk-1", "--walks", tmp_path / "again"]
    assert main(["live", str(package), *map(str, words), "--device", "cpu", "--decoder", "taew2_1"]) == 0
    check_video(toy_package, tiny, tmp_path / "again/walk-1")
    assert torch.equal(load_walk(tmp_path / "again/walk-1").latent, load_walk(tmp_path / "walks/walk-1").latent)


@pytest.mark.parametrize(
    ("name", "said"), [("taew2_2", "neither taew2_2.safetensors nor"), ("a/b.pth", "no such file")]
)
def test_a_decoder_that_is_not_there_is_named(tmp_path, name, said):
    with pytest.raises(InputError, match=said):
        find_tiny_decoder(name, tmp_path)
