"""The ways to run the element-wise parts, held to a plain fp64 reference and to one another."""

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.model.ops.implementation import implementation, or_else, slices
from lingbot_world.model.ops.matrix_8bit import EightBit
from pointwise_cases import CASES, NAMES, check

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tokens", [1, 130, 300])
def test_eager(monkeypatch, name, dtype, tokens):
    monkeypatch.setattr("lingbot_world.model.ops.implementation.EAGER_TOKENS", 128)
    check(implementation(name, "cpu", "eager"), name, tokens, 96, dtype, "cpu", TOLERANCE[dtype])


def test_what_cannot_be_built_falls_back_once_and_says_so(caplog):
    calls = []

    def broken(*_):
        calls.append(1)
        raise RuntimeError("no compiler")

    run = or_else(broken, implementation("gated_add_", "cpu", "eager"), "gated_add_")
    for _ in range(2):
        check(run, "gated_add_", 5, 8, torch.float32, "cpu", 1e-6)
    assert len(calls) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "gated_add_ runs in plain torch on cpu, slower: no compiler"
    ]


def test_a_gpu_on_which_a_kernel_works_keeps_it():
    """The GPU is that of the first tensor, in 8 bits too. "meta" stands for a second GPU."""

    def fails_on_meta(x, *_others):
        if isinstance(x, EightBit) or x.device.type == "meta":
            raise RuntimeError("no kernel image")
        return "fast"

    run = or_else(fails_on_meta, lambda *_: "plain", "a product")
    here, there = torch.zeros(2), torch.zeros(2, device="meta")
    assert [run(x, here) for x in (here, EightBit(there, there), here, there, here)] == [
        *("fast", "plain", "fast", "plain", "fast")
    ]


def test_a_misspelt_implementation_is_refused(monkeypatch):
    monkeypatch.setenv("LINGBOT_POINTWISE", "tritn")
    implementation.cache_clear()
    with pytest.raises(InputError, match="LINGBOT_POINTWISE is tritn, expected auto, triton, compile or eager"):
        implementation("gated_add_", "cpu")
    monkeypatch.setenv("LINGBOT_POINTWISE", "")
    assert implementation("gated_add_", "cpu") is not None
    implementation.cache_clear()


def test_running_out_of_memory_is_not_a_reason_to_fall_back():
    def full(*_):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        or_else(full, implementation("gated_add_", "cpu", "eager"), "gated_add_")(
            *CASES["gated_add_"](5, 8, torch.float32, "cpu")
        )


@pytest.mark.parametrize(("length", "limit"), [(1, 128), (128, 128), (32760, 16384), (32761, 8192), (75600, 16384)])
def test_slices_cover_the_tokens_in_nearly_equal_parts(length, limit):
    parts = list(slices(length, limit))
    sizes = [part.stop - part.start for part in parts]
    assert [part.start for part in parts] == [sum(sizes[:n]) for n in range(len(sizes))]
    assert sum(sizes) == length
    assert max(sizes) <= limit
    assert len(sizes) == -(-length // limit)
    assert all(size % 128 == 0 for size in sizes[:-1])
