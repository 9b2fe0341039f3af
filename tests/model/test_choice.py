"""The table of kernels: who is asked for a compute capability, what is tried, kept and set."""

import json
import os
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.model.attention.choose_8bit import supports_fp8_cache
from lingbot_world.model.choice import trials, user_cache
from lingbot_world.model.choice.card import Card, card_of
from lingbot_world.model.choice.table import (
    KITCHEN,
    SAGE,
    TABLE,
    TRITON,
    WORKS,
    candidates,
    missing,
    serves,
    triton_loads,
)
from lingbot_world.model.choice.trials import KERNEL_FUNCTIONS, KERNEL_TESTS, Size, chosen
from lingbot_world.model.ops.implementation import implementation
from played_card import CUDA, PlayedCard, forget

ROOT = Path(__file__).parents[2]
ENGINE = (
    *("model", "vae", "loaders", "weights", "pipeline", "live", "headless", "host", "nodes", "quantize", "text"),
    "sampling",
)
CPU = torch.device("cpu")
implementations = sys.modules[implementation.__module__]
EIGHT_BITS = {"int8", "fp8", "nvfp4", "mxfp8", "attention-8bit"}


def nvidia(*capability):
    return Card("nvidia", "A Card", capability)


def test_no_other_module_asks_for_a_compute_capability():
    asks = re.compile(r"get_device_capability|gcnArchName|props\.major|\.major\b|\bcapability\(")
    found = [
        str(file.relative_to(ROOT))
        for room in ENGINE
        for file in (ROOT / room).rglob("*.py")
        if asks.search(file.read_text(encoding="utf-8"))
    ]
    assert found == ["model/choice/card.py"]


def test_every_candidate_that_is_tried_can_be():
    """The modules that compute register what a trial runs when they are imported."""
    import lingbot_world.model.dit  # noqa: F401
    import lingbot_world.vae.convolutions  # noqa: F401

    for candidate in TABLE:
        if candidate.work in KERNEL_TESTS:
            assert (candidate.work, candidate.name) in KERNEL_FUNCTIONS, candidate
    assert {"int8", "fp8", "attention", "attention-8bit", "convolution"} <= set(KERNEL_TESTS)


@pytest.mark.parametrize(
    ("card", "int8", "attention", "eight_bit"),
    [
        (nvidia(7, 5), ["comfy-kitchen", "torch"], "flash", ["comfy-kitchen"]),
        (nvidia(8, 6), ["comfy-kitchen", "torch"], "flash", ["sageattention", "comfy-kitchen"]),
        (nvidia(9, 0), ["comfy-kitchen", "torch"], "LingBot-World", ["LingBot-World", "nvidia-cudnn-frontend"]),
        (
            nvidia(12, 0),
            ["comfy-kitchen", "torch"],
            "cudnn",
            ["nvidia-cudnn-frontend", "sageattention", "comfy-kitchen"],
        ),
        (Card("amd", "Radeon", arch="gfx1100"), ["comfy-kitchen", "torch"], "flash", ["comfy-kitchen"]),
        (Card("apple", "M4"), [], "torch", []),
    ],
)
def test_each_card_has_its_candidates(card, int8, attention, eight_bit):
    assert [each.name for each in candidates("int8", card)] == int8
    assert candidates("attention", card)[0].name == attention
    assert [each.name for each in candidates("attention-8bit", card)] == eight_bit
    assert all(candidates(work, card) for work in ("linear", "attention", "convolution", "norms"))


def test_a_choice_is_set_by_the_environment_and_a_wrong_one_is_refused(monkeypatch):
    monkeypatch.setenv("LINGBOT_WORLD_KERNELS", "int8=torch, attention=flash")
    card = nvidia(9, 0)
    assert [each.name for each in candidates("int8", card)] == ["torch"]
    assert not serves("attention", "LingBot-World", card)
    assert serves("convolution", "LingBot-World", card)
    for wrong, expected in (
        ("int8=torch,int8=comfy-kitchen", "int8=torch and int8=comfy-kitchen; leave one out"),
        ("int8=cublas", "expected int8=comfy-kitchen or torch"),
        ("nonsense", "one of linear, int8"),
    ):
        monkeypatch.setenv("LINGBOT_WORLD_KERNELS", wrong)
        with pytest.raises(InputError, match=expected):
            candidates("int8", card)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Install a module of this code in place of the one that may be there."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(module, code):
        (tmp_path / f"{module}.py").write_text(code)
        monkeypatch.setitem(sys.modules, module, None)  # removed at the end, if it was not there
        del sys.modules[module]

    yield install
    triton_loads.cache_clear()
    implementation.cache_clear()


