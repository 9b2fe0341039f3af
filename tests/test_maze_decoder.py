"""The training of the maze's decoder on what its denoiser makes: of which walks, of which frames, to what end."""

from dataclasses import replace

import pytest
import torch
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.options import CAUSAL_SHIFT, FAST_INDICES, Window
from lingbot_world.pipeline.world import World
from lingbot_world.sampling import few_step_schedule
from lingbot_world.tools.maze import decoder_training
from lingbot_world.tools.maze.adversary import PICTURES, Adversary, Sight
from lingbot_world.tools.maze.camera_map import camera_patches
from lingbot_world.tools.maze.coder_training import SHAPES
from lingbot_world.tools.maze.decoder_training import (
    CLIP,
    DECODER,
    FIRST,
    WARM,
    Watched,
    _clips,
    _made,
    measured_decoder,
    train_decoder,
    watched,
)  # fmt: skip
from lingbot_world.tools.maze.pool import Pool, given
from lingbot_world.tools.maze.rooms import CAPTIONS, WORDS
from lingbot_world.tools.maze.settings import CONFIG, SINK, TINY, WINDOW
from lingbot_world.tools.toyworld.camera_map import ray_patches
from lingbot_world.tools.toyworld.fit import Log, Phase
from lingbot_world.tools.toyworld.parameters import Parameters
from lingbot_world.tools.toyworld.prompts import embeddings
from lingbot_world.tools.toyworld.team import Team

