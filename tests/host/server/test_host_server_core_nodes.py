"""ComfyUI's own model nodes between our loader and our sampler, queued on a real server."""

from __future__ import annotations

import shutil

import pytest
import torch
from comfy_server import ComfyServer, Run
from lingbot_world.toy.weights import EXPERT
from refused_prompts import fails
from safetensors.torch import load_file, save_file
from toy_prompt import TOY_FRAMES, TOY_HEIGHT, TOY_WIDTH, ToyPrompt, toy_prompt

pytestmark = pytest.mark.host

EXPERTS, SAMPLER = "LingBotWorldLoadExperts", "LingBotWorldSampler"
STEPS = 5


def with_node(server: ComfyServer, kind: str, experts=("high_noise", "low_noise"), **inputs) -> ToyPrompt:
    """The toy with one of ComfyUI's nodes behind each of these experts; what is not given keeps its default."""
    required = server.object_info(kind)[kind]["input"]["required"]
    defaults = {name: spec[1]["default"] for name, spec in required.items() if "default" in (spec[1:] or [{}])[0]}
    prompt = toy_prompt()
    for slot, side in enumerate(("high_noise", "low_noise")):
        if side in experts:
            prompt = prompt.add(side, kind, model=prompt.link(EXPERTS, slot), **{**defaults, **inputs})
            prompt = prompt.set(SAMPLER, **{side: [side, 0]})
    return prompt


def latent(server: ComfyServer, prompt: ToyPrompt) -> torch.Tensor:
    """What the sampler gives; the weights compute in fp32, so that only the node can make a difference."""
    prompt = prompt.set(SAMPLER, seed=3, steps=STEPS).set(EXPERTS, weight_dtype="fp32").without("SaveVideo")
    prompt = prompt.add("900", "SaveLatent", samples=prompt.link(SAMPLER), filename_prefix="core_nodes/latent")
    run = server.queue(prompt, timeout=1200)
    (path,) = Run(run.prompt_id, {"900": run.outputs["900"]}).files(server.base / "output")
    return load_file(path)["latent_tensor"]


@pytest.fixture(scope="module")
def plain(comfy_server: ComfyServer) -> torch.Tensor:
    return latent(comfy_server, toy_prompt())


def gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert found.isfinite().all()
    return ((found - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("kind", ["EasyCache", "LazyCache"])
def test_step_caches_skip_some_of_the_work(comfy_server, plain, kind):
    settings = {"reuse_threshold": 3.0, "start_percent": 0.0, "end_percent": 1.0}
    assert 1e-4 < gap(latent(comfy_server, with_node(comfy_server, kind, **settings)), plain) < 1


def test_context_windows_as_long_as_the_video_change_nothing_and_shorter_ones_run(comfy_server, plain):
    windows = {"context_overlap": 1, "context_schedule": "standard_static", "freenoise": False}
    windows |= {"split_conds_to_windows": False}
    whole, short = (
        latent(comfy_server, with_node(comfy_server, "WanContextWindowsManual", context_length=frames, **windows))
        for frames in (9, 5)
    )
    assert gap(whole, plain) < 1e-5
    assert 1e-4 < gap(short, plain) < 1


def with_nodes(server: ComfyServer, *kinds: tuple[str, dict]) -> ToyPrompt:
    """The toy with these nodes, each with its inputs, one after the other behind the high-noise expert. The ids are the
    classes."""
    prompt = toy_prompt().set(SAMPLER, seed=6)
    for kind, inputs in kinds:
        node = with_node(server, kind, ("high_noise",), **inputs)["high_noise"]
        prompt[kind] = {
            **node,
            "inputs": {**node["inputs"], "model": prompt[prompt.node_id(SAMPLER)]["inputs"]["high_noise"]},
        }
        prompt = prompt.set(SAMPLER, high_noise=[kind, 0])
    return prompt


CORE, WAN = "ContextWindowsManual", "WanContextWindowsManual"
SHORT = {"context_length": 5, "context_overlap": 1}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            [("EasyCache", {}), (WAN, SHORT)],
            f"EasyCache .node EasyCache. cannot be used with {WAN} .node {WAN}.: .*Lazy",
        ),
        (
            [(WAN, SHORT), ("EasyCache", {})],
            f"EasyCache .node EasyCache. cannot be used with {WAN} .node {WAN}.: .*Lazy",
        ),
        ([("EasyCache", {}), ("LazyCache", {})], "EasyCache .* and LazyCache .* on the same model .*remove one"),
        ([(WAN, {**SHORT, "context_overlap": 30})], "2 latent frames that overlap by 7: lower context_overlap"),
        ([(CORE, {"context_length": 2, "dim": 4})], f"{CORE} .* has dim 4: set it to 2"),
        ([(CORE, {"context_length": 2, "dim": 5})], f"{CORE} .* has dim 5: set it to 2"),
        (
            [("ModelSamplingAuraFlow", {})],
            "ModelSamplingAuraFlow .* sets the timesteps of models of another kind: take",
        ),
        ([("HyperTile", {})], "HyperTile .node HyperTile. failed in this run .* remove it"),
    ],
)
def test_nodes_that_cannot_work_on_this_model_are_refused_by_their_names(comfy_server, nodes, words):
    fails(comfy_server, with_nodes(comfy_server, *nodes), SAMPLER, words)


