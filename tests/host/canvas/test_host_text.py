"""The text nodes on a real ComfyUI: the golden encoder through POST /prompt, its CONDITIONING saved and compared."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from comfy_server import ComfyServer, FailedPromptError, RejectedPromptError
from comfy_tree import Host
from lingbot_world.text import NEGATIVE_PROMPT
from lingbot_world.text.weights import UMT5Config, huggingface_key
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.host

ENCODE = "LingBotWorldTextEncode"
LOAD = "LingBotWorldLoadTextEncoder"
OFFICIAL = "t5_encoder_fp32.pth"
HUGGING_FACE = "umt5_hf.safetensors"
DEEP = "umt5_deep.safetensors"
ATOL = 5e-5

PROBE = """
import os, torch, folder_paths

class SaveConditioning:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"conditioning": ("CONDITIONING",), "name": ("STRING", {})}}
    RETURN_TYPES, FUNCTION, OUTPUT_NODE = (), "save", True

    def save(self, conditioning, name):
        entries = [(tensor.cpu(), sorted(extra)) for tensor, extra in conditioning]
        torch.save(entries, os.path.join(folder_paths.get_output_directory(), name + ".pt"))
        return {}

NODE_CLASS_MAPPINGS = {"TestSaveConditioning": SaveConditioning}
"""


@pytest.fixture(scope="module")
def server(comfy_host: Host, golden: Path, tmp_path_factory) -> Iterator[ComfyServer]:
    base = tmp_path_factory.mktemp("comfy-text")
    encoders = base / "models" / "text_encoders"
    shutil.copytree(golden / "t5" / "tokenizer", encoders / "tokenizer")
    shutil.copy(golden / "t5" / OFFICIAL, encoders)
    tensors = load_file(golden / "t5" / "t5_encoder_fp32.safetensors")
    save_file({huggingface_key(key): tensor for key, tensor in tensors.items()}, encoders / HUGGING_FACE)
    shapes = UMT5Config(300, 64, 64, 128, 4, num_layers=300, buckets=32).parameter_shapes()
    save_file({key: torch.full(shape, 0.01) for key, shape in shapes.items()}, encoders / DEEP)
    (encoders / "broken.safetensors").write_bytes((golden / "t5" / "t5_encoder_fp32.safetensors").read_bytes()[:9999])
    probe = base / "custom_nodes" / "probe"
    probe.mkdir(parents=True)
    (probe / "__init__.py").write_text(PROBE)
    with ComfyServer(comfy_host, base) as running:
        yield running


@pytest.fixture(scope="module")
def prompts(golden) -> list[str]:
    return [case["text"] for case in json.loads((golden / "t5" / "tokenizer_golden.json").read_text("utf-8"))]


@pytest.fixture(scope="module")
def expected(golden):
    return np.load(golden / "t5" / "expected.npz")


def node(kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs}


def encode_prompt(prompt: str, negative: str, encoder: str = OFFICIAL) -> dict:
    return {
        "1": node(ENCODE, text_encoder=encoder, prompt=prompt, negative=negative),
        "2": node("TestSaveConditioning", conditioning=["1", 0], name="positive"),
        "3": node("TestSaveConditioning", conditioning=["1", 1], name="negative"),
    }


def clip_prompt(prompt: str, encoder: str) -> dict:
    return {
        "1": node(LOAD, text_encoder=encoder),
        "2": node("CLIPTextEncode", clip=["1", 0], text=prompt),
        "3": node("TestSaveConditioning", conditioning=["2", 0], name="clip"),
    }


def saved(server: ComfyServer, name: str) -> torch.Tensor:
    """The one entry's tensor, without its batch dimension."""
    ((tensor, extra),) = torch.load(server.base / "output" / f"{name}.pt", weights_only=True)
    assert extra == ["pooled_output"]
    return tensor[0]


def same(tensor: torch.Tensor, wanted: np.ndarray) -> None:
    """The embedding, then zeros up to 512 tokens."""
    assert tensor.shape == (512, wanted.shape[1])
    torch.testing.assert_close(tensor[: len(wanted)], torch.from_numpy(wanted), rtol=0, atol=ATOL)
    assert not tensor[len(wanted) :].any()


@pytest.mark.parametrize("encoder", [OFFICIAL, HUGGING_FACE])
def test_text_encode_equals_the_official_embeddings(server, prompts, expected, encoder):
    run = server.queue(encode_prompt(prompts[1], prompts[9], encoder))
    same(saved(server, "positive"), expected["prompt/1"])
    same(saved(server, "negative"), expected["prompt/9"])
    assert run.progress("1")[-1] == (3, 3)


@pytest.mark.parametrize("encoder", [OFFICIAL, HUGGING_FACE])
@pytest.mark.parametrize("case", [0, 2, 3, 8, 9])
def test_clip_text_encode_equals_the_official_embeddings(server, prompts, expected, encoder, case):
    plain = prompts[case].replace("(", "\\(").replace(")", "\\)")
    server.queue(clip_prompt(plain, encoder))
    same(saved(server, "clip"), expected[f"prompt/{case}"])


