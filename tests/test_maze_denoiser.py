"""What the maze's denoiser is trained with besides its forward: what it made of walks before, and an adversary."""

import pytest
import torch
from lingbot_world.tools.maze import adversary, denoiser
from lingbot_world.tools.maze.adversary import Adversary, judged
from lingbot_world.tools.maze.denoiser import Given, Layout, Steps, begun
from lingbot_world.tools.maze.pool import Pool
from lingbot_world.tools.maze.rooms import CAPTIONS, WORDS
from lingbot_world.tools.maze.settings import CONFIG, TINY
from lingbot_world.tools.toyworld.parameters import Parameters, save_weights
from lingbot_world.tools.toyworld.prompts import embeddings

CPU = torch.device("cpu")
SHAPES = CONFIG.parameter_shapes()
FRAMES, CELLS = 2 * TINY.half, (TINY.height // 8, TINY.width // 8)


def random_pool(count, seed):
    random = torch.Generator().manual_seed(seed)
    latent = torch.randn(count, 16, FRAMES, *CELLS, generator=random)
    steps = torch.eye(4).repeat(count, FRAMES, 1, 1)
    return Pool(latent, latent[:, :, : TINY.half], steps, torch.zeros(count, 2, dtype=torch.long))


@pytest.fixture
def steps():
    data = Given(embeddings(CAPTIONS, WORDS), torch.zeros(1, 16, 1, *CELLS), random_pool(6, 1), random_pool(6, 2))
    return Steps(Parameters.random(SHAPES, 1, CPU), data, TINY, torch.Generator().manual_seed(3))


def test_what_is_made_of_a_walk_is_kept_for_its_next_visit(steps):
    before = steps.made[0].latent.clone()
    assert torch.equal(before, steps.data.walks.latent), "at first the true latents"
    steps.slope(Layout(1, False, 0))
    known = steps.made[0].known
    assert 0 < known.sum() <= TINY.batch
    changed = (steps.made[0].latent != before).flatten(1).any(1)
    assert torch.equal(changed, known)
    assert steps.made[0].latent.abs().max() <= denoiser.MOST
    assert not steps.made[1].known.any(), "later walks are kept apart"


def test_what_nothing_near_is_known_of_stays_true(steps):
    steps.slope(Layout(1, True, 2))
    kept, true = steps.made[1], steps.data.later.latent
    blind = slice(TINY.half, TINY.half + denoiser.BLIND)
    assert torch.equal(kept.latent[:, :, blind], true[:, :, blind])
    assert not torch.equal(kept.latent[kept.known][:, :, 0], true[kept.known][:, :, 0])


def test_a_fresh_denoiser_begins_sharper_and_a_kept_one_as_it_is(tmp_path):
    plain, fresh = Parameters.random(SHAPES, 5, CPU).named(), begun(tmp_path, 5, CPU).named()
    changed = {name.split(".")[-2] for name in plain if not torch.equal(plain[name], fresh[name])}
    assert changed == {"norm_q", "norm_k", "patch_embedding_wancamctrl"}
    save_weights(plain, tmp_path / "denoiser.pt")
    assert all(torch.equal(plain[name], weight) for name, weight in begun(tmp_path, 6, CPU).named().items())


def test_an_adversary_tells_soft_latents_from_sharp_ones_and_pulls_towards_these(monkeypatch):
    monkeypatch.setattr(adversary, "RATE", 2e-3)
    monkeypatch.setattr(adversary, "IDLE", 30)
    random = torch.Generator().manual_seed(4)
    judge, asked = Adversary(1, CPU, random, 0.5), torch.ones(4, 2)
    asked[:, 1] = 0  # which is not asked for, and gets no gradient
    for step in range(60):
        sharp = torch.randn(4, 16, 2, 4, 6, generator=random)
        soft, slope = 0.2 * sharp, torch.ones_like(sharp)
        added = judge.added(slope, soft, sharp, asked) - slope
        assert added.norm().item() == pytest.approx(0.5 * slope.norm().item() * (step + 1 > 30), rel=1e-3)
    right, wrong = (judged(judge.parameters.named(), part[:, :, 0]).mean() for part in (sharp, soft))
    assert right > wrong + 0.5
    assert not added[:, :, 1].any()
    moved = soft - 0.5 * added / added.abs().max()
    assert judged(judge.parameters.named(), moved[:, :, 0]).mean() > wrong
