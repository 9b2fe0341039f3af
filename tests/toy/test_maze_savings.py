"""The tool that measures what savings cost in the maze and what is left of long walks: on short ones, as shipped."""

import json
import sys

import pytest
import torch
from lingbot_world.headless.command.cli import main as command
from lingbot_world.options import Window
from lingbot_world.tools.maze import savings
from lingbot_world.tools.maze.camera_map import steps_of
from lingbot_world.tools.maze.measure import Walker
from lingbot_world.tools.maze.rooms import clearance

FRAMES = 21

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maze") / "package"
    command(["toy", str(folder), "--maze"])
    return folder


@pytest.fixture(scope="module")
def found(package):
    """What is said of a walk, in a few ways."""
    names = savings.DEFAULT, savings.NOISE, "--chunk 4", "--kv_cache 8bit"
    ways = {name: savings.WAYS[name] for name in names}
    ways |= {"again": {}, "sees itself alone": {"window": Window(1)}}
    return {line["way"]: line for line in savings.savings(package, ways, 1, FRAMES)}


def test_the_same_way_gives_the_same_video_and_others_another(found):
    """A chunk of 4 does not divide these six latent frames: the walk is filled up, and cut."""
    away = {name: line["from the first"] for name, line in found.items()}
    assert away.pop("default") == away.pop("again") == 100
    assert max(away.values()) < 99
    assert away["--kv_cache 8bit"] > max(away[name] for name in ("sees itself alone", savings.NOISE))


def test_who_does_not_look_back_loses_the_picture_that_was_given(found):
    blind = found["sees itself alone"]
    assert blind["less"] > 2, blind
    assert blind["later"] == pytest.approx(found["default"]["later"] - blind["less"], abs=1e-3)
    assert found["--kv_cache 8bit"]["less"] < 0.5


def test_a_walk_comes_back_as_it_went_and_the_model_is_asked_for_no_more_than_that():
    scenes = savings.there_and_back(8, 3, 481)
    gone, asked = scenes.c2w, scenes.asked
    torch.testing.assert_close(gone, gone.flip(1))
    assert gone.shape[1] == 481
    assert (gone[:, :241] - asked[:, :241]).abs().max() > 0.5, "none walks into anything"
    torch.testing.assert_close(steps_of(asked[:, 240:]), steps_of(gone[:, 240:]), atol=1e-4, rtol=0)
    assert clearance(gone[..., :3, 3]).min() > 0


def test_who_sees_the_first_picture_knows_it_again_and_who_does_not_does_not(package):
    seeing, blind = (
        savings.drift(Walker(package, "cpu", window=window, **savings.BEST), 1, 33)
        for window in (Window(18, 6), Window(1))
    )
    assert seeing["last frame"] > seeing["plain"] + 2
    assert seeing["last frame"] > blind["last frame"] + 2
    assert seeing["last frames"] == [pytest.approx(seeing["last frame"])]
    assert 0 < seeing["sharpness"] < 1.5
    assert seeing["colour at most"] == pytest.approx(seeing["colour"])


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["--part", "savings", "--frames", "5"], [("default",), ("--schedule v1",), ("quantize",)]),
        (["--part", "drift", "--seconds", "1"], [(1, 1), (3, 1)]),
    ],
)
def test_the_command_prints_a_line_for_each_way(package, monkeypatch, capsys, words, keys):
    monkeypatch.setattr(sys, "argv", ["savings", str(package), "--count", "1", "--device", "cpu", *words])
    ways = {name: savings.WAYS[name] for name in (savings.DEFAULT, "--schedule v1")}
    monkeypatch.setattr(savings, "WAYS", ways)
    monkeypatch.setattr(savings, "SMALLER", {"quantize": savings.SMALLER["quantize"]})
    savings.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [(line["way"],) if "way" in line else (line["chunk"], line["seconds"]) for line in lines]
    assert told == keys
