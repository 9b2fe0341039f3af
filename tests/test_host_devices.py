"""ComfyUI's MultiGPU CFG Split on our experts, on a real ComfyUI whose two devices are the CPU under two names."""

import pytest
from host_runner import Report, run_checks

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def found(comfy_host) -> Report:
    return run_checks(comfy_host, "devices_checks.py")


def test_prompt_and_negative_prompt_run_on_two_devices_in_both_experts(found):
    """Each forward has one row, and runs in a thread of its own."""
    assert found["each_device_has_one_prompt"]["forwards"] == {
        "high": 2 * [[1, True]], "high_copy": 2 * [[1, True]], "low": 4 * [[1, True]], "low_copy": 4 * [[1, True]],
    }  # fmt: skip
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
