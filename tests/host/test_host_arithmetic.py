"""Experts in 8-bit arithmetic on a real ComfyUI: the engine's numbers, LoRAs as exact as before."""

import pytest
from host_runner import Report, run_checks

pytestmark = pytest.mark.host
EXACT = 1e-5


@pytest.fixture(scope="module")
def found(comfy_host) -> Report:
    return run_checks(comfy_host, "arithmetic_checks.py")


@pytest.mark.parametrize("arithmetic", ["fp8", "int8"])
def test_the_engines_numbers(found, arithmetic):
    assert found["as_in_the_engine"][arithmetic] < EXACT
    assert found["as_in_the_engine"][f"{arithmetic} effect"] > 1e-3


def test_rotated_operands_are_the_engines(found):
    assert found["rotated"]["gap"] < EXACT
    assert found["rotated"]["effect"] > 1e-3


def test_attention_in_8_bits_is_the_engines(found):
    result = found["attention_in_8_bits"]
    assert result["gap"] < EXACT
    assert result["effect"] > 1e-3
    assert result["handed on"] < result["effect"] / 4, result  # queries and keys by other scales
    assert result["doubled"] > 1e-2
    assert result["anew"] == "self_attention_8bit"


def test_loras_are_exact_and_reach_only_their_layers(found):
    result = found["with_loras"]
    assert result["everywhere"] < EXACT
    assert result["layers left"] == 0
    assert result["layers with one"] == result["layers without"] - 1 > 0
    assert result["one layer, from exact"] > 1e-3
    assert result["one layer, from none"] > 1e-2
    assert not result["as dynamic VRAM adds it"]


def test_an_expert_that_is_partly_on_the_device(found):
    assert found["partly_loaded"]["layers left off"] > 0
    assert found["partly_loaded"]["gap"] == 0


def test_a_model_that_comfyui_makes_anew_keeps_it(found):
    assert found["made_anew"] == "int8"


def test_a_card_without_it_is_refused_in_words(found):
    wanted = "`arithmetic` fp8 needs an NVIDIA GPU of compute capability 8.9 or later, this is A Card"
    assert found["refusals"].startswith(wanted)
