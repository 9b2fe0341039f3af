"""What the maze's denoiser is trained with besides its forward: what it made of walks before, noise, an adversary."""

import pytest
import torch
from lingbot_world.options import CAUSAL_SHIFT, FAST_INDICES
from lingbot_world.sampling import few_step_schedule
from lingbot_world.tools.toy import adversary, denoiser
from lingbot_world.tools.toy.adversary import Adversary, judged
from lingbot_world.tools.toy.denoiser import WHOLE, Given, Layout, Steps, _noised, _robust, begun, drawn
from lingbot_world.tools.toy.parameters import Parameters, save_weights
from lingbot_world.tools.toy.pool import Pool
from lingbot_world.tools.toy.prompts import embeddings
from lingbot_world.tools.toy.settings import CONFIG, TINY

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
    data = Given(embeddings(), torch.zeros(1, 16, 1, *CELLS), random_pool(6, 1), random_pool(6, 2))
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


def test_an_adversary_sees_small_patches_and_large_ones():
    """By where in a frame what it says of a patch in the middle has a gradient."""
    weights = Parameters.random(adversary.SHAPES, 1, CPU).named()
    latents = torch.randn(1, 16, 64, 64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    heads = judged(weights, latents).unflatten(1, (2, 32, 32))[0]
    for told, size in zip(heads, (10, 24), strict=True):
        seen = torch.autograd.grad(told[16, 16], latents, retain_graph=True)[0].abs().sum((0, 1)).nonzero()
        first, last = seen.amin(0), seen.amax(0)
        assert (last - first + 1).tolist() == [size, size]
        assert (first < 32).all()
        assert (last >= 32).all()


@pytest.mark.parametrize("cells", [(18, 32), CELLS])
def test_both_heads_of_an_adversary_have_the_same_weight(cells):
    weights = {name: torch.zeros(shape) for name, shape in adversary.SHAPES.items()}
    weights |= {"near.bias": torch.ones(1), "far.bias": torch.full((1,), 3.0)}
    told = judged(weights, torch.randn(2, 16, *cells))
    assert told.mean(1).tolist() == [2.0, 2.0]


def test_an_adversary_is_heeded_at_all_noise_levels_where_something_is_learned(steps):
    class Pull:
        def added(self, slope, made, true, asked):
            return slope + asked[:, None, :, None, None]

    made, clean = torch.randn(2, 2, 16, FRAMES, *CELLS, generator=torch.Generator().manual_seed(4))
    sigma, learned = torch.rand(2, FRAMES).clamp(min=0.1), (torch.arange(FRAMES) != 3).float()
    slopes = []
    for steps.adversary in (None, Pull()):
        made.requires_grad_()
        slopes.append(torch.autograd.grad(steps._judged(made, clean, sigma, learned), made)[0])
    pulled = learned[:, None, None].expand_as(made)
    torch.testing.assert_close(slopes[1] - slopes[0], pulled)


def test_a_chunk_has_the_noise_level_of_a_step_the_first_one_where_nothing_is_made_yet():
    before, known = torch.zeros(64, 16, 12, 2, 2), torch.arange(64) < 32
    noisy, sigma = _noised(before, known, 3, torch.Generator().manual_seed(1))
    assert noisy.std() == pytest.approx(sigma.square().mean().sqrt().item(), rel=0.02)
    assert torch.equal(sigma[:, ::3].repeat_interleave(3, 1), sigma)
    steps = torch.tensor(few_step_schedule(FAST_INDICES, CAUSAL_SHIFT).sigmas)
    assert set(sigma[:32].unique().tolist()) == set(steps.tolist())
    assert (sigma[32:] == steps[0]).all()


def test_the_first_step_is_learned_most_since_it_is_enough_to_walk():
    before, known = torch.zeros(2000, 16, 2, 1, 1), torch.ones(2000, dtype=torch.bool)
    sigma = _noised(before, known, 1, torch.Generator().manual_seed(1))[1]
    shares = [(sigma == step).float().mean().item() for step in sigma.unique().flip(0)]
    assert shares == pytest.approx([0.625, 0.125, 0.125, 0.125], abs=0.03)


def test_small_errors_count_squared_and_large_ones_by_their_length():
    small, large = (_robust(torch.full((1, 16, 1, 2, 2), size)).item() for size in (0.01, 3.0))
    assert small == pytest.approx(0.01**2 / 0.2 + 0.25 * 0.01**2, rel=0.01)
    assert large == pytest.approx(3.0 - 0.1 + 0.25 * 9, rel=0.01)


def test_half_of_the_steps_of_walks_are_of_the_chunks_that_are_walked_with():
    choice = torch.Generator().manual_seed(1)
    layouts = [layout for layout in (drawn(choice) for _ in range(4000)) if layout != WHOLE]
    assert sum(layout.chunk == 1 for layout in layouts) / len(layouts) == pytest.approx(0.5, abs=0.05)
    assert {layout.chunk for layout in layouts} == {1, 3, 4}
