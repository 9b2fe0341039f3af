"""The training of the maze's models: its forwards are the engine's, and a whole one at its tiniest."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from lingbot_world.camera import camera_embedding
from lingbot_world.loaders import find_package, open_checkpoint
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.kv.cache import KeyValueCache
from lingbot_world.options import Window
from lingbot_world.tools.toy import __main__ as training
from lingbot_world.tools.toy import measure, pack
from lingbot_world.tools.toy.coder import SHAPES
from lingbot_world.tools.toy.fit import Optimizer, orthogonal
from lingbot_world.tools.toy.parameters import Parameters, load_weights
from lingbot_world.tools.toy.paths import random_walks
from lingbot_world.tools.toy.pool import given, later_walks, settled, walks
from lingbot_world.tools.toy.render import LENS
from lingbot_world.tools.toy.settings import TINY
from lingbot_world.tools.toy.twin import Network, attended_to, causal_velocity, chunks, velocity
from lingbot_world.tools.toy.walks import camera_patches, ray_patches, steps_of
from lingbot_world.vae import encode_first_frame, load_vae
from torch.nn import functional as F

CPU = torch.device("cpu")
CONFIG = ModelConfig(dim=96, ffn_dim=128, num_heads=2, num_layers=2, freq_dim=64, text_dim=32)


def random_weights(shapes, seed=0):
    parameters = Parameters.random(shapes, seed, CPU)
    parameters.flat += 0.05 * torch.randn(parameters.flat.shape, generator=torch.Generator().manual_seed(seed))
    return parameters.named()


def engine(config, weights):
    model = LingBotWorldModel(config, dtype=torch.float32)
    model.load_state_dict(weights)
    return model


def patches(camera):
    """A Pluecker map [B, 384, f, 4, 6] in the model's patches."""
    return camera.unflatten(4, (3, 2)).unflatten(3, (2, 2)).permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)