def test_windows_that_are_not_used_are_no_error(comfy_server):
    whole = {**SHORT, "context_length": 81}
    assert comfy_server.queue(with_nodes(comfy_server, (WAN, whole), ("EasyCache", {}))).outputs
    words = said(comfy_server, with_nodes(comfy_server, (CORE, {"dim": 0})))
    assert f"{CORE} (node {CORE}) has dim 0, not 2, so it changes nothing." in words
    assert "On one expert only: context windows (high noise)." in words


def said(server: ComfyServer, prompt: ToyPrompt) -> str:
    """What the sampler of a prompt of one step shows as warnings."""
    prompt = prompt.add("900", "SaveLatent", samples=prompt.link(SAMPLER), filename_prefix="core_nodes/said")
    run = server.queue(prompt.set(SAMPLER, seed=4, steps=1).without("SaveVideo"))
    return "\n".join(text for node, text in run.texts if node == prompt.node_id(SAMPLER))


def test_rope_is_scaled_as_core_scales_it(comfy_server, plain):
    as_trained, slower, moved = (
        latent(comfy_server, with_node(comfy_server, "ScaleROPE", **changes))
        for changes in ({}, {"scale_t": 2.0}, {"shift_t": 3.0})
    )
    assert torch.equal(as_trained, plain)
    assert 1e-3 < gap(slower, plain) < 1
    assert gap(moved, plain) < 1e-4  # only differences of positions count


def test_the_noise_scale_scales_the_noise(comfy_server, plain):
    same, half = (
        latent(comfy_server, with_node(comfy_server, "ModelNoiseScale", noise_scale=scale)) for scale in (1.0, 0.5)
    )
    assert torch.equal(same, plain)
    assert gap(half, plain) > 0.1


def test_more_tokens_than_the_model_was_trained_with_are_all_read(comfy_server, plain):
    prompt = toy_prompt()
    camera, text = prompt.link("LingBotWorldApplyCamera"), prompt.node_id("LingBotWorldTextEncode")
    other = prompt.add("801", "LingBotWorldTextEncode", **{**prompt[text]["inputs"], "prompt": "a storm of sand"})
    for tokens, same in (([text, 0], True), (["801", 0], False)):
        longer = other.add("800", "ConditioningConcat", conditioning_to=camera, conditioning_from=tokens)
        difference = gap(latent(comfy_server, longer.set(SAMPLER, positive=["800", 0])), plain)
        assert (difference < 1e-4) is same  # a prompt beside itself gets the same attention


