"""What stays in GPU memory, by how much is free: the order in which things are given up."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lingbot_world.headless.many import model_cache
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.plan import make_plan
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.loaders.offload import weight_bytes
from lingbot_world.options import PerExpert
from lingbot_world.pipeline.memory import MARGIN, Residency, choose_residency, estimate_camera_cache, estimate_sampling
from lingbot_world.pipeline.two_experts import ParallelGroups
from lingbot_world.toy.experts import write_expert
from lingbot_world.toy.weights import EXPERT, Weights


@pytest.fixture(scope="module")
def plan(toy_package, tmp_path_factory):
    """The toy package's plan, as if for a GPU, with an expert of six blocks for both."""
    folder = tmp_path_factory.mktemp("six")
    settings = {"action_path": toy_package / "example", "width": 64, "height": 48, "frame_num": 5, "device": "cpu"}
    image = toy_package / "example/image.png"
    options = GenerateOptions(
        ckpt_dir=toy_package, image=image, prompt="a castle", output=folder / "out.mp4", **settings
    )
    config, weights = replace(EXPERT, num_layers=6), Weights(seed=0)
    tensors = ((name, weights.layer(name, shape)) for name, shape in config.parameter_shapes().items())
    write_expert(folder / "six.safetensors", config, tensors)
    expert = open_checkpoint(folder / "six.safetensors")
    return replace(make_plan(options), experts=PerExpert(expert, expert), device=torch.device("cuda"))


def choose(plan, free, residency="auto", **together):
    wishes = replace(plan.memory_options, residency=residency)
    return choose_residency(plan.sampling_work(**together), wishes, plan.device, free)


def needed(plan, resident_blocks=None, experts=1):
    options = {"camera": plan.camera is not None, "resident_blocks": resident_blocks}
    return estimate_sampling([plan.experts.high] * experts, plan.geometry, plan.precision(), **options).total + MARGIN


@pytest.mark.parametrize(
    ("spare", "residency", "both", "cached"),
    [
        ("nothing", "auto", False, 0),
        ("half", "auto", False, 0.5),
        ("cache", "auto", False, 1),
        ("second", "auto", False, 1),
        ("all", "auto", True, 1),
        ("all", "one", False, 1),
        ("all", "both", True, 1),
        ("nothing", "both", True, 0),
    ],
)
def test_memory_goes_to_the_camera_cache_first(spare, residency, both, cached, plan):
    cache = estimate_camera_cache(plan.experts.high, plan.geometry, plan.dtype)
    room = {"nothing": 0, "half": cache / 2, "cache": cache, "all": cache + plan.experts.low.nbytes}
    room["second"] = room["all"] - 1
    assert choose(plan, needed(plan) + room[spare], residency) == Residency(both, cached * cache)


@pytest.mark.parametrize("processes", [2, 4])
def test_divided_weights_leave_their_room_to_the_camera_cache(processes, plan):
    together = ParallelGroups(weights=SimpleNamespace(size=lambda: processes))
    checkpoint = plan.experts.high
    assert weight_bytes(checkpoint, 0, processes) < weight_bytes(checkpoint, None)
    options = {"camera": True, "resident_blocks": 0, "holders": processes}
    divided = estimate_sampling([checkpoint], plan.geometry, plan.precision(), **options)
    assert choose(plan, divided.total + MARGIN + 1000, together=together) == Residency(False, 1000, 0)
    assert choose(replace(plan, device=torch.device("cpu")), 0, together=together) == Residency(False, 0, 0)


def test_experts_are_kept_for_the_next_group_where_all_has_room(plan, monkeypatch):
    free, store = {"bytes": 2**40}, model_cache.ModelCache()
    monkeypatch.setattr(model_cache, "free_memory", lambda _device: free["bytes"])

    def expert(plan):
        store.prepare(plan)
        return store.expert(plan, "high", lambda: load_expert(plan.experts.high, dtype=torch.float32))

    first = expert(plan)
    assert expert(plan) is first
    assert expert(replace(plan, experts=PerExpert(replace(plan.experts.high), plan.experts.low))) is not first
    free["bytes"] = needed(plan) - plan.experts.high.nbytes
    assert expert(plan) is not expert(plan)


def test_a_file_that_changed_is_opened_again(tmp_path):
    path, files = tmp_path / "file", model_cache.OpenFiles()
    path.write_text("one")
    assert files(Path.read_text, path) is files(Path.read_text, path)
    path.write_text("other")
    assert files(Path.read_text, path) == "other"


@pytest.mark.parametrize(("mode", "spare", "kept"), [("off", 1, 0), ("gpu", 0, 1), ("auto", 0, 0), ("auto", 1, 1)])
def test_the_camera_cache_can_be_switched_off_and_insisted_on(mode, spare, kept, plan):
    cache = estimate_camera_cache(plan.experts.high, plan.geometry, plan.dtype)
    plan = replace(plan, options=replace(plan.options, camera_cache=mode))
    assert choose(plan, needed(plan) + spare * cache, "one") == Residency(False, kept * cache)


def test_without_a_camera_there_is_no_cache_and_the_second_expert_comes_first(plan):
    plan = replace(plan, camera=None)
    assert choose(plan, needed(plan, experts=2)) == Residency(both=True)
    assert choose(plan, needed(plan, experts=2) - 1) == Residency()


def test_where_one_expert_does_not_fit_as_many_blocks_stay_as_do(plan, caplog):
    assert choose(plan, needed(plan)).resident_blocks is None
    assert not caplog.records
    for blocks in (3, 2, 1):
        assert choose(plan, needed(plan, blocks)) == Residency(resident_blocks=blocks)
        assert choose(plan, needed(plan, blocks) - 1) == Residency(resident_blocks=blocks - 1)
    assert choose(plan, 0) == Residency(resident_blocks=0)
    assert "0 of its 6 blocks stay there" in caplog.text


def test_what_is_asked_for_is_done_whatever_is_free(plan):
    assert choose(plan, 0, "one") == Residency()
    assert choose(plan, 0, "both") == Residency(both=True)
    assert choose(plan, 2**62, "stream") == Residency(resident_blocks=0)


def test_mapped_weights_need_no_decision(plan):
    plan = replace(plan, device=torch.device("cpu"))
    assert choose(plan, 0) == choose(plan, 0, "one") == Residency()
    assert choose(plan, 0, "both") == Residency(both=True)
    assert choose(plan, 0, "stream") == Residency(resident_blocks=0)


def test_the_larger_expert_decides(plan):
    """In a package of a 4-bit and a plain expert."""
    low = plan.experts.low
    larger = replace(low, tensors=low.tensors | {"twin": low.tensors["patch_embedding.weight"]})
    free = needed(plan)
    assert choose(plan, free).resident_blocks is None
    assert choose(replace(plan, experts=replace(plan.experts, low=larger)), free).resident_blocks is not None