def test_the_velocity_is_the_engines():
    weights, random = random_weights(CONFIG.parameter_shapes()), torch.Generator().manual_seed(2)
    x, context = torch.randn(2, 36, 3, 4, 6, generator=random), torch.randn(2, 7, 32, generator=random)
    camera, timestep = torch.randn(2, 384, 3, 4, 6, generator=random), torch.tensor([37.0, 951.0])
    wanted = engine(CONFIG, weights)(x, timestep, context, camera)
    got = velocity(Network(weights, CONFIG), x, timestep, context, patches(camera))
    assert (got - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize(
    ("frames", "chunk", "window", "sink"),
    [(12, 3, None, 0), (8, 4, None, 0), (6, 1, None, 0), (12, 3, 6, 3), (8, 1, 4, 2), (8, 4, 6, 1)],
)
def test_the_causal_velocity_is_that_of_the_engines_rollout(frames, chunk, window, sink):
    """The engine goes chunk by chunk, with a forward of each clean chunk in between, and gets another prompt half-way;
    the training goes at once."""
    config, random = replace(CONFIG, causal=True), torch.Generator().manual_seed(3)
    weights = random_weights(config.parameter_shapes())
    model = engine(config, weights)
    clean, noisy = torch.randn(2, 1, 36, frames, 4, 6, generator=random)
    prompts, camera = torch.randn(1, 2, 7, 32, generator=random), torch.randn(1, 384, frames, 4, 6, generator=random)
    times = torch.arange(frames)[None] // chunk * 90.0 + 40
    got = causal_velocity(
        Network(weights, config), clean, noisy, times, prompts, patches(camera), chunks(frames, chunk, window, sink)
    )
    history = KeyValueCache(config, 6, Window(window or frames, sink), chunk=chunk, device=CPU, dtype=torch.float32)
    for first in range(0, frames, chunk):
        part, options, text = slice(first, first + chunk), {"kv_cache": history}, prompts[:, int(2 * first >= frames)]
        history.begin()
        wanted = model(noisy[:, :, part], times[:, first], text, camera[:, :, part], options)
        assert (got[:, :, part] - wanted).abs().max() < 1e-4 * wanted.abs().max()
        history.keep = True
        model(clean[:, :, part], torch.zeros(1), text, camera[:, :, part], options)
        history.keep = False


def test_a_later_half_sees_the_sink_and_itself():
    attends = dict(chunks(12, 3, 9, 3, 6))
    assert attends[6, 9] == ((0, 3), (6, 9))
    assert attends[9, 12] == ((0, 3), (6, 9), (9, 12))
    assert attends[21, 24] == ((0, 3), (6, 9), (21, 24))
    config, random = replace(CONFIG, causal=True), torch.Generator().manual_seed(4)
    weights = random_weights(config.parameter_shapes())
    x, text = torch.randn(2, 1, 36, 6, 4, 6, generator=random), torch.randn(1, 2, 7, 32, generator=random)
    camera, times = torch.randn(1, 36, 1536, generator=random), torch.full((1, 6), 500.0)
    network, attends = Network(weights, config), chunks(6, 3, 6, 3, 3)
    near, far = (causal_velocity(network, *x, times, text, camera, attends, later) for later in (0, 50))
    torch.testing.assert_close(near[:, :, :3], far[:, :, :3])
    assert (near[:, :, 3:] - far[:, :, 3:]).abs().max() > 1e-3


def test_attention_in_spans_is_masked_attention_backwards_too():
    random, attends = torch.Generator().manual_seed(0), chunks(6, 1, 4, 2)
    q, k, v = (torch.randn(2, 2, 60, 8, dtype=torch.float64, generator=random, requires_grad=True) for _ in range(3))
    mask = torch.zeros(12, 12, dtype=torch.bool)
    for (first, end), seen in attends:
        for start, stop in seen:
            mask[first:end, start:stop] = True
    mask = mask.repeat_interleave(5, 0).repeat_interleave(5, 1)
    got, wanted = attended_to(q, k, v, attends, 5), F.scaled_dot_product_attention(q, k, v, mask)
    slope = torch.randn(got.shape, dtype=torch.float64, generator=random)
    torch.testing.assert_close(got, wanted)
    for mine, right in zip(*(torch.autograd.grad(made, (q, k, v), slope) for made in (got, wanted)), strict=True):
        torch.testing.assert_close(mine, right)


def test_matrices_are_turned_into_ones_with_equal_singular_values():
    matrices = torch.randn(3, 40, 24, generator=torch.Generator().manual_seed(1))
    for turned in (orthogonal(matrices), orthogonal(matrices.mT).mT):
        values = torch.linalg.svdvals(turned)
        assert values.min() > 0.6
        assert values.max() < 1.3
        assert (torch.einsum("nij,nij->n", turned, matrices) > 0.7 * torch.linalg.svdvals(matrices).sum(1)).all()


@pytest.mark.parametrize(
    ("shapes", "taken", "left"),
    [
        (SHAPES, "decoder.middle.0.residual.2.weight", "decoder.head.2.weight"),
        (CONFIG.parameter_shapes(), "blocks.1.ffn.0.weight", "head.head.weight"),
    ],
)
def test_a_step_goes_downhill(shapes, taken, left):
    """Of a sum of squares: by Muon where there are matrices, by Adam elsewhere."""
    parameters = Parameters.random(shapes, 0, CPU)
    optimizer, before = Optimizer(parameters), parameters.flat.clone()
    matrices = {name for names in optimizer.groups.values() for name in names}
    assert taken in matrices
    assert left not in matrices
    for _ in range(3):
        optimizer.step(2 * parameters.flat, 1e-3)
    for name, moved in Parameters(shapes, (before - parameters.flat) * before).named().items():
        assert moved.mean() > 0 or not Parameters(shapes, before).named()[name].any(), name


def test_gradients_reach_every_parameter():
    config = replace(CONFIG, num_layers=1)
    parameters = Parameters.random(config.parameter_shapes(), 0, CPU)
    parameters.flat += 0.05 * torch.randn(parameters.flat.shape)
    parameters.flat.requires_grad_()
    x = torch.randn(2, 1, 36, 4, 2, 2)
    network, times = Network(parameters.named(), config), torch.full((1, 4), 500.0)
    text, camera = torch.randn(1, 2, 3, 32), torch.randn(1, 4, 1536)
    causal_velocity(network, *x, times, text, camera, chunks(4, 1)).square().mean().backward()
    cut = Parameters(parameters.shapes, parameters.flat.grad).named()
    assert {name for name, gradient in cut.items() if not gradient.any()} == set()


def test_the_camera_is_the_engines():
    paths = random_walks(6, torch.Generator().manual_seed(4), frames=9)
    got = camera_patches(steps_of(paths[:, ::4]), ray_patches(32, 48))
    for path, mine in zip(paths, got, strict=True):
        wanted = camera_embedding(path.double().numpy(), LENS, frames=9, height=32, width=48)
        torch.testing.assert_close(mine, patches(wanted)[0], atol=2e-5, rtol=0)


def test_what_is_given_of_a_picture_is_what_the_engine_gives():
    """The first latent frames as the encoder makes them, then what it makes of grey when it has settled."""
    vae = random_weights(SHAPES, 3)
    pool = walks(vae, 2, 5, TINY, CPU)
    image = given(pool.first, settled(vae, TINY, CPU), 8)
    assert torch.equal(image[:, :4, 0], torch.ones_like(image[:, :4, 0]))
    assert not image[:, :4, 1:].any()
    assert image.shape[2:] == (8, TINY.height // 8, TINY.width // 8)
    black = encode_first_frame(load_vae(vae), torch.zeros(3, TINY.height, TINY.width), 117)[0, :, -1]
    torch.testing.assert_close(image[0, 4:, -1], black, atol=1e-3, rtol=1e-3)


def test_walks_of_a_pool_change_where_their_prompts_do():
    vae = random_weights(SHAPES, 3)
    pool = walks(vae, 12, 7, TINY, CPU)
    assert pool.latent.shape == (12, 16, 2 * TINY.half, TINY.height // 8, TINY.width // 8)
    assert pool.steps.shape == (12, 2 * TINY.half, 4, 4)
    changed = pool.kinds[:, 0] != pool.kinds[:, 1]
    assert 0 < changed.sum() < 12
    later = later_walks(vae, 2, 7, TINY, CPU)
    assert later.latent.shape[1:] == pool.latent.shape[1:]
    assert torch.equal(later.kinds[:, 0], later.kinds[:, 1])


def run(monkeypatch, main, *words):
    monkeypatch.setattr(sys, "argv", ["maze", *map(str, words)])
    main()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_whole_training_makes_a_package_in_which_the_engine_walks(tmp_path, monkeypatch):
    out = tmp_path / "out"
    for part, steps in (("vae", 2), ("denoiser", 2), ("denoiser", 1), ("decoder", 1)):
        run(monkeypatch, training.main, out, part, "--tiny", "--steps", steps, "--device", "cpu")
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["part"] for line in lines if "part" in line] == ["vae", "denoiser", "denoiser", "decoder"]
    measured = [line for line in lines if "measured" in line]
    assert [line["measured"] for line in measured] == ["denoiser", "denoiser", "decoder"]
    assert all(0 < line[name] < 10 for line in measured[:2] for name in ("seen", "unseen"))
    assert {"true first", "true later", "made sharpness"} <= measured[2].keys()
    assert [line["count"] for line in lines if "count" in line] == [2, 4], "a run's walks are kept for the next"
    kept = [torch.load(out / f"walks-{run}.pt")[0]["latent"] for run in (0, 1)]
    assert not torch.equal(*kept), "which renders others"
    assert (out / "denoiser.pt").stat().st_size < 25e6
    with monkeypatch.context() as patch:
        patch.setattr(pack, "write_example", lambda folder: folder.mkdir())  # it takes seconds, at its full size
        run(monkeypatch, pack.main, out, tmp_path / "package")
    assert find_package(tmp_path / "package").text_encoder
    causal = open_checkpoint(tmp_path / "package" / "lingbot_world_fast")
    assert causal.config.causal
    assert causal.config.num_layers == 8
    trained = load_weights(out / "denoiser.pt")
    assert all(torch.equal(entry.view().float(), trained[name]) for name, entry in causal.tensors.items())
    walker = measure.Walker(tmp_path / "package", "cpu", (TINY.height, TINY.width))
    found = measure.short_videos(walker, 1, 21)
    found |= measure.long_walks(walker, 1, 21) | measure.there_and_back(walker, 1, 21)
    assert all(abs(value) < 1e4 for value in found.values()), found