def test_what_core_nodes_ask_for_in_vain_is_said_on_the_sampler(comfy_server):
    prompt = toy_prompt()
    video = prompt[prompt.node_id("WanImageToVideo")]["inputs"]
    camera = prompt.add("801", "WanCameraEmbedding", camera_pose="Pan Up", width=TOY_WIDTH, height=TOY_HEIGHT, length=9)
    camera = camera.add("800", "WanCameraImageToVideo", **video, camera_conditions=["801", 0])
    camera = camera.set("LingBotWorldApplyCamera", positive=["800", 0], negative=["800", 1])
    assert "does not read the camera of WanCameraImageToVideo" in said(comfy_server, camera)
    shifted = with_node(comfy_server, "ModelSamplingSD3", experts=("low_noise",), shift=8.0)
    assert "Shift 8 of a model sampling node is not used" in said(comfy_server, shifted)
    assert "Shift" not in said(comfy_server, shifted.set(SAMPLER, shift=8.0))
    for_flux = with_node(comfy_server, "NAGuidance", experts=("high_noise",))
    assert "patches attn1_output_patch" in said(comfy_server, for_flux)
    twice = prompt[prompt.node_id(SAMPLER)]["inputs"]["positive"]
    masked = prompt.add("802", "SolidMask", value=0.5, width=96, height=64)
    masked = masked.set(SAMPLER, negative=twice, latent=["803", 0], cfg_high=3.0, cfg_low=3.0)
    masked = masked.add("803", "SetLatentNoiseMask", samples=prompt.link("WanImageToVideo", 2), mask=["802", 0])
    words = said(comfy_server, masked)
    assert "the same text: guidance changes nothing" in words
    assert "The latent is empty, and its mask keeps parts of it" in words
    apply = prompt.node_id("LingBotWorldApplyCamera")
    assert f"Node {prompt.node_id(SAMPLER)}: its positive input gets the negative output of node {apply}" in said(
        comfy_server, prompt.set(SAMPLER, positive=[apply, 1], negative=[apply, 0])
    )
    assert said(comfy_server, prompt) == ""  # a run of its own takes the warnings away


def test_a_text_that_core_nodes_changed_is_said_by_every_node_that_samples_it(comfy_server):
    """A layer that was chosen and an embedding that is not there, which a CONDITIONING does not show."""
    run = comfy_server.queue(with_every_sampler(toy_prompt()))
    last = {node: text for node, text in run.texts if node.startswith("by ")}
    assert sorted(last) == sorted(f"by {kind}" for kind in ("KSampler", "Guider", "Sampler", "Rollout", "Live", "clip"))
    for node, told in last.items():
        text = "by clip" if node == "by clip" else "text"
        assert f"Node {text}: embedding:foo:1.2 counts only if models/embeddings has it" in told, node
        assert "Node layer, CLIP Set Last Layer, takes the prompt from a layer before the text encoder's last" in told
    assert "Node sigmas, SDTurboScheduler, makes the noise schedule of another model" in last["by Guider"]
    assert "LingBot-World does not read the frames of WanVaceToVideo." in last["by KSampler"]
    assert "Node lumina, CLIPTextEncodeLumina2, writes prompts for another model" in last["by KSampler"]
    assert "writes prompts for another model" not in last["by Sampler"]


