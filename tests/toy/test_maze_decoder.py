"""The sharpening of the decoder: of which walks and frames, and to what end; the training's VAE is the engine's."""

from dataclasses import replace

import pytest
import torch
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.tools.toy import decoder_training as training
from lingbot_world.tools.toy.coder import SHAPES, before_last_stage, decode, encode, last_stage
from lingbot_world.tools.toy.decoder_training import (
    BEGINNINGS,
    CLIP,
    CLIPS,
    FIRST,
    LAST,
    WARM,
    Watched,
    clips,
    detail,
    loss_of,
    made_of,
    measured_decoder,
    train_decoder,
    watched,
)
from lingbot_world.tools.toy.fit import Log, Phase
from lingbot_world.tools.toy.parameters import Parameters
from lingbot_world.tools.toy.pool import Pool, plain
from lingbot_world.tools.toy.prompts import embeddings
from lingbot_world.tools.toy.settings import CONFIG, TINY
from lingbot_world.vae import VideoDecoder, encode_first_frame, load_vae
from lingbot_world.vae.network import Decoder
from lingbot_world.vae.weights import vae_shapes
from torch.nn import functional as F

CPU = torch.device("cpu")
CELLS, FRAMES = (TINY.height // 8, TINY.width // 8), 2 * TINY.half
SMALL = replace(CONFIG, num_layers=1)


def random_weights(shapes, seed):
    parameters = Parameters.random(shapes, seed, CPU)
    parameters.flat += 0.05 * torch.randn(parameters.flat.shape, generator=torch.Generator().manual_seed(seed))
    return parameters.named()


@pytest.fixture(scope="module")
def data():
    vae, denoiser = random_weights(SHAPES, 3), random_weights(SMALL.parameter_shapes(), 4)
    return watched(vae, denoiser, embeddings(), 2, 5, TINY)


@pytest.fixture
def numbered():
    """Three walks of twenty frames: each number tells which walk, which frame and which place it is of."""
    walk, frame, down, across = torch.meshgrid(*map(torch.arange, (3, 20, 80, 80)), indexing="ij")
    pictures = (60 * walk + frame)[..., None].expand(-1, -1, -1, -1, 3).to(torch.uint8)
    place = torch.stack([60 * walk + frame, down, across], -1).half()
    return Watched(pictures, place, place + 256)


def test_a_clips_pictures_are_of_what_the_decoder_is_given(numbered):
    choice, seen = torch.Generator().manual_seed(0), []
    for _ in range(60):
        features, pictures, counts = clips(numbered, choice)
        made = (features[:, 0, 0, 0, 1] >= 256).half()
        number, down, across = (features - 256 * made[:, None, None, None, None]).unbind(-1)
        assert torch.equal(number.to(torch.uint8), pictures[..., 0])
        assert (down.diff(dim=2) == 1).all()
        assert (across.diff(dim=3) == 1).all()
        assert (number[..., 0, 0].diff(dim=1) == 1).all()
        begins = number[:, 0, 0, 0] % 60 == 0
        assert torch.equal(counts[begins], torch.tensor([[FIRST, *[1.0] * (CLIP - 1)]]).expand(int(begins.sum()), -1))
        learned = torch.tensor([[0.0] * WARM + [1.0] * (CLIP - WARM)])
        assert torch.equal(counts[~begins], learned.expand(CLIPS - int(begins.sum()), -1))
        seen.append(torch.stack([made.float().mean(), begins.float().mean(), (number[:, 0, 0, 0] % 60).float().max()]))
    own, begun, latest = torch.stack(seen).unbind(1)
    assert abs(own.mean() - 0.5) < 0.1
    assert abs(begun.mean() - BEGINNINGS) < 0.1
    assert latest.max() == 20 - CLIP


def test_the_last_stage_goes_on_from_the_others_as_the_engine_does():
    vae = random_weights(SHAPES, 3)
    latent = torch.randn(1, 16, 3, *CELLS, generator=torch.Generator().manual_seed(1))
    made = last_stage(vae, before_last_stage(vae, plain(latent))).clamp(-1, 1)
    wanted = VideoDecoder(load_vae(vae), *CELLS).decode(latent)
    assert (made[0].add(1).mul(127.5) - wanted.float()).abs().max() < 0.6


def test_detail_tells_how_large_differences_are_and_not_where_they_lie():
    fine = torch.zeros(1, 2, 32, 32, 3)
    fine[:, :, ::2] = 0.5
    shifted = fine.roll(1, 2)
    assert F.mse_loss(fine, shifted) > 0.2
    torch.testing.assert_close(detail(fine, 8), detail(shifted, 8))
    assert (detail(fine, 8) > 1.9 * detail(0.5 * fine, 8)).all()
    assert detail(fine, 16).shape == (2, 1, 2, 2)


def test_soft_pictures_cost_for_their_detail_and_moved_ones_do_not(monkeypatch):
    """Though those that are moved err more."""
    true = torch.rand(1, 3, 40, 40, 3, generator=torch.Generator().manual_seed(2))
    soft = F.avg_pool2d(true[0].movedim(-1, 1), 3, 1, 1).movedim(1, -1)[None]
    monkeypatch.setattr(training, "last_stage", lambda _last, given: given)

    def cost(made, weight):
        monkeypatch.setattr(training, "DETAIL", weight)
        return loss_of({}, 2 * made - 1, (255 * true).round(), torch.ones(1, 3))

    moved = true.roll((3, 5), (2, 3))
    assert cost(moved, 0.0) > cost(soft, 0.0)
    assert cost(soft, 1.0) - cost(soft, 0.0) > 5 * (cost(moved, 1.0) - cost(moved, 0.0)) > 0


@pytest.mark.usefixtures("one_thread")
def test_only_the_last_stage_learns_and_paints_more_detail(data, tmp_path):
    vae = random_weights(SHAPES, 3)
    assert data.pictures.shape == (2, 4 * FRAMES - 3, TINY.height, TINY.width, 3)
    before = measured_decoder(vae, data)
    trained = train_decoder(vae, data, Phase(0, 40, rate=4.0), Log(tmp_path / "log.jsonl", 0.0), 1).named()
    after = measured_decoder(trained, data)
    assert all(torch.equal(trained[name], vae[name]) != (name in LAST) for name in SHAPES)
    assert after["made later"] > before["made later"] + 1
    assert after["true first"] > before["true first"] + 1
    for name in ("true sharpness", "made sharpness"):
        assert abs(after[name] - 1) < abs(before[name] - 1)


def test_walks_are_made_with_their_own_prompts_pictures_and_cameras():
    random, texts = torch.Generator().manual_seed(1), embeddings()
    model = LingBotWorldModel(replace(SMALL, causal=True), dtype=torch.float32)
    model.load_state_dict(random_weights(SMALL.parameter_shapes(), 2))
    latent, first = (torch.randn(1, 16, frames, *CELLS, generator=random) for frames in (FRAMES, TINY.half))
    moved = torch.eye(4).repeat(1, FRAMES, 1, 1)
    moved[:, TINY.half :, 2, 3] = 0.5
    same = {
        "latent": latent,
        "first": first,
        "steps": torch.eye(4).repeat(1, FRAMES, 1, 1),
        "kinds": torch.tensor([[3, 3]]),
    }
    grey = torch.zeros(1, 16, 1, *CELLS)

    def made(**other):
        return made_of(model, Pool(**(same | other)), texts, grey, TINY, torch.Generator().manual_seed(5))

    plain = made()
    assert plain.shape == latent.shape
    assert torch.equal(plain, made(latent=torch.zeros_like(latent))), "nothing is known of the true ones"
    for other in ({"kinds": torch.tensor([[3, 9]])}, {"steps": moved}):
        changed = made(**other)
        torch.testing.assert_close(changed[:, :, : TINY.half], plain[:, :, : TINY.half])
        assert (changed - plain)[:, :, TINY.half :].abs().amax() > 1e-3
    assert (made(first=-first) - plain)[:, :, 0].abs().amax() > 1e-3


def test_the_coder_is_the_engines_vae():
    weights = {name: tensor.detach() for name, tensor in random_weights(vae_shapes(4), 3).items()}
    vae, frames = load_vae(weights), 13
    image = torch.randn(3, 16, 24, generator=torch.Generator().manual_seed(1))
    video = torch.zeros(1, frames, 16, 24, 3)
    video[0, 0] = image.permute(1, 2, 0)
    latent = encode(weights, video)[..., :16]
    normalised = torch.stack([vae.normalized(frame.permute(0, 3, 1, 2)) for frame in latent.unbind(1)], 2)
    torch.testing.assert_close(normalised, encode_first_frame(vae, image, frames), atol=1e-4, rtol=1e-4)
    decoder, wanted = Decoder(vae.weights), []
    for frame in latent.unbind(1):
        wanted += decoder.decode(frame.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last))
    got = decode(weights, latent).permute(0, 1, 4, 2, 3)[0]
    torch.testing.assert_close(got, torch.cat(wanted), atol=1e-4, rtol=1e-4)
