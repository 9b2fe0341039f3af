"""Nothing wrong without a word: every node of ComfyUI that makes a CONDITIONING or changes a MODEL is used, said, or
refused in a sentence, before our nodes and before KSampler; and so is what is wrong only where it stands."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from core_node_rows import FRONTS, LETTERS, ROWS, documented, names
from host_runner import Report, run_checks
from lingbot_world.toy.experts import write_expert_folder
from lingbot_world.toy.package import CAUSAL
from lingbot_world.toy.weights import EXPERT, expert_tensors

pytestmark = pytest.mark.host

DOCS = Path(__file__).parents[3] / "docs" / "comfyui.md"


SAMPLERS = ("sampler", "guider", "advanced", "rollout")
HOOKS = (
    "Create Hook LoRA, Pair Cond Set Props",
    "Create Hook LoRA, Cond Set Props",
    "Cond Set Props Combine",
    "of all layers",
    "Create Hook LoRA (MO)",
    "Set CLIP Hooks",
    "Set CLIP Hooks, scheduled",
    "Set Hook Keyframes",
    "Set Hook Keyframes, off at the end",
    "Create Hook Keyframes Interp.",
    "Create Hook Keyframes From Floats",
    "Create Hook Model as LoRA",
    "Combine Hooks [2]",
    "Combine Hooks [4]",
    "Combine Hooks [8]",
    "one on each prompt",
)


@pytest.fixture(scope="module")
def narrow(toy_package, tmp_path_factory) -> Path:
    """The toy with narrower experts, because hundreds of videos are made with them; the seed is one with which the
    nodes change as much as with the toy's."""
    package = shutil.copytree(toy_package, tmp_path_factory.mktemp("narrow") / "toy")
    narrow = replace(EXPERT, dim=128)
    for name, seed in {"high_noise_model_bnb_nf4": 60, "low_noise_model_bnb_nf4": 61, CAUSAL: 64}.items():
        write_expert_folder(package / name, replace(narrow, causal=name == CAUSAL), expert_tensors(seed, narrow))
    return package


@pytest.fixture(scope="module")
def found(comfy_host, narrow) -> Report:
    return run_checks(comfy_host, "node_rule_checks.py", str(narrow))


@pytest.fixture(
    scope="module", params=["", *(pytest.param(each, marks=pytest.mark.gpu) for each in ("dynamic", "static"))]
)
def hooked(comfy_host, narrow, request) -> Report:
    """On the CPU; on a GPU with dynamic VRAM and without."""
    if request.param and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return run_checks(
        comfy_host, "hook_checks.py", str(narrow), *filter(None, [request.param]), shared=not request.param
    )


def test_a_node_that_comfyui_gains_needs_a_row(found):
    rows = [name for code in ROWS for name in names(code)]
    assert sorted(rows) == sorted(found["core_nodes"])


@pytest.mark.parametrize("code", ROWS)
def test_each_node_is_used_said_or_refused(found, code):
    wanted = dict(zip(FRONTS, (LETTERS[letter] for letter in code), strict=True))
    wrong = {
        name: became
        for name in names(code)
        if name in found["core_nodes"]
        for became in [found["core_nodes"][name]]
        if {front: what for front, (what, _) in became.items()} != wanted
    }
    assert not wrong


def test_no_words_are_empty_and_no_front_ends_in_a_traceback(found):
    for name, became in found["core_nodes"].items():
        for what, words in became.values():
            assert what in LETTERS.values(), (name, words)
            assert words or what not in ("told", "refused"), name


def test_the_documentation_has_the_table(found):
    text, core = DOCS.read_text(encoding="utf-8"), found["core_nodes"]
    needs = {name: core[name]["sampler"][1].removeprefix("needs ") for name in names("----")}
    assert [row for row in documented(needs) if row not in text] == []


@pytest.mark.parametrize("front", ["sampler", "ksampler"])
@pytest.mark.parametrize(
    ("key", "what", "node"),
    [
        ("concat_latent_image", "start image", "WanImageToVideo"),
        ("lingbot_camera", "camera", "Apply LingBot-World Camera"),
    ],
)
def test_what_is_missing_on_one_side_is_said_of_that_side(found, key, what, node, front):
    said = found["sides"][f"{key} {front}"]
    assert said["positive"].startswith(f"The {what} is in negative only, not in positive")
    assert said["negative"].startswith(f"The {what} is in positive only, not in negative")
    assert said["negative"].endswith(f"the same {node}.")
    assert said["both"].startswith("No ")
    assert said["other"].startswith(f"The {what} of negative is another one than that of positive")
    assert said["copied"] == ""


def test_steps_of_the_other_expert_are_said_under_comfyuis_samplers(found):
    said = found["wiring"]
    assert said["right"] == ""
    assert said["whole"].startswith("3 of 4 steps are the low-noise expert's")
    assert said["low whole"].startswith("1 of 4 steps are the high-noise expert's")
    assert all("are the experts swapped?" in words for words in said["swapped"])
    assert "return_with_leftover_noise" in said["to the end"]


