"""The maze that is shipped: it is whole, doors lead to the room that is behind them, and a prompt is seen at once."""

import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock

import numpy as np
import pytest
import torch
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.live import opening, running
from lingbot_world.loaders import find_package, open_checkpoint
from lingbot_world.loaders.package import open_experts
from lingbot_world.options import CAUSAL_SHIFT, FAST_INDICES, RELEASES
from lingbot_world.sampling import few_step_schedule, step_indices
from lingbot_world.tools.toy import measure, pack
from lingbot_world.tools.toy.__main__ import take_shipped
from lingbot_world.tools.toy.coder import SHAPES as VAE_SHAPES
from lingbot_world.tools.toy.measure import Walker, decibels, sharpness, truth_of
from lingbot_world.tools.toy.pack import example, in_shards, shortened
from lingbot_world.tools.toy.parameters import Parameters, keep, load_weights, save_weights
from lingbot_world.tools.toy.render import HEIGHT, WIDTH, render
from lingbot_world.tools.toy.rooms import MARGIN, clearance
from lingbot_world.tools.toy.settings import CONFIG
from lingbot_world.tools.toy.walks import steps_of
from lingbot_world.toy.package import CAUSAL
from lingbot_world.toy.world import MAZE
from PIL import Image
from safetensors.torch import load_file, save_file

STEPS = 21
"""Latent frames of a walk: through the door, to the middle of the next room."""
LAST = slice(4 * STEPS - 11, 4 * STEPS - 3)
"""Its last frames."""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maze") / "package"
    main(["toy", str(folder)])
    return folder


class Example:
    """The example's walk, as the model makes it after a prompt; of the renderer's, the first frame and the LAST."""

    def __init__(self, folder):
        self.walker, self.scene = Walker(folder, "cpu", (96, 160)), example()
        self.truth = torch.cat([truth_of(self.scene, 0, self.walker.size, part) for part in (slice(1), LAST)])

    def video(self, prompt, steps=STEPS):
        return self.walker.video(self.truth[0], steps_of(self.scene.asked[:, ::4])[0][:steps], prompt, 1)


def test_the_package_is_a_causal_model_and_experts_with_all_that_they_need(package):
    found = open_checkpoint(package / CAUSAL)
    assert found.config.causal
    assert found.shapes == CONFIG.parameter_shapes()
    high, low = open_experts(find_package(package).experts)
    assert high.config == low.config == replace(found.config, causal=False)
    assert high.quantized
    for name, entry in low.tensors.items():
        assert torch.equal(entry.view(), found.tensors[name].view()), "one model"
    prompt = (package / "example/prompt.txt").read_text(encoding="utf-8").strip()
    assert [prompt] == example().rooms.captions()


