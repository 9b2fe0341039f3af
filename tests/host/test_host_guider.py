"""Both experts in one run, on a real ComfyUI: equal to the official runs, and well-behaved among other nodes."""

import pytest
from host_runner import Report, run_checks

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def found(comfy_host) -> Report:
    return run_checks(comfy_host, "guider_checks.py")


@pytest.mark.parametrize("case", ["unipc", "unipc_nocam", "dpmpp"])
def test_every_step_equals_the_official_run(found, case):
    assert found["golden"][case] < 1e-4


@pytest.mark.parametrize("solver", ["unipc", "dpmpp"])
def test_nf4_run_equals_the_engine(found, solver):
    assert found["against_the_engine"][solver] < 1e-4


def test_steps_without_the_model_are_the_engines(found):
    result = found["steps_without_the_model"]
    assert result["gap"] < 1e-4
    assert result["host"] == result["engine"] < 14
    assert result["masked"] < 14
    assert result["kept"] == 0
    assert result["low alone"] < 7


@pytest.mark.parametrize("solver", ["unipc", "dpmpp"])
def test_official_integers_come_out_of_the_sigmas(found, solver):
    assert found["timesteps"][solver]["wrong"] == 0
    assert found["timesteps"][solver]["tried"] > 100


def test_a_run_leaves_no_conditioning_to_the_garbage_collector(found):
    assert found["left_behind"] == []


def test_low_expert_is_loaded_at_its_first_step(found):
    assert found["load_order"] == ["load high"] + 2 * ["step high"] + ["load low"] + 4 * ["step low"]


def test_low_experts_file_is_read_two_steps_ahead(found):
    events = found["read_ahead"]
    assert events[-3:] == ["read low: True", "step high", "step high"]
    assert len(events) > 4
    assert events.count("read low: True") == 1


def test_an_expert_without_steps_is_not_loaded(found):
    events = found["below_the_boundary"]
    assert set(events["low only"]) == {"load low", "step low"}
    assert set(events["high only"]) == {"load high", "step high"}
    assert events["no steps"] == []
    assert events["refused"].pop("no steps").startswith("there are no sigmas")
    assert set(events["refused"].values()) == {None}
    assert found["boundaries"] == {"0.0": ["load high", "step high"], "1.0": ["load low", "step low"]}


def test_impossible_pairs_are_refused(found):
    assert "same model" in found["refusals"]["one model twice"]
    assert "expected 0 to 1" in found["refusals"]["boundary"]
    assert found["refusals"]["models"] == [True, True]


def test_core_samplers_run_across_the_switch(found):
    results = dict(found["core_samplers"])
    assert results.pop("euler gap") < 1e-5
    assert all(result["finite"] and result["size"] < 20 for result in results.values())


def test_two_ksamplers_give_the_same(found):
    assert found["two_ksamplers"] < 1e-4


def test_masked_latents_are_kept(found):
    assert found["denoise_mask"]["kept"] == 0
    assert found["denoise_mask"]["sampled"] > 1


def test_interrupt_and_error_leave_the_next_run_alone(found):
    assert found["interrupted"] == {
        "stopped": True,
        "left behind": [],
        "after interrupt": 0,
        "failed": True,
        "after error": 0,
    }


def test_easycache_skips_steps_of_each_expert(found):
    result = found["easycache"]
    assert result["finite"]
    assert result["high"] >= 1
    assert result["low"] >= 1
    assert result["high"] + result["low"] < 12


def test_context_windows_cut_the_camera_too(found):
    whole, short = found["context_windows"]["whole"], found["context_windows"]["short"]
    assert whole["gap"] < 1e-5
    assert short["gap"] > 1e-3
    assert all(latent == camera for latent, camera in short["frames"])
    assert [2, 2] in short["frames"]


def test_torch_compile_changes_nothing_and_traces_one_block_of_eight(found):
    assert found["torch_compile"]["gap"] < 1e-5
    assert 1 <= found["torch_compile"]["graphs"] < 8


def test_both_prompts_run_as_one_batch_with_one_camera(found):
    assert found["one_batch"] == [[2, 1]]


def test_cameras_that_cannot_be_used_are_refused(found):
    assert "no camera layers" in found["plain_wan_and_camera"]["plain"]
    assert "[2, 8, 12]" in found["plain_wan_and_camera"]["short"]


def test_prompt_and_negative_prompt_run_on_two_devices_in_both_experts(found):
    """Each forward has one row, and runs in a thread of its own."""
    assert found["each_device_has_one_prompt"]["forwards"] == {
        "high": 2 * [[1, True]],
        "high_copy": 2 * [[1, True]],
        "low": 4 * [[1, True]],
        "low_copy": 4 * [[1, True]],
    }
    assert found["each_device_has_one_prompt"]["gap"] < 1e-4


@pytest.mark.parametrize("case", ["high only", "low only", "high split", "low split"])
def test_it_gives_what_one_device_gives_where_one_expert_is_without_steps_or_not_split(found, case):
    assert found["parts_of_a_run"][case] < 1e-4


@pytest.mark.parametrize("place", ["before", "behind"])
def test_loras_act_on_both_devices_wherever_they_were_loaded(found, place):
    assert found["loras"][place] < 1e-4
    assert found["loras"]["effect"] > 0.1


def test_the_camera_cache_is_kept_on_both_devices_and_ends_with_the_run(found):
    cache = found["camera_cache"]
    assert cache["gap"] < 1e-4
    assert cache["kept"] == [False, True, False, True, True, True]
    assert cache["left"] == 0


@pytest.mark.parametrize(("what", "raised"), [("error", "ZeroDivisionError"), ("stop", "InterruptProcessingException")])
def test_what_ends_the_second_device_ends_the_run_and_nothing_stays(found, what, raised):
    assert found["errors"][what] == raised
    assert found["errors"][f"after {what}"] == [0, 0]