def with_every_sampler(toy: ToyPrompt) -> ToyPrompt:
    """The toy's prompt out of core's nodes, before every node that samples; Live gets a text and, once more, a clip."""
    words, video = "a castle (embedding:foo:1.2)", toy[toy.node_id("WanImageToVideo")]["inputs"]
    prompt = toy.without("SaveVideo").set("WanImageToVideo", positive=["text", 0])
    prompt = prompt.add("encoder", "LingBotWorldLoadTextEncoder", text_encoder="toy/models_t5_umt5-xxl-enc-bf16.pth")
    prompt = prompt.add("layer", "CLIPSetLastLayer", clip=["encoder", 0], stop_at_clip_layer=-2)
    prompt = prompt.add("text", "CLIPTextEncode", clip=["layer", 0], text=words)
    prompt["by Sampler"] = prompt.pop(prompt.node_id(SAMPLER))
    inputs = prompt["by Sampler"]["inputs"]
    inputs |= {"seed": 5, "steps": 1}
    prompt = prompt.add(
        "lumina", "CLIPTextEncodeLumina2", clip=["encoder", 0], system_prompt="superior", user_prompt="blurred"
    )
    vace = {name: value for name, value in video.items() if name != "start_image"}
    vace |= {"positive": ["text", 0], "negative": ["lumina", 0]}
    prompt = prompt.add("vace", "WanVaceToVideo", **vace, strength=1.0).add(
        "by KSampler",
        "KSampler",
        model=inputs["low_noise"],
        positive=["vace", 0],
        negative=["vace", 1],
        seed=0,
        latent_image=["vace", 2],
        steps=1,
        cfg=1.0,
        sampler_name="euler",
        scheduler="simple",
        denoise=0.5,
    )
    names = ("high_noise", "low_noise", "positive", "negative", "cfg_high", "cfg_low", "boundary", "camera_cache")
    prompt = prompt.add("guider", "LingBotWorldGuider", **{name: inputs[name] for name in names})
    prompt = prompt.add("noise", "RandomNoise", noise_seed=1).add("solver", "KSamplerSelect", sampler_name="euler")
    prompt = prompt.add("sigmas", "SDTurboScheduler", model=inputs["low_noise"], steps=1, denoise=1.0).add(
        "by Guider",
        "SamplerCustomAdvanced",
        noise=["noise", 0],
        guider=["guider", 0],
        sampler=["solver", 0],
        sigmas=["sigmas", 0],
        latent_image=inputs["latent"],
    )
    causal = {
        "model": ["causal", 0],
        "vae": video["vae"],
        "start_image": video["start_image"],
        "seed": 0,
        "frames": TOY_FRAMES,
        "camera": prompt.link("LingBotWorldLoadPoses"),
        "window": -1,
        "sink": -1,
        "kv_cache": "auto",
        "chunk": "1",
    }
    prompt = prompt.add(
        "causal",
        "LingBotWorldLoadCausal",
        model_name="toy/lingbot_world_fast",
        weight_dtype="default",
        arithmetic="auto",
        attention="auto",
    )
    prompt = prompt.add(
        "by Rollout", "LingBotWorldRollout", **causal, positive=["text", 0], shift=0.0, indices="0", steps="custom"
    )
    walk = {**causal, "walked_by": "the recorded path", "wait": 1}
    prompt = prompt.add("by Live", "LingBotWorldLive", **walk, positive=["text", 0], prompt="")
    prompt = prompt.add("by clip", "LingBotWorldLive", **walk, clip=["layer", 0], prompt=words)
    for kind in ("KSampler", "Guider", "Sampler", "Rollout"):
        prompt = prompt.add(f"{kind} kept", "SaveLatent", samples=[f"by {kind}", 0], filename_prefix="by")
    return prompt


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="TORCH COMPILE SKIPPED: inductor needs a C++ compiler")
def test_a_compiled_expert_gives_the_same(comfy_server, plain):
    compiled = latent(comfy_server, with_node(comfy_server, "TorchCompileModel", ("low_noise",), backend="inductor"))
    assert gap(compiled, plain) < 1e-4