CPU = torch.device("cpu")
CELLS, FRAMES = (TINY.height // 8, TINY.width // 8), 2 * TINY.half
SMALL = replace(CONFIG, num_layers=1)
TEAM = Team(CPU, (0,), 0)


def random_weights(shapes, seed):
    parameters = Parameters.random(shapes, seed, CPU)
    parameters.flat += 0.05 * torch.randn(parameters.flat.shape, generator=torch.Generator().manual_seed(seed))
    return parameters.named()


def test_what_is_made_of_walks_is_what_the_engines_rollout_makes():
    """Chunk by chunk, with another prompt half-way and the same noise."""
    random, texts = torch.Generator().manual_seed(1), embeddings(CAPTIONS, WORDS)
    weights, grey = random_weights(SMALL.parameter_shapes(), 2), torch.randn(1, 16, 1, *CELLS, generator=random)
    steps = torch.eye(4).repeat(2, FRAMES, 1, 1)
    steps[:, 1:, 2, 3] = torch.rand(2, FRAMES - 1, generator=random)
    latent, first = (torch.randn(2, 16, frames, *CELLS, generator=random) for frames in (FRAMES, TINY.half))
    pool = Pool(latent, first, steps, torch.tensor([[3, 3], [5, 9]]))
    (made,) = _made(weights, pool, texts, grey, TINY, torch.Generator().manual_seed(7))

    model = LingBotWorldModel(replace(SMALL, causal=True), dtype=torch.float32)
    model.load_state_dict(weights)
    noise = torch.randn(pool.latent.shape, generator=torch.Generator().manual_seed(7))
    window = Window(WINDOW * TINY.half // 12, SINK * TINY.half // 12)
    maps = camera_patches(pool.steps, ray_patches(TINY.height, TINY.width)).view(2, FRAMES, 2, 3, 384, 2, 2)
    camera, image = maps.permute(0, 4, 1, 2, 5, 3, 6).reshape(2, 384, FRAMES, *CELLS), given(pool.first, grey, FRAMES)
    for index in range(2):
        row, world = slice(index, index + 1), World(model, CELLS, window, chunk=1, device=CPU)
        for frame in range(FRAMES):
            world.prompt = texts[pool.kinds[row, int(2 * frame >= FRAMES)]]
            one = slice(frame, frame + 1)
            wanted = world.chunk(noise[row, :, one], image[row, :, one], camera[row, :, one],
                                 few_step_schedule(FAST_INDICES[:1], CAUSAL_SHIFT), torch.zeros)  # fmt: skip
            assert (made[row, :, one] - wanted).abs().max() < 1e-3, (index, frame)


@pytest.fixture
def numbered():
    """Three walks of twelve latent frames: each number tells which walk and which frame it is of."""
    walk, frame, picture = torch.arange(3)[:, None], torch.arange(12), torch.arange(45)
    pictures = (50 * walk + picture)[:, :, None, None, None].expand(-1, -1, 16, 24, 3).to(torch.uint8)
    latent = (100.0 * walk + frame)[:, :, None, None, None].expand(-1, -1, 2, 3, 16)
    return Watched(pictures, latent, latent + 1000)


def test_a_clips_pictures_are_those_of_its_latents(numbered):
    """The latent frame f of a walk is the picture 4 f, and the three before it."""
    sizes, random, seen = replace(TINY, whole=4), torch.Generator().manual_seed(0), []
    for _ in range(60):
        latent, pictures, learned = _clips(numbered, sizes, random)
        made = latent[:, 0, 0, 0, 0] >= 1000
        number = (latent - 1000 * made[:, None, None, None, None])[..., 0, 0, 0].long()
        walk, frame = number // 100, number % 100
        assert torch.equal(pictures[:, ::4, 0, 0, 0].long(), 50 * walk + 4 * frame)
        assert (pictures[..., 0, 0, 0].long().diff(dim=1) == 1).all()
        begins = frame[:, 0] == 0
        assert (learned[begins, 0] == FIRST).all()
        assert (learned[begins, 1:] == 1).all()
        warm = 4 * WARM + 1
        assert not learned[~begins, :warm].any()
        assert (learned[~begins, warm:] == 1).all()
        seen.append(torch.stack([made.float().mean(), begins.float().mean(), frame[:, 0].float().max()]))
    own, begun, latest = torch.stack(seen).unbind(1)
    assert abs(own.mean() - (1 - decoder_training.TRUE)) < 0.1
    assert abs(begun.mean() - decoder_training.BEGINNINGS) < 0.1
    assert latest.max() == 12 - CLIP


def test_only_the_decoder_learns_and_it_learns_what_the_denoiser_makes(tmp_path):
    vae, denoiser = random_weights(SHAPES, 3), random_weights(SMALL.parameter_shapes(), 4)
    data = watched(vae, denoiser, embeddings(CAPTIONS, WORDS), 2, 5, TINY)
    assert data.pictures.shape == (2, 4 * FRAMES - 3, TINY.height, TINY.width, 3)
    assert data.made.shape == data.true.shape == (2, FRAMES, *CELLS, 16)
    log, before = Log(tmp_path / "log.jsonl", 0.0), measured_decoder(vae, data)
    trained = train_decoder(vae, data, TEAM, Phase(0, 60), TINY, 4.0, log, 1, 0.0).named()
    after = measured_decoder(trained, data)
    assert all(torch.equal(trained[name], vae[name]) != (name in DECODER) for name in SHAPES)
    assert after["made later"] > before["made later"] + 1
    assert after["true later"] > before["true later"] + 1


def test_the_adversary_is_heeded_beside_the_error(tmp_path, monkeypatch):
    """The same decoder, data and clips, with it and without."""
    monkeypatch.setattr("lingbot_world.tools.maze.adversary.IDLE", 1)
    vae, denoiser = random_weights(SHAPES, 3), random_weights(SMALL.parameter_shapes(), 4)
    data, log = watched(vae, denoiser, embeddings(CAPTIONS, WORDS), 2, 5, TINY), Log(None, 0.0)
    with_it, without = (train_decoder(vae, data, TEAM, Phase(0, 3), TINY, 1.0, log, 1, share).flat
                        for share in (0.5, 0.0))  # fmt: skip
    assert with_it.isfinite().all()
    assert not torch.equal(with_it, without)


def test_an_adversary_of_pictures_sees_frames_one_behind_the_other():
    frames = torch.arange(5.0)[None, None, :, None, None].expand(2, 3, 5, 16, 16)
    seen = PICTURES.of(frames)
    assert seen.shape == (6, 9, 16, 16)
    assert seen[0, ::3, 0, 0].tolist() == [0, 1, 2]
    assert seen[5, ::3, 0, 0].tolist() == [2, 3, 4]
    judge = Adversary(1, CPU, torch.Generator().manual_seed(1), 0.5, PICTURES)
    asked = torch.tensor([[1.0, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    slope = judge.slope(torch.randn(2, 3, 5, 16, 16), frames / 5, asked)
    assert slope.shape == frames.shape
    assert not slope[1, :, :2].any(), "what is asked for has not seen these"
    assert slope[1, :, 2:].any()


def test_what_an_adversary_sees_of_latents_are_frames_alone():
    latents = torch.randn(2, 16, 3, 4, 6)
    assert torch.equal(Sight(1, (), 0, 0).of(latents), latents.movedim(2, 1).flatten(0, 1))