def test_a_package_that_does_not_load_is_said_and_not_used(installed, caplog):
    """On Windows a DLL is often missing."""
    for package, module in ((KITCHEN, "comfy_kitchen"), (TRITON, "triton"), (SAGE, "sageattention")):
        installed(module, "raise ImportError('DLL load failed while importing _C')")
        assert missing(package, nvidia(12, 0)) == "it does not load: DLL load failed while importing _C"
    triton_loads.cache_clear()
    implementation.cache_clear()
    x, weight, bias = torch.randn(3, 8), torch.ones(8), torch.zeros(8)
    made = implementation("layer_norm", "cuda")(x, weight, bias, 1e-6, torch.float32)
    assert torch.allclose(made, torch.nn.functional.layer_norm(x, (8,), eps=1e-6), atol=1e-5)
    assert caplog.text.count("Triton is not used: it does not load: DLL load failed") == 1


def test_a_comfy_kitchen_without_kernels_is_not_used(installed):
    installed("comfy_kitchen", "")
    assert missing(KITCHEN, nvidia(12, 0)) == "this version has no kernels; update comfy-kitchen"


@pytest.mark.parametrize(("given", "name"), [("norms=torch", "partial"), ("norms=triton", "run")])
def test_a_choice_of_norms_is_that_of_the_element_wise_kernels(monkeypatch, given, name):
    monkeypatch.setenv("LINGBOT_WORLD_KERNELS", given)
    monkeypatch.setattr(implementations, "triton_loads", lambda: True)
    monkeypatch.setattr(implementations, "our_kernel", lambda _name: None)
    implementation.cache_clear()
    implementations.our_kernel_or.cache_clear()
    assert getattr(implementation("layer_norm", "cuda"), "__name__", "partial") == name
    implementation.cache_clear()
    implementations.our_kernel_or.cache_clear()


def test_a_cache_in_8_bits_is_used_if_its_kernel_may_be(monkeypatch):
    PlayedCard(monkeypatch, 9, 0, why=None)
    config = SimpleNamespace(head_dim=128)
    for given, taken in (("", True), ("cache-8bit=torch", False), ("cache-8bit=LingBot-World", True)):
        monkeypatch.setenv("LINGBOT_WORLD_KERNELS", given)
        assert supports_fp8_cache("8bit", CUDA, config) == taken
    forget()


def test_the_fastest_right_candidate_is_taken_and_kept(monkeypatch, tmp_path, caplog):
    place = tmp_path / "cache" / "cards.json"
    monkeypatch.setenv("LINGBOT_WORLD_CARDS", str(place))
    seconds = {"comfy-kitchen": 0.002, "torch": 0.001}
    card = PlayedCard(monkeypatch, 8, 6, why=None, seconds=seconds)
    with caplog.at_level("INFO"):
        assert chosen("int8", CUDA, Size()) == "torch"
    assert "int8 by torch on A Card (compute capability 8.6)" in caplog.text
    assert chosen("int8", CUDA, Size()) == "torch"
    assert card.tried == 1
    (key,) = json.loads(place.read_text())
    assert "A Card (compute capability 8.6)" in key
    assert f"torch {torch.__version__}" in key
    later = PlayedCard(monkeypatch, 8, 6, why="would not be tried")
    assert chosen("int8", CUDA, Size()) == "torch"
    assert later.tried == 0
    assert chosen("int8", CUDA, Size(dim=5120)) is None
    assert later.tried == 1
    assert trials.stored_choice("int8", nvidia(8, 6)) is None  # the last size was not right
    assert trials.stored_choice("fp8", nvidia(8, 6)) is None
    other = PlayedCard(monkeypatch, 8, 9, why=None, seconds={"comfy-kitchen": 0.001, "torch": 0.002})
    assert chosen("int8", CUDA, Size()) == "comfy-kitchen"
    assert other.tried == 1
    assert trials.stored_choice("int8", nvidia(8, 9)) == "comfy-kitchen"
    forget()