@pytest.mark.parametrize("experts", [("high_noise",), ("low_noise",), ("high_noise", "low_noise")])
def test_a_lora_acts_where_it_hangs_and_leaves_with_its_node(comfy_server, plain, experts):
    layer = "diffusion_model.blocks.1.ffn.0"
    folder = comfy_server.base / "models" / "loras"
    folder.mkdir(exist_ok=True)
    random = torch.Generator().manual_seed(1)
    up, down = torch.randn(EXPERT.ffn_dim, 4, generator=random), torch.randn(4, EXPERT.dim, generator=random)
    save_file({f"{layer}.lora_B.weight": up, f"{layer}.lora_A.weight": down}, folder / "strong.safetensors")
    chosen = {"lora_name": "strong.safetensors", "experts": experts}
    with_lora, without = (
        latent(comfy_server, with_node(comfy_server, "LoraLoaderModelOnly", strength_model=strength, **chosen))
        for strength in (-0.5, 0.0)
    )
    assert gap(with_lora, plain) > 1e-3
    assert torch.equal(without, plain)
    comfy_server.free()
    assert torch.equal(latent(comfy_server, toy_prompt()), plain)


def test_saving_a_4_bit_expert_is_refused_in_words(comfy_server):
    prompt = toy_prompt()
    prompt = prompt.add("901", "ModelSave", model=prompt.link(EXPERTS), filename_prefix="core_nodes/model")
    fails(comfy_server, prompt, "ModelSave", "cannot be saved")


def test_tiles_in_time_of_cores_vae_are_reported(comfy_server):
    vae = comfy_server.base / "models/vae/wan.pth"
    vae.parent.mkdir(exist_ok=True)
    shutil.copy(comfy_server.base / "models/lingbot_world/toy/Wan2.1_VAE.pth", vae)
    prompt, tiles = toy_prompt(), {"tile_size": 64, "overlap": 16, "temporal_overlap": 4}
    prompt = prompt.add("800", "VAELoader", vae_name="wan.pth").add("802", "PreviewImage", images=["801", 0])
    ours, core = prompt.link("LingBotWorldLoadVAE"), ["800", 0]
    for loader, frames, reported in ((core, 8, True), (core, 12, False), (ours, 8, False)):
        inputs = {**tiles, "samples": prompt.link(SAMPLER), "vae": loader, "temporal_size": frames}
        words = said(comfy_server, prompt.add("801", "VAEDecodeTiled", **inputs))
        assert ("Node 801, VAE Decode (Tiled), begins a new video every 8 frames" in words) is reported


def test_a_node_for_the_layers_of_a_clip_is_reported(comfy_server):
    prompt = toy_prompt()
    encoder = prompt[prompt.node_id("LingBotWorldTextEncode")]["inputs"]["text_encoder"]
    prompt = prompt.add("800", "LingBotWorldLoadTextEncoder", text_encoder=encoder)
    prompt = prompt.add("801", "CLIPAttentionMultiply", clip=["800", 0], q=1.5, k=1.0, v=1.0, out=1.0)
    prompt = prompt.add("802", "CLIPTextEncode", clip=["801", 0], text="a castle")
    words = said(comfy_server, prompt.set("WanImageToVideo", positive=["802", 0]))
    assert "Node 801, CLIP Attention Multiply, changes nothing" in words


@pytest.mark.parametrize("kind", ["ConditioningAverage", "ConditioningConcat"])
def test_a_camera_that_core_leaves_out_is_reported(comfy_server, kind):
    prompt = toy_prompt()
    apply = prompt.node_id("LingBotWorldApplyCamera")
    prompt = prompt.add("800", "LingBotWorldApplyCamera", **prompt[apply]["inputs"])
    inputs = {"conditioning_to": [apply, 0], "conditioning_from": ["800", 0]}
    inputs |= {"conditioning_to_strength": 0.5} if kind == "ConditioningAverage" else {}
    words = said(comfy_server, prompt.add("801", kind, **inputs).set(SAMPLER, positive=["801", 0]))
    assert f"Node 801, {kind}, takes only the text of conditioning_from: the camera of node 800 has no effect" in words
    inputs["conditioning_from"] = [apply, 0]
    words = said(comfy_server, prompt.add("801", kind, **inputs).set(SAMPLER, positive=["801", 0]))
    assert "takes only the text" not in words
