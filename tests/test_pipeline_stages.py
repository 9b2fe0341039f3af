"""The record of stages, the estimates, and which experts stay in memory."""

import time

import numpy as np
import pytest
import torch
from lingbot_world import run as runs
from lingbot_world.estimate import estimate_camera_cache, estimate_sampling, estimate_vae
from lingbot_world.geometry import explicit_geometry
from lingbot_world.loaders import open_checkpoint
from lingbot_world.plan import GenerateOptions, make_plan
from lingbot_world.stages import StageRecorder, anonymous_memory, table
from lingbot_world.toy import write_toy_package

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy_package(tmp_path_factory.mktemp("toy"))


def options(toy, tmp_path, **changes):
    values = {"action_path": toy / "example", "width": 64, "height": 48, "frame_num": 5, "device": "cpu"} | changes
    return GenerateOptions(toy, toy / "example/image.png", "a castle", tmp_path / "video.mp4", **values)


def test_a_stage_is_measured_from_its_beginning_to_the_next():
    with StageRecorder(CPU) as stages:
        stages.begin("idle")
        time.sleep(0.05)
        stages.begin("hungry")
        held = np.ones(40_000_000, np.uint8)
        time.sleep(0.1)
        del held
        stages.begin("after")
    idle, hungry, after = stages.stages
    assert [stage.name for stage in stages.stages] == ["idle", "hungry", "after"]
    assert idle.seconds == pytest.approx(0.05, abs=0.04)
    if anonymous_memory() is not None:
        assert hungry.host_peak - idle.host_peak > 35_000_000
        assert hungry.host_peak - after.host_peak > 35_000_000
    assert idle.gpu_peak is None
    lines = table(stages.stages).splitlines()
    assert lines[0].split() == ["stage", "seconds", "peak", "host", "GB", "peak", "GPU", "GB"]
    assert lines[-1].startswith("all")
    assert len({len(line) for line in lines}) == 1


def test_an_exception_ends_the_stage_and_its_display():
    ended = []

    class Display:
        def __init__(self, name, unit):
            self.name = name

        def __enter__(self):
            return lambda done, total: None

        def __exit__(self, *exception):
            ended.append(self.name)

    def interrupted():
        with stages:
            stages.begin("first")
            stages.begin("second")
            raise KeyboardInterrupt

    stages = StageRecorder(CPU, Display)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ended == ["first", "second"]
    assert stages.running == "second"


def test_estimates_of_the_vae_lie_at_what_was_counted():
    encode, decode = estimate_vae(96, explicit_geometry(832, 480, 81))
    assert encode.work == pytest.approx(6.028e9, rel=0.01)
    assert decode.work == pytest.approx(8.167e9, rel=0.01)
    assert decode.weights == pytest.approx(126_892_531 * 4, rel=0.01)
    small = estimate_vae(96, explicit_geometry(416, 240, 17))[1]
    assert small.work == pytest.approx(1.965e9, rel=0.01)
    tiled = estimate_vae(96, explicit_geometry(832, 480, 81), tiling=True)[1]
    assert tiled.total < decode.total / 2


def test_both_experts_need_their_weights_more(toy):
    high, low = (open_checkpoint(toy / f"{name}_noise_model_bnb_nf4") for name in ("high", "low"))
    geometry = explicit_geometry(96, 64, 9)
    one, two = (estimate_sampling(pair, geometry, torch.bfloat16, camera=True) for pair in ([high], [high, low]))
    assert two.weights == high.nbytes + low.nbytes
    assert two.total - one.total == low.nbytes
    assert estimate_sampling([high], geometry, torch.bfloat16, camera=False).work < one.work


@pytest.mark.parametrize(("spare", "residency", "both", "cached"), [
    ("nothing", "auto", False, False),
    ("cache", "auto", False, True),
    ("second", "auto", False, True),
    ("all", "auto", True, True),
    ("all", "one", False, True),
    ("nothing", "both", True, False),
])  # fmt: skip
def test_memory_goes_to_the_camera_cache_first(spare, residency, both, cached, toy, tmp_path, monkeypatch):
    plan = make_plan(options(toy, tmp_path, residency=residency))
    one = estimate_sampling([plan.high], plan.geometry, plan.dtype, camera=True).total + runs.MARGIN
    cache = estimate_camera_cache(plan.high, plan.geometry, plan.dtype)
    second = plan.low.nbytes
    room = {"nothing": 0, "cache": cache, "second": second, "all": cache + second}[spare]
    monkeypatch.setattr(runs, "free_memory", lambda device: one + room)
    on_gpu = type(plan)(**vars(plan) | {"device": torch.device("cuda")})
    assert runs.choose_residency(on_gpu) == (both, cache if cached else 0)
    assert runs.choose_residency(plan) == (residency == "both", 0)


@pytest.mark.parametrize("residency", ["one", "both"])
def test_either_residency_gives_the_same_video(residency, toy, tmp_path):
    plan = make_plan(options(toy, tmp_path, residency=residency, sampling_steps=2, seed=3))
    names = []

    def show(name, unit):
        names.append(name)
        return runs.silent(name, unit)

    runs.run(plan, show)
    loads = [name for name in names if "expert" in name or "steps" in name]
    expected = {
        "one": ["load high-noise expert", "high-noise steps", "load low-noise expert", "low-noise steps"],
        "both": ["load high-noise expert", "load low-noise expert", "high-noise steps", "low-noise steps"],
    }
    assert loads == expected[residency]
    assert (tmp_path / "video.mp4").stat().st_size > 1000


def test_a_gpu_that_runs_out_says_which_knob_to_turn(toy, tmp_path, monkeypatch):
    def exhausted(*arguments, **keywords):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    plan = make_plan(options(toy, tmp_path, sampling_steps=1))
    monkeypatch.setattr(runs, "load_expert", exhausted)
    with pytest.raises(runs.InputError, match="'load high-noise expert'; try --residency one.*Tried to allocate 2 GiB"):
        runs.run(plan)
    monkeypatch.setattr(runs, "load_vae", exhausted)
    with pytest.raises(runs.InputError, match="'VAE encode'; try --vae_tiling"):
        runs.run(plan)
    assert list(tmp_path.iterdir()) == []