def test_what_is_on_one_expert_only_is_said_but_not_of_loras(found):
    said = found["one_expert_only"]
    assert "context windows (high noise)" in said["one"]
    assert said["both"] == said["LoRA"] == ""


def test_a_sampler_that_writes_into_its_sigmas_gets_a_copy(found):
    assert found["sigmas_stay"] == {"ours": True, "core": True}


def test_sigmas_that_lead_nowhere_and_a_run_from_nothing_are_said(found):
    said = found["sigmas"]
    assert said["usual"] == ""
    wanted = {
        "none": "There is no step",
        "flipped": "The sigmas rise",
        "of others": "The sigmas begin at 14.6",
        "half": "The sigmas end at 0.5",
        "nothing": "There is neither noise nor a video",
    }
    assert {name: said[name].startswith(words) for name, words in wanted.items()} == dict.fromkeys(wanted, True), said


def test_a_latent_of_which_nothing_is_kept_is_said(found):
    assert found["latents"]["empty"] == ""
    assert found["latents"]["full"].startswith("The latent holds a video, of which a run from full noise keeps nothing")


@pytest.mark.parametrize("front", FRONTS)
def test_keys_that_nobody_foresaw_are_said_and_other_texts_refused(found, front):
    in_text, on_model, refused = found["keys"][front]
    assert in_text == 'LingBot-World does not read "tomorrow".'
    assert on_model.startswith("A node has put tomorrow on the model")
    assert "embeddings of 7 values, the model takes 64" in refused


def test_a_prompt_that_predicts_nothing_somewhere_is_refused(found):
    refused = found["nothing_predicted"]
    assert refused["filled"] == ""
    assert "the prompt predicts nothing in step 1 of 2: its mask is empty" in refused["empty"]
    assert "the prompt predicts nothing in step 2 of 2" in refused["early"]
    assert "the negative prompt predicts nothing in step 1 of 2" in refused["negative"]
    assert "begins at x 640, y 0 and has 64x64 pixels in a video of 64x32" in refused["outside"]
    assert "positive has a mask" in refused["rollout"]


def test_a_lora_on_a_rollouts_prompt_and_one_in_bypass_mode_act_as_any_other(found):
    assert found["hooks_of_a_rollout"]["gap"] < 1e-5 < 0.1 < found["hooks_of_a_rollout"]["effect"]
    assert found["merged"]["bypass"] < 1e-4 < 0.1 < found["merged"]["effect"]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_acts_in_its_run_and_in_no_other(hooked, hook):
    """Before two of the samplers by turns, with LINGBOT_TESTS=all before all four."""
    found = {sampler: hooked["hooks"].get(f"{hook}, {sampler}") for sampler in SAMPLERS}
    assert sum(each is not None for each in found.values()) >= 2
    for sampler, (first, again, fresh) in ((key, each) for key, each in found.items() if each is not None):
        assert first == again == fresh, sampler
        assert not fresh["made"].startswith("raised")
        late = hook == "Set Hook Keyframes" and sampler == "rollout"  # the one chunk ends before the second keyframe
        assert (fresh["made"] == fresh["after"]) is late, sampler


@pytest.fixture
def counted(hooked, request) -> Report:
    """`hooked`, where the checks' counters see the forwards: with dynamic VRAM ComfyUI samples hooks with a copy."""
    if request.node.callspec.params.get("hooked") == "dynamic":
        pytest.skip("with dynamic VRAM ComfyUI samples hooks with a copy of the model, which the counters do not see")
    return hooked


def test_a_hook_of_a_run_that_failed_is_gone_in_the_next(counted):
    for failed, plain, fresh in counted["after_an_error"].values():
        assert "played" in failed
        assert plain == fresh


def test_another_models_weights_as_a_hook_make_that_model(hooked):
    gap, other = hooked["another_model_as_lora"]
    assert gap < 1e-5 < 0.1 < other


def test_keyframes_of_a_hook_begin_again_with_each_chunk(counted):
    assert counted["keyframes_of_a_rollout"] == [[0.25], [1.0], [1.0], [0.25], [1.0]]


def test_merging_all_of_another_expert_gives_that_expert(found):
    assert found["merged"]["merged"] < 1e-5
    mixture, pair = found["merged_with_another_kind"]
    assert "causal model" in "".join(mixture)
    assert "causal model" not in "".join(pair)


def test_rollout_says_that_it_begins_with_the_first_of_several_images(found):
    assert found["images"] == "start_image holds 2 images; the video begins with the first."


def test_poses_that_the_video_does_not_follow_are_said(found):
    odd, whole, twice = found["frames"]
    assert odd.startswith("The camera path has 8 poses, the video 5 frames")
    assert whole == ""
    assert twice.startswith("The texts had a camera already")


def test_text_that_is_not_what_was_asked_for_is_said(found):
    said = found["texts"]
    assert "takes the text from layer -2 of umt5" in said["layer"]
    assert said["embedding"].startswith("embedding:foo is not in models/embeddings")
    assert said["weights"].startswith("Weights such as (word:1.2)")
    assert said["plain"] == said["ours"] == ""
