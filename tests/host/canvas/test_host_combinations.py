"""Core's samplers, sigmas and guidance put together wrongly: each wrong result is reported on the node, or refused."""

import pytest
from host_runner import Report, run_checks

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def found(comfy_host, toy_package) -> Report:
    return run_checks(comfy_host, "combination_checks.py", str(toy_package))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("noise twice", "this run adds more: turn add_noise off"),
        ("steps left out", "steps are left out or made twice"),
        ("other schedule", "steps are left out or made twice"),
        ("other camera", "The run before had another start image or camera"),
        ("noise left", "the video still has that much noise"),
        ("no noise", "has ended the video, and this run expects noise"),
        ("no noise in a video", "This run adds no noise"),
    ],
)
def test_two_samplers_in_a_row_fit_or_the_second_says_what_does_not(found, case, words):
    gap, said = found["chains"][case]
    assert gap > 0.05
    assert words in said
    assert found["chains"]["right"] == [0, ""]
    assert found["chains"]["other text"][1] == ""


def test_an_empty_latent_is_no_video_to_change(found):
    said = found["empty_latents"]
    for front in ("ksampler", "sampler", "guider", "core's guider"):
        assert "The latent is empty, and the run begins at noise level 0.8" in said[front]
    assert said["video"] == ""
    assert said["rollout"].startswith("start_latent is empty")
    assert "start_latent still has noise of level 0.9" in said["rollout of a part"]
    assert "noise" not in said["rollout of a video"]
    assert "The mask of start_latent has no effect." in said["rollout of a masked video"]
    assert "mask" not in said["rollout of a video"]
    assert said["rollout's vae"].startswith("vae makes a latent [9, 4, 4, 8], expected [1, 16,")


def test_what_no_step_uses_is_said(found):
    said = found["unused"]
    assert said["plain"] == said["whole"] == said["rollout as usual"] == ""
    begin = "No step of this run is the high-noise expert's, so "
    for name, thing in {"RescaleCFG": "guidance", "LoRA": "a LoRA", "cfg": "cfg 7"}.items():
        assert said[name].startswith(begin + thing), said[name]
    assert "No step of this run is the low-noise expert's, so cfg 5" in said["low"]
    assert "At cfg 1 the negative prompt is left out" in said["cfg 1"]
    both, high = said["cfg 0"]
    assert "At cfg 0 only the negative prompt has an effect" in both
    assert "At cfg 0 of the high-noise expert only the negative prompt has an effect" in high
    assert "does not read guided_steps and guidance scale" in said["rollout"]


def test_numbers_that_are_none_are_refused_by_their_names(found):
    said = found["numbers"]
    assert all(words.startswith("cfg is nan") for words in said["cfg"])
    assert "sigmas contain NaN" in said["sigmas"]
    assert "latent contains NaN" in said["latent"]
    assert said["none"].startswith("there are no sigmas")
    assert "choose a sampler that keeps the size" in said["larger"]
    assert "reuse_threshold both skip steps" in said["two caches"]
    assert "reuse_threshold" not in said["one cache"]
    for name in ("dpm_fast", "dpm_adaptive"):
        assert f"{name} leaves out the last step, and the video keeps noise of level 0.62" in said[name]
    assert said["dpm_fast to 0.5"] == "The sigmas end at 0.5: the video still has that much noise."


def test_a_vae_goes_through_a_video_as_a_whole_whatever_the_tiles_in_time(found):
    tiles = found["tiles"]
    assert tiles["ours"] < 1e-5 < 0.05 < tiles["theirs"]
    assert tiles["encoded"] < 1e-4


def test_following_a_message_ends_it(found):
    said = found["advice"]
    assert "take LingBot-World Sigmas" in said["basic"] or "with LingBot-World Sigmas" in said["basic"]
    assert said["ours"] == said["prompt_type"] == ""
