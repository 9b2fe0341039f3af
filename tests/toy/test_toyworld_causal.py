"""The toy's causal model: its training at its tiniest, and what is made of what was trained."""

import argparse
import json
import time
from dataclasses import replace

import pytest
import torch
from lingbot_world.loaders import find_package, load_expert, open_checkpoint
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.quantized import codec
from lingbot_world.options import CHUNK
from lingbot_world.pipeline import rollout as engine_rollout
from lingbot_world.pipeline.geometry import image_conditioning
from lingbot_world.sampling import few_step_schedule
from lingbot_world.tools.toyworld import causal
from lingbot_world.tools.toyworld.causal_training import SHAPES, rollout, with_change
from lingbot_world.tools.toyworld.pack import write_change
from lingbot_world.tools.toyworld.parameters import Parameters, load_weights
from lingbot_world.tools.toyworld.paths import STEP, random_walks
from lingbot_world.tools.toyworld.settings import CONFIG
from lingbot_world.toy import write_toy_world
from lingbot_world.toy.causal import ROUNDED, causal_start, expert_weights, write_causal

CPU = torch.device("cpu")
SCHEDULE = few_step_schedule((0, 500, 900), 5.0)


def test_a_walk_is_as_long_as_asked_and_no_step_is_longer_than_a_paths():
    walks = random_walks(40, torch.Generator().manual_seed(1), 81)
    assert walks.shape == (40, 81, 4, 4)
    steps = (walks[:, 4::4, :3, 3] - walks[:, :-4:4, :3, 3]).norm(dim=-1).amax(1)
    moving = steps > 0
    assert moving.float().mean() > 0.8
    torch.testing.assert_close(steps[moving], torch.full_like(steps[moving], STEP))
    back = (walks[:, 64] - walks[:, 0]).abs().amax((1, 2)) < 1e-4
    assert 0.1 < back.float().mean() < 0.7


def test_the_training_rolls_out_as_the_engine_does():
    config = replace(CONFIG, causal=True)
    weights = Parameters.random(config.parameter_shapes(), 3, CPU)
    weights.flat += 0.05 * torch.randn(weights.flat.shape, generator=torch.Generator().manual_seed(3))
    model = LingBotWorldModel(config, dtype=torch.float32)
    model.load_state_dict(weights.named())
    random = torch.Generator().manual_seed(4)
    given = image_conditioning(torch.randn(1, 16, 9, 4, 6, generator=random))
    context, camera = torch.randn(1, 7, 64, generator=random), torch.randn(1, 384, 9, 4, 6, generator=random)
    patches = camera.view(1, 384, 9, 2, 2, 3, 2).permute(0, 2, 3, 5, 1, 4, 6).reshape(1, 54, 1536)
    got = rollout(weights.named(), given, context, patches, SCHEDULE, torch.Generator().manual_seed(5))
    random = torch.Generator().manual_seed(5)
    drawn = [[torch.randn(1, 16, CHUNK, 4, 6, generator=random) for _ in SCHEDULE.timesteps] for _ in range(3)]
    later = iter([noise for chunk in drawn for noise in chunk[1:]])
    chunks = engine_rollout(
        model,
        torch.cat([chunk[0] for chunk in drawn], 2),
        given,
        context,
        camera,
        schedule=SCHEDULE,
        renoise=lambda _: next(later),
    )
    wanted = torch.cat(list(chunks), 2)
    assert (got - wanted).abs().max() < 1e-3 * wanted.abs().max()


@pytest.mark.slow
def test_a_whole_training_makes_a_causal_model_that_the_engine_opens(tmp_path):
    options = argparse.Namespace(
        out=tmp_path,
        resume=None,
        package=None,
        minutes=1,
        rate=1.0,
        held_out=1,
        seed=1,
        device="cpu",
        steps=2,
        tiny=True,
        begun=time.time(),
    )
    causal.work(options)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {line["measured"] for line in lines if "measured" in line} >= {"experts, 8 steps", "causal, walks, shift 5"}
    trained, fresh = load_weights(tmp_path / "causal.pt"), Parameters.random(SHAPES, 1, CPU).named()
    assert {key for key in SHAPES if torch.equal(fresh[key].bfloat16(), trained[key].bfloat16())} == set()
    options.resume, options.held_out, options.rate = tmp_path, 0, 0.0
    causal.work(options)
    again = load_weights(tmp_path / "causal.pt")
    assert all(torch.equal(again[key], trained[key]) for key in SHAPES)


def test_what_was_trained_is_what_the_package_gets(tmp_path):
    low, _, _ = causal.shipped(CPU)
    change = Parameters.random(SHAPES, 2, CPU)
    change.flat += 0.02 * torch.randn(change.flat.shape, generator=torch.Generator().manual_seed(2))
    torch.save(change.stored(torch.bfloat16), tmp_path / "causal.pt")
    write_change(tmp_path / "causal.pt", tmp_path / "change.safetensors")
    folder = write_toy_world(tmp_path / "toy")
    again, _, _ = causal.shipped(CPU, folder)
    assert all(torch.equal(again[name], weight) for name, weight in low.items())
    write_causal(folder / "fast", folder / "low_noise_model_bnb_nf4", tmp_path / "change.safetensors")
    assert open_checkpoint(folder / "fast").config.causal
    assert find_package(folder / "fast").causal is not None
    got = expert_weights(open_checkpoint(folder / "fast"))
    start = causal_start(low)
    assert {name for name, weight in low.items() if not torch.equal(weight, start[name])} == ROUNDED
    wanted = with_change(start, load_weights(tmp_path / "causal.pt"))
    assert all((got[name] - weight).abs().max() <= 0.01 * weight.abs().max() for name, weight in wanted.items())
    assert not torch.equal(wanted["blocks.0.ffn.0.weight"], low["blocks.0.ffn.0.weight"])
    assert load_expert(folder / "fast", dtype=torch.float32).config.causal


def test_the_causal_model_is_rounded_as_its_training_had_it():
    """With scales of the least square error; what `quantize --search` asks of a scale since has more of it."""
    low, _, _ = causal.shipped(CPU)
    start = causal_start(low)
    for name in ROUNDED:
        now = codec.squared_error(low[name], *codec.encode(low[name], search=True))
        assert (start[name] - low[name]).square().sum() < 0.999 * now, name
