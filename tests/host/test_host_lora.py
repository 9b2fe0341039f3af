"""LoRAs on 4-bit experts are exact, whatever ComfyUI's memory management does, on a real ComfyUI."""

import pytest
from host_runner import Report, run_checks

pytestmark = pytest.mark.host
EXACT = 1e-5
KINDS = ["peft", "kohya", "diff", "lightning"]


@pytest.fixture(scope="module")
def found(comfy_host) -> Report:
    return run_checks(comfy_host, "lora_checks.py")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file(found, kind):
    assert found["kinds"][kind] < EXACT
    assert found["kinds"][f"{kind} effect"] > 0.1


def test_strength_zero_negative_and_large(found):
    assert max(found["strengths"].values()) < EXACT


def test_two_loras_add_up(found):
    assert found["stacked"] < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_partial_loads_keep_it(found, kind):
    stages = found["partial_loads"][kind]
    assert stages.pop("functions left after unload") == 0
    everything, some = stages.pop("lowvram layers"), stages.pop("layers at half")
    assert everything > some > 0
    assert max(stages.values()) < EXACT


def test_static_loading_streams_what_comfyui_loads(found):
    result = found["uploads_together"]
    assert result["sent in full"]
    assert result["sent again"]
    assert result["layers to a buffer"] == 1
    assert 0.1 < result["left after unloading a third"] < 0.9
    assert result["lowvram"]
    assert not result["sent after unload"]
    assert not result["waiting after"]
    assert max(result["gaps"]) < EXACT


def test_weights_of_more_bits_are_uploaded_rounded_and_do_not_exist_twice(found):
    assert found["upload_of_another_dtype"] == [[51, ["torch.bfloat16"]], [51, ["torch.float32"]]]


def test_a_failed_upload_leaves_every_weight_in_its_file(found):
    result = found["upload_fails"]
    assert result.pop("afterwards") < EXACT
    assert result == {"OutOfMemoryError": [True, False, 0], "ValueError": [True, False, 0]}


def test_forced_patches_are_not_baked(found):
    assert found["forced_patches"] < EXACT


def test_loras_are_held_on_the_device_where_there_is_room(found):
    result = found["held_on_the_device"]
    assert result["held"]
    assert result["still held"]
    assert not result["held without room"]
    assert max(gap for name, gap in result.items() if name.startswith("gap")) < EXACT


def test_weights_are_found_in_their_file(found):
    assert found["file_slices"]["marked"] >= 51  # every linear layer
    assert found["file_slices"]["wrong"] == []


def test_clones_take_turns(found):
    assert max(found["clones"].values()) < EXACT


def test_one_expert_only(found):
    assert max(found["one_expert_only"].values()) < EXACT


def test_clones_keep_the_class(found):
    assert found["clone_classes"] == ["ExpertPatcher", "ExpertPatcher"]


def test_hook_loras_add_to_the_models_own(found):
    assert found["hook_lora"]["hook on"] < EXACT
    assert found["hook_lora"]["hook off"] < EXACT


def test_a_hook_lora_of_another_width_is_refused(found):
    assert "[32, 32] in the LoRA and [64, 64] in the expert" in found["hook_lora_of_another_width"]


def test_a_weight_that_does_not_fit_is_left_out_with_one_warning(found):
    assert found["a_weight_that_does_not_fit"]["gap"] < EXACT
    warnings = found["a_weight_that_does_not_fit"]["warnings"]
    (ours,) = (text for text in warnings if "left out" in text)
    assert "blocks.0.ffn.0.weight is [3, 5] in the LoRA" in ours
    assert not any("MISMATCH" in text for text in warnings)  # ComfyUI's, at every use


def test_saving_a_4_bit_expert_is_refused(found):
    assert "cannot be saved" in found["saving"]


def test_weights_return_to_the_mapped_file(found):
    assert found["back_to_the_file"] == {"moved": True, "home": True}