def test_both_nodes_take_scaled_fp8_files(server, golden, prompts):
    tensors = load_file(golden / "t5" / "t5_encoder_fp32.safetensors")
    scaled = {"scaled_fp8": torch.empty(2, dtype=torch.float8_e4m3fn)}
    for key, tensor in tensors.items():
        name = huggingface_key(key)
        scaled[name] = tensor
        if ".attn." in key or ".ffn." in key:
            scale = tensor.abs().max() / 448
            scaled[name] = (tensor / scale).to(torch.float8_e4m3fn)
            scaled[name.replace(".weight", ".scale_weight")] = scale
    save_file(scaled, server.base / "models" / "text_encoders" / "fp8_scaled.safetensors")
    server.queue(encode_prompt(prompts[0], "", "fp8_scaled.safetensors"))
    server.queue(clip_prompt(prompts[0], "fp8_scaled.safetensors"))
    torch.testing.assert_close(saved(server, "clip"), saved(server, "positive"), rtol=0, atol=ATOL)


def test_a_clip_reads_parentheses_as_weights(server):
    embeddings = []
    for text in ("a castle", "a (castle:1.5)"):
        server.queue(clip_prompt(text, OFFICIAL))
        embeddings.append(saved(server, "clip"))
    assert not torch.equal(*embeddings)


def test_core_nodes_take_the_conditioning(server, expected, prompts):
    prompt = encode_prompt(prompts[0], prompts[1])
    prompt["4"] = node(
        "ConditioningAverage", conditioning_to=["1", 0], conditioning_from=["1", 1], conditioning_to_strength=1.0
    )
    prompt["2"]["inputs"]["conditioning"] = ["4", 0]
    server.queue(prompt)
    same(saved(server, "positive"), expected["prompt/0"])


def test_an_identical_prompt_is_cached_until_the_file_changes(server):
    prompt = encode_prompt("a quiet lake", NEGATIVE_PROMPT)
    server.queue(prompt)
    assert "1" in server.queue(prompt).cached
    file = server.base / "models" / "text_encoders" / OFFICIAL
    os.utime(file)
    assert "1" in server.queue(prompt).executed


def test_interrupt_between_blocks_and_the_next_prompt_runs(server):
    stopped = []

    def stop(kind, data):
        if kind == "progress" and not stopped:
            stopped.append((data["value"], data["max"]))
            server.interrupt()

    run = server.queue(encode_prompt("lake " * 300, "lake " * 300, DEEP), on_event=stop)
    assert run.interrupted
    assert run.progress("1")[-1][0] < 300
    assert "1" in server.queue(encode_prompt("after an interrupt", "")).executed


@pytest.mark.parametrize("kind", [ENCODE, LOAD])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../../outside.pth", "is not a name inside"),
        ("gone.safetensors", "was not found"),
        ("broken.safetensors", "truncated or corrupt"),
    ],
)
def test_bad_files_are_refused_before_anything_runs(server, kind, name, words):
    prompt = encode_prompt("a", "b", name) if kind == ENCODE else clip_prompt("a", name)
    with pytest.raises(RejectedPromptError, match=words) as caught:
        server.queue(prompt)
    assert "1" in caught.value.node_errors
    assert server.alive


def test_an_encoder_without_a_tokenizer_is_refused_or_takes_another_files(server, golden, prompts, expected):
    encoders = server.base / "models" / "text_encoders"
    (encoders / "alone").mkdir()
    shutil.copy(golden / "t5" / OFFICIAL, encoders / "alone")
    prompt = encode_prompt(prompts[1], prompts[9], f"alone/{OFFICIAL}")
    with pytest.raises(RejectedPromptError, match="put tokenizer.json .* into .*alone.tokenizer"):
        server.queue(prompt)
    spiece = torch.frombuffer(bytearray((golden / "t5/tokenizer/spiece.model").read_bytes()), dtype=torch.uint8)
    save_file({"spiece_model": spiece}, encoders / "umt5_of_comfyui.safetensors")
    server.queue(prompt)
    same(saved(server, "positive"), expected["prompt/1"])


def test_a_tokenizer_too_large_is_an_error_on_the_node_and_the_next_prompt_runs(server, golden):
    tensors = load_file(golden / "t5" / "t5_encoder_fp32.safetensors")
    tensors["token_embedding.weight"] = tensors["token_embedding.weight"][:200].clone()
    save_file(tensors, server.base / "models" / "text_encoders" / "few_rows.safetensors")
    for prompt in (encode_prompt("a", "b", "few_rows.safetensors"), clip_prompt("a", "few_rows.safetensors")):
        with pytest.raises(FailedPromptError, match="do not belong together"):
            server.queue(prompt)
    assert "1" in server.queue(encode_prompt("after an error", "")).executed


@pytest.mark.parametrize("kind", [ENCODE, LOAD])
def test_every_socket_has_a_tooltip_and_the_node_a_help_page(server, kind):
    info = server.object_info(kind)[kind]
    inputs = {**info["input"]["required"], **info["input"].get("optional", {})}
    assert all(options.get("tooltip") for _, options in inputs.values())
    assert len(info["output_tooltips"]) == len(info["output"])
    assert all(info["output_tooltips"])
    assert info["search_aliases"]
    assert info["category"] == "LingBot-World"
    page = Path(__file__).parents[3] / "web" / "docs" / f"{kind}.md"
    labels = [options.get("display_name") or name for name, (_, options) in inputs.items()]
    assert all(f"**{label}**" in page.read_text("utf-8") for label in labels)


def test_a_new_user_can_queue_with_the_defaults(server):
    info = server.object_info(ENCODE)[ENCODE]["input"]["required"]
    assert info["negative"][1]["default"] == NEGATIVE_PROMPT
    assert info["prompt"][1]["default"]
    files = info["text_encoder"][1]["options"]
    assert {OFFICIAL, HUGGING_FACE} <= set(files)