@pytest.mark.parametrize("name", pack.OTHERS)
def test_other_rooms_to_begin_in_are_as_the_renderer_sees_them(package, name):
    scene = pack.other(name)
    seen = render(scene.rooms, scene.c2w, 2 * HEIGHT, 2 * WIDTH)[0, 0].permute(1, 2, 0)
    shipped = torch.from_numpy(np.array(Image.open(package / f"example/{name}.png"))).float()
    assert (shipped - (seen + 1) * 127.5).abs().max() < 2
    prompt = (package / f"example/{name}.txt").read_text(encoding="utf-8").strip()
    assert [prompt] == scene.rooms.captions()
    assert clearance(scene.c2w[0, :, :3, 3]) > MARGIN


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], (256, 144, 1)), (["--width", "96", "--height", "64", "--chunk", "3"], (96, 64, 3))],
    ids=["the package's", "the command's"],
)
def test_a_walk_is_as_the_package_asks_where_the_command_says_nothing(package, tmp_path, monkeypatch, words, expected):
    plans = []
    monkeypatch.setattr(opening, "LoadedModel", lambda plan, _show: plans.append(plan) or SimpleNamespace(plan=plan))
    monkeypatch.setattr(running, "serve", AsyncMock())
    assert main(["live", str(package), "--no_open", "--port", "0", "--walks", str(tmp_path), *words]) == 0
    (plan,) = plans
    assert (plan.geometry.width, plan.geometry.height, plan.spec.chunk) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ('{"port": 1}', "expected an object of width, height"),
        ('{"width": "256"}', "width is '256', expected a whole number"),
        ('{"schedule": 0}', "schedule is 0, expected text"),
    ],
)
def test_a_wish_that_cannot_be_read_is_named(package, tmp_path, capsys, text, said):
    copy = tmp_path / "package"
    shutil.copytree(package, copy)
    (copy / "example/live.json").write_text(text, encoding="utf-8")
    assert main(["live", str(copy), "--no_open", "--walks", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "live.json" in told
    assert len(told.splitlines()) == 1


def test_what_is_shipped_is_small():
    sizes = [path.stat().st_size for path in MAZE.parent.rglob("*") if path.is_file()]
    assert max(sizes) < 10e6
    assert sum(sizes) < 16e6


@pytest.mark.slow
def test_a_door_leads_into_the_room_behind_it_and_a_prompt_is_seen_at_once(package):
    """The model gets neither the renderer nor the next room: what it shows there is what it has learned of mazes."""
    walk = Example(package)
    red, blue = walk.truth[0], walk.truth[-1]
    day = walk.video("a maze with red and blue walls by day")
    assert decibels(day[0], red) > 25
    assert decibels(day[-1], blue) > decibels(red, blue) + 2, "not nearer to the next room than to stay would be"
    assert decibels(day[-1], blue) > decibels(day[-1], red) + 2
    assert sharpness(day[-8:]) > 0.2 * sharpness(walk.truth[-8:])
    night = walk.video("a maze with red and blue walls at night", 9)
    assert day[8].mean() - night[8].mean() > 0.3
    assert day[32].mean() - night[32].mean() > 0.3


def test_a_file_in_shards_reads_as_the_whole(tmp_path):
    tensors = {f"part.{number}": torch.full((number + 1, 8), float(number)) for number in range(7)}
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    in_shards(file, 3)
    assert not file.exists()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    parts = [load_file(path) for path in sorted(tmp_path.glob("*.safetensors"))]
    assert len(parts) == 3
    assert index["weight_map"].keys() == tensors.keys()
    for key, tensor in {key: tensor for part in parts for key, tensor in part.items()}.items():
        assert torch.equal(tensor, tensors[key])


def test_what_is_shortened_has_six_significant_bits_the_nearest():
    random = torch.Generator().manual_seed(1)
    plain = torch.randn(4000, generator=random) * 10 ** torch.randint(-9, 9, (4000,), generator=random)
    short = shortened(plain)
    assert ((short - plain).abs() <= 2**-6 * plain.abs()).all()
    assert not (short.view(torch.int32) & (1 << 18) - 1).any()
    assert torch.equal(short.bfloat16().float(), short)
    assert torch.equal(shortened(short), short)
    assert torch.equal(shortened(torch.tensor([0.0, 1.0, -1.5, 63.0])), torch.tensor([0.0, 1.0, -1.5, 63.0]))


def test_matrices_of_a_causal_model_are_shortened_where_it_is_shipped_and_all_else_stays(tmp_path, monkeypatch):
    """Of another depth than the settings'."""
    config = replace(CONFIG, dim=64, ffn_dim=96, freq_dim=32, text_dim=32, num_layers=2)
    for name, shapes in (("vae", VAE_SHAPES), ("denoiser", config.parameter_shapes())):
        keep(tmp_path / f"{name}.pt", Parameters.random(shapes, 1, torch.device("cpu")))
    monkeypatch.setattr(pack, "write_example", lambda folder: folder.mkdir())
    monkeypatch.setattr(pack, "compressed", shutil.copytree)
    pack.write_package(tmp_path, tmp_path / "whole")
    pack.write_shipped(tmp_path, tmp_path / "shipped")
    whole, shipped = (open_checkpoint(tmp_path / name / CAUSAL) for name in ("whole", "shipped"))
    assert whole.config == shipped.config == replace(config, causal=True)
    for name, weight in load_weights(tmp_path / "denoiser.pt").items():
        assert torch.equal(whole.tensors[name].view().float(), weight)
        wanted = shortened(weight) if weight.ndim == 2 else weight
        assert torch.equal(shipped.tensors[name].view().float(), wanted)
    matrix = load_weights(tmp_path / "denoiser.pt")["blocks.1.ffn.0.weight"]
    assert not torch.equal(shortened(matrix), matrix)


def test_a_package_is_measured_as_it_says_that_it_is_walked_in(package):
    wished, walker = json.loads((package / "example/live.json").read_text(encoding="utf-8")), Walker(package, "cpu")
    assert (walker.size, walker.chunk) == ((wished["height"], wished["width"]), wished["chunk"])
    steps = step_indices(wished["schedule"], RELEASES["v1"])
    assert walker.schedule == few_step_schedule(steps, CAUSAL_SHIFT)


@pytest.mark.parametrize(
    ("words", "made"), [([], (1, (0,))), (["--chunk", "3", "--schedule", "v1"], (3, FAST_INDICES))]
)
def test_a_measurement_is_of_the_chunks_and_steps_that_are_asked_for(package, monkeypatch, capsys, words, made):
    asked = []
    for name in ("short_videos", "there_and_back", "long_walks"):
        monkeypatch.setattr(measure, name, lambda walker, *_, **__: asked.append((walker.chunk, walker.schedule)))
    monkeypatch.setattr(sys, "argv", ["measure", str(package), "--device", "cpu", *words])
    measure.main()
    assert asked == 3 * [(made[0], few_step_schedule(made[1], CAUSAL_SHIFT))]
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_training_begins_with_what_is_shipped_and_keeps_what_is_there(package, tmp_path):
    own = {"of": torch.ones(1)}
    save_weights(own, tmp_path / "vae.pt")
    take_shipped(tmp_path, denoiser=True)
    assert load_weights(tmp_path / "vae.pt").keys() == own.keys()
    taken, shipped = load_weights(tmp_path / "denoiser.pt"), open_checkpoint(package / CAUSAL).tensors
    assert taken.keys() == shipped.keys()
    assert all(torch.equal(taken[name], entry.view().float()) for name, entry in shipped.items())
