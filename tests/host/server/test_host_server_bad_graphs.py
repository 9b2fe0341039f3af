"""Graphs that cannot work on a real ComfyUI: an error or a warning in words on the node it belongs to."""

from __future__ import annotations

import pytest
from refused_prompts import fails, refuses
from toy_prompt import TOY_HEIGHT, TOY_WIDTH, fresh_toy

pytestmark = pytest.mark.host

SAMPLER = "LingBotWorldSampler"
EXPERTS = "LingBotWorldLoadExperts"
TEXT = "LingBotWorldTextEncode"
APPLY = "LingBotWorldApplyCamera"


def test_a_camera_on_experts_without_camera_layers_is_an_error(spoilt):
    plain = {f"{level}_noise_expert": f"plain_{level}_noise.safetensors" for level in ("high", "low")}
    fails(spoilt, fresh_toy().set(EXPERTS, **plain), SAMPLER, "camera")


def test_plain_experts_run_without_a_camera(spoilt):
    plain = {f"{level}_noise_expert": f"plain_{level}_noise.safetensors" for level in ("high", "low")}
    prompt = fresh_toy().set(EXPERTS, **plain)
    video = prompt.node_id("WanImageToVideo")
    assert spoilt.queue(prompt.set(SAMPLER, positive=[video, 0], negative=[video, 1])).outputs


def test_a_camera_of_another_length_than_the_latent_is_refused_on_its_node(spoilt):
    prompt = fresh_toy().set("WanImageToVideo", length=17)
    refuses(spoilt, prompt, prompt.node_id(APPLY), "wire the camera's frames")


def test_a_latent_of_another_size_than_the_camera_fails_before_sampling(spoilt):
    prompt = fresh_toy().add(
        "900", "EmptyHunyuanLatentVideo", width=TOY_WIDTH + 32, height=TOY_HEIGHT, length=9, batch_size=1
    )
    fails(spoilt, prompt.set(SAMPLER, latent=["900", 0]), SAMPLER, "camera")


def test_a_latent_of_another_size_than_the_start_image_fails_before_weights_are_loaded(spoilt):
    video = fresh_toy().node_id("WanImageToVideo")
    without_camera = fresh_toy().set(SAMPLER, positive=[video, 0], negative=[video, 1], latent=["900", 0])
    size = {"height": TOY_HEIGHT, "batch_size": 1}
    longer = without_camera.add("900", "EmptyHunyuanLatentVideo", **size, width=TOY_WIDTH, length=17)
    fails(spoilt, longer, SAMPLER, "17 frames, the start image was prepared for .* 9 frames")
    wider = without_camera.add("900", "EmptyHunyuanLatentVideo", **size, width=TOY_WIDTH + 32, length=9)
    said = spoilt.queue(wider).texts[0][1]
    assert f"start image, prepared for {TOY_WIDTH}x{TOY_HEIGHT} with 9 frames, is stretched" in said


def test_a_latent_of_images_fails_in_words(spoilt):
    prompt = fresh_toy().add("900", "EmptyLatentImage", width=TOY_WIDTH, height=TOY_HEIGHT, batch_size=1)
    fails(spoilt, prompt.set(APPLY, latent=["900", 0]), APPLY, "WanImageToVideo")


def test_a_denoise_that_another_node_gives_is_refused_in_words(spoilt):
    prompt = fresh_toy().add("900", "PrimitiveFloat", value=0.0)
    fails(spoilt, prompt.set(SAMPLER, denoise=["900", 0]), SAMPLER, "denoise is 0, expected more than 0 and at most 1")


@pytest.mark.parametrize(
    ("lora", "words"),
    [("wide", r"self_attn.q.weight is \[288, 288\] in the LoRA and \[256, 256\]"), ("foreign", "none of this LoRA")],
)
def test_a_lora_for_another_model_is_refused_once_on_its_loader(spoilt, lora, words):
    prompt = fresh_toy()
    prompt = prompt.add(
        "900", "LoraLoaderModelOnly", model=prompt.link(EXPERTS), lora_name=f"{lora}.safetensors", strength_model=1.0
    )
    fails(spoilt, prompt.set(SAMPLER, high_noise=["900", 0]), "LoraLoaderModelOnly", words)


def test_one_expert_on_both_sockets_is_refused(spoilt):
    prompt = fresh_toy()
    fails(spoilt, prompt.set(SAMPLER, low_noise=prompt.link(EXPERTS, 0)), SAMPLER, "same model")


def test_swapped_experts_are_refused_before_sampling(spoilt):
    prompt = fresh_toy()
    high, low = prompt.link(EXPERTS, 0), prompt.link(EXPERTS, 1)
    fails(spoilt, prompt.set(SAMPLER, high_noise=low, low_noise=high), SAMPLER, "experts are swapped.*high_noise")


def test_text_wired_past_the_start_image_is_warned_of_on_the_sampler(spoilt):
    prompt = fresh_toy().set(SAMPLER, steps=2, cfg_high=3.0, cfg_low=3.0)
    past = prompt.set(APPLY, positive=prompt.link(TEXT, 0), negative=prompt.link(TEXT, 1))
    half = past.set(APPLY, positive=prompt[prompt.node_id(APPLY)]["inputs"]["positive"])
    without_guidance = half.set(SAMPLER, cfg_high=1.0, cfg_low=1.0)
    shown = [spoilt.queue(case).texts for case in (past, half, without_guidance, prompt)]
    words = [{node: text.split(":")[0] for node, text in texts} for texts in shown]  # what each node shows in the end
    sampler = prompt.node_id(SAMPLER)
    assert words == [
        {sampler: "No start image in positive and negative"},
        {sampler: "The start image is in positive only, not in negative"},
        {sampler: ""},  # the warning goes away
        {},
    ]


def test_a_causal_model_on_a_core_sampler_is_refused_before_it_is_loaded(spoilt):
    inputs, prompt = fresh_toy()[fresh_toy().node_id(SAMPLER)]["inputs"], fresh_toy().without(SAMPLER)
    prompt = prompt.add("900", "LingBotWorldLoadCausal", model_name="toy/lingbot_world_fast", weight_dtype="default")
    texts = {name: inputs[name] for name in ("positive", "negative", "seed", "steps")}
    prompt["11"] = {
        "class_type": "KSampler",
        "inputs": {**texts, "model": ["900", 0], "latent_image": inputs["latent"]},
    }
    prompt["11"]["inputs"] |= {"cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
    spoilt.free()
    before = len(spoilt.log())
    fails(spoilt, prompt, "KSampler", "connect it to LingBot-World Rollout")
    assert "Requested to load LingBotWorldExpert" not in spoilt.log()[before:]


SOCKETS = [(APPLY, "camera"), (APPLY, "latent"), (SAMPLER, "positive"), (SAMPLER, "high_noise"), (SAMPLER, "steps")]


@pytest.mark.parametrize(("kind", "name"), [*SOCKETS, ("LingBotWorldCameraChain", "cameras.camera0")])
def test_an_input_for_which_a_switch_returned_nothing_is_refused_by_its_name(spoilt, kind, name):
    chain = {"frames": 0, "reverse": False, "loop": False, "smooth": 0.0, "easing": "linear"}
    camera = fresh_toy().link("LingBotWorldLoadPoses")
    prompt = fresh_toy().add("900", "LingBotWorldCameraChain", **chain, **{"cameras.camera0": camera})
    prompt = prompt.set(APPLY, camera=["900", 0]).add("901", "TestNothing").set(kind, **{name: ["901", 0]})
    fails(spoilt, prompt, kind, f"{name.split('.')[-1]} is empty: the node connected to it")
