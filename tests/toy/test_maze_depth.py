"""How many blocks the maze's denoiser has: a deeper one begins as the one that it was made of."""

import sys
from dataclasses import replace

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.tools.maze import __main__ as training
from lingbot_world.tools.maze.denoiser import begun
from lingbot_world.tools.maze.depth import SILENT, config_of, depth, grown
from lingbot_world.tools.maze.settings import CONFIG
from lingbot_world.tools.maze.spans import chunks
from lingbot_world.tools.maze.twin import causal_velocity, velocity
from lingbot_world.tools.toyworld.parameters import Parameters, save_weights
from lingbot_world.tools.toyworld.twin import of_block

CPU = torch.device("cpu")
SMALL = replace(CONFIG, dim=64, ffn_dim=96, freq_dim=32, text_dim=32, num_layers=3)


def random_weights(config=SMALL):
    """None of them is zero, those of the head and of cameras neither."""
    parameters = Parameters.random(config.parameter_shapes(), 1, CPU)
    parameters.flat += 0.05 * torch.randn(parameters.flat.shape, generator=torch.Generator().manual_seed(2))
    return parameters.named()


def velocities(weights):
    """What a denoiser gives for chunks and for a whole video."""
    config, random = config_of(weights), torch.Generator().manual_seed(3)
    clean, noisy = torch.randn(2, 1, 36, 4, 4, 6, generator=random)
    times, camera = torch.full((1, 4), 500.0), torch.randn(1, 24, 1536, generator=random)
    text = torch.randn(1, 2, 7, 32, generator=random)
    return (
        causal_velocity(weights, config, clean, noisy, times, text, camera, chunks(4, 1)),
        velocity(weights, config, noisy, times[:, 0], text[:, 0], camera),
    )


@pytest.mark.parametrize(
    ("layers", "order"),
    [
        (3, [0, 1, 2]),
        (4, [0, 0, 1, 2]),
        (5, [0, 0, 1, 1, 2]),
        (7, [0, 0, 0, 1, 1, 2, 2]),
    ],
)
def test_a_grown_denoiser_computes_what_it_did(layers, order):
    weights = random_weights()
    deeper = grown(weights, layers, CPU).named()
    assert config_of(deeper) == replace(SMALL, num_layers=layers)
    assert all(torch.equal(*pair) for pair in zip(velocities(weights), velocities(deeper), strict=True))
    for index, source in enumerate(order):
        new = source in order[:index]
        for name, weight in of_block(deeper, index).items():
            wanted = of_block(weights, source)[name]
            assert torch.equal(weight, torch.zeros_like(wanted) if new and name in SILENT else wanted)


def test_what_is_new_in_it_learns():
    deeper = grown(random_weights(), 5, CPU)
    deeper.flat.requires_grad_()
    sum(made.square().mean() for made in velocities(deeper.named())).backward()
    slopes = of_block(Parameters(deeper.shapes, deeper.flat.grad).named(), 1)
    assert {name for name in SILENT if not slopes[name].any()} == set()


def test_a_training_is_as_deep_as_it_is_told_or_its_checkpoint_is_or_the_settings_are(tmp_path):
    assert (depth(tmp_path), depth(tmp_path, 2)) == (CONFIG.num_layers, 2)
    fresh = begun(tmp_path, 1, CPU, 2)
    assert config_of(fresh.named()) == replace(CONFIG, num_layers=2)
    save_weights(random_weights(), tmp_path / "denoiser.pt")
    assert (depth(tmp_path), depth(tmp_path, 3), depth(tmp_path, 8)) == (3, 3, 8)
    assert config_of(begun(tmp_path, 1, CPU).named()) == SMALL
    assert config_of(begun(tmp_path, 1, CPU, 4).named()).num_layers == 4
    with pytest.raises(InputError, match="--layers 2: .*denoiser.pt has 3, and none can be taken away"):
        begun(tmp_path, 1, CPU, 2)


@pytest.mark.parametrize(
    ("blocks", "layers", "said"),
    [
        (3, 2, "denoiser.pt has 3, and none can be taken away"),
        (0, 0, "a denoiser has at least 1"),
        (3, -1, "denoiser.pt has 3"),
    ],
)
def test_layers_that_cannot_be_are_refused_before_walks_are_rendered(
    tmp_path, monkeypatch, capsys, blocks, layers, said
):
    save_weights({}, tmp_path / "vae.pt")
    if blocks:
        save_weights(random_weights(replace(SMALL, num_layers=blocks)), tmp_path / "denoiser.pt")
    monkeypatch.setattr(sys, "argv", ["maze", str(tmp_path), "denoiser", "--layers", str(layers), "--device", "cpu"])
    with pytest.raises(SystemExit):
        training.main()
    told = capsys.readouterr().err
    assert f"--layers {layers}: " in told
    assert said in told
    assert not list(tmp_path.glob("walks-*"))
