"""The camera cache under ComfyUI's memory management, on a real ComfyUI: it changes nothing else."""

import pytest
from host_runner import Report, run_checks

pytestmark = pytest.mark.host
LAYERS, STEPS = 3, 6


@pytest.fixture(scope="module")
def found(comfy_host) -> Report:
    return run_checks(comfy_host, "cache_checks.py")


def test_each_expert_runs_its_camera_layers_once(found):
    run = found["a_run"]
    assert run["equal"]
    assert (run["without"], run["with"]) == (STEPS * LAYERS, 2 * LAYERS)
    assert run["held"] == [[0, 0] + [LAYERS] * 2, [0, 0] + [LAYERS] * 6]  # seen once for each of two prompts
    assert run["after"] == [0, 0]


def test_modes(found):
    modes = found["modes"]
    assert "'vram', expected one of auto, off, gpu" in modes.pop("refused")
    every_step, once = [STEPS * LAYERS] * 2, [2 * LAYERS] * 2
    assert modes == {"auto": every_step, "off": every_step, "gpu": once}


def test_auto_takes_what_is_free_beyond_the_step_and_the_weights(found):
    room = found["room"]
    assert room["ample"] >= 1
    assert room["part"] == pytest.approx(0.5)
    assert room["none"] is None
    assert room["held when memory is gone"] == [None, 0]


def test_gpu_makes_room_at_the_cost_of_idle_models(found):
    assert found["making_room"] == {"calls": 1, "enough": True, "kept": [True]}


def test_whoever_needs_the_memory_gets_it(found):
    given = found["given_back"]
    assert given.pop("partly") == [4096, True]
    assert given.pop("more") == [True, True]
    assert given == {"load": 0, "hooks": 0, "cleanup": 0, "everything": 0}


def test_comfyui_has_its_own_number_of_threads_after_a_run(found):
    assert found["threads_of_a_run"] == [[4, 8], [1, 8], [6, 8]]


def test_nothing_is_held_after_an_error_or_an_interrupt(found):
    ends = found["early_ends"]
    assert (ends["error"], ends["interrupt"]) == ("ZeroDivisionError", "InterruptProcessingException")
    assert ends["error, held"] == ends["interrupt, held"] == [1, LAYERS, 0, 0]
    assert ends["afterwards"] == 0


def test_running_out_of_memory_costs_the_cache_and_nothing_else(found):
    ends = found["early_ends"]
    assert ends["out of memory"] == 0
    assert ends["out of memory, held"] == [1, LAYERS, 0, 0, 0]
    assert found["out_of_memory_while_filling"] == {"equal": True, "held at the try": [1, 0, 0]}


def test_a_lora_of_another_strength_is_seen(found):
    runs = found["lora_between_runs"]
    assert runs.pop("effect") > 1e-2
    assert runs.pop("again") == 0
    assert all(runs.values())


def test_patches_that_change_within_a_step_are_seen(found):
    assert found["hook_lora_on_one_prompt"]["equal"]
    assert found["hook_lora_on_one_prompt"]["effect"] > 1e-2


def test_cameras_that_take_turns_are_not_kept(found):
    assert found["two_cameras"] == {"equal": True, "layers": 2 * 2 * LAYERS, "held": 0}


CASES = ["windows", "easycache", "batch", "replaced", "two samplers", "back to the high expert"]


@pytest.mark.parametrize("case", CASES)
def test_other_nodes_give_the_same(found, case):
    assert found["other_nodes"][case]