def test_a_measured_order_needs_no_time_and_wrong_candidates_are_passed_over(monkeypatch):
    PlayedCard(monkeypatch, 9, 0, why=None, seconds={"torch": 0.001, "comfy-kitchen": 0.002})
    assert chosen("int8", CUDA, Size()) == "comfy-kitchen"
    PlayedCard(monkeypatch, 9, 0, why=None, found={"comfy-kitchen": "it is wrong here"})
    assert chosen("int8", CUDA, Size()) == "torch"
    forget()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"b": [["x"]]}}'])
def test_a_broken_file_of_choices_is_passed_over(monkeypatch, tmp_path, text):
    place = tmp_path / "cards.json"
    place.write_text(text)
    monkeypatch.setenv("LINGBOT_WORLD_CARDS", str(place))
    card = nvidia(8, 6)
    assert user_cache.read(card, "int8") is None
    user_cache.store(card, "int8", [["torch"]])
    assert user_cache.read(card, "int8") == [["torch"]]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes with names")
def test_a_pipe_is_no_file_of_choices(tmp_path):
    pipe = tmp_path / "cards.json"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=('{"a": {}}',), daemon=True).start()
    assert user_cache.read_json(pipe) == {}
    assert pipe.read_text() == '{"a": {}}'


@pytest.mark.parametrize("trial", [1, {"a": 1}, ["torch"], [["torch", 0.1, "fast", None], ["flash", 0.1, 0.2, None]]])
def test_stored_trials_in_another_format_are_passed_over(monkeypatch, tmp_path, trial):
    monkeypatch.setenv("LINGBOT_WORLD_CARDS", str(tmp_path / "cards.json"))
    card = nvidia(8, 6)
    user_cache.store(card, "", [])
    user_cache.store(card, "int8 200", trial)
    assert trials.stored_choice("int8", card) is None


@pytest.mark.parametrize("wrong", ["raises", "lies"])
def test_a_kernel_is_tried_before_it_is_taken(monkeypatch, wrong):
    """On the CPU, where torch multiplies int8 too."""

    def lie(*arguments):
        if wrong == "raises":
            raise RuntimeError("no plan\nfor this")
        return 2 * KERNEL_FUNCTIONS["int8", "torch"](*arguments)

    monkeypatch.setitem(KERNEL_FUNCTIONS, ("int8", "comfy-kitchen"), lie)
    found = [each for each in TABLE if each.work == "int8"]
    tried = trials.try_all(found, CPU, Size(dim=256), timed=True)
    said = {"raises": "no plan for this", "lies": "its relative error here is 1, more than 0.02"}[wrong]
    assert tried[0].reason == said
    assert tried[1].reason is None
    assert 1e-3 < tried[1].error < 0.02
    assert tried[1].seconds is None  # nothing to compare it with
    monkeypatch.setitem(KERNEL_FUNCTIONS, ("int8", "comfy-kitchen"), KERNEL_FUNCTIONS["int8", "torch"])
    assert all(each.seconds > 0 for each in trials.try_all(found, CPU, Size(dim=256), timed=True))


def test_a_short_run_on_a_gpu_is_timed_many_times_in_a_row(monkeypatch):
    """A wait takes as long as a short run, whose time would be doubled by it."""
    clock, waits = [0.0], []

    def spend(seconds):
        clock[0] += seconds

    monkeypatch.setattr(trials, "wait", lambda device: waits.append(device) or spend(1e-4))
    monkeypatch.setattr(trials.time, "perf_counter", lambda: clock[0])
    assert trials.seconds_of(lambda: spend(1e-4), CUDA) == pytest.approx(1.02e-4)
    assert trials.seconds_of(lambda: spend(1.0), CUDA) == pytest.approx(1.0, rel=1e-3)
    assert len(waits) == 2 * 2 * 6


def test_a_package_says_itself_whether_it_serves_a_card():
    kitchen = pytest.importorskip("comfy_kitchen")
    assert missing("torch", nvidia(8, 6)) is None
    assert missing("nvidia-cudnn-frontend", nvidia(8, 6)) in (None, "not installed")
    if not kitchen.list_backends()["hip"]["available"]:
        assert "HIP" in missing("comfy-kitchen", Card("amd", "Radeon", arch="gfx1100"))


def test_every_work_has_a_candidate_for_the_cpu_but_those_in_8_bits():
    card = card_of(CPU)
    assert {work for work in WORKS if not candidates(work, card)} == EIGHT_BITS
