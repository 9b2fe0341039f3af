"""Rollout on a GPU under --use-sage-attention, with kernels that run on CUDA's default stream (SageAttention 2.x)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from comfy_server import ComfyServer
from safetensors.torch import load_file
from toy_prompt import as_toy

pytestmark = [pytest.mark.host, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

ROLLOUT, PACKAGE = "LingBotWorldRollout", "lingbot-world-base-cam-nf4"
STAND_IN = Path(__file__).parents[2] / "stand_ins" / "default_stream"


def needed_by(prompt, node):
    """Return the prompt without nodes that the named node does not use: some need packages that GPU machines lack."""
    needed, open_nodes = set(), [node]
    while open_nodes:
        needed.add(key := open_nodes.pop())
        links = [value for value in prompt[key]["inputs"].values() if isinstance(value, list) and len(value) == 2]
        open_nodes += [str(source) for source, _ in links if str(source) in prompt]
    return {key: value for key, value in prompt.items() if key in needed}


@pytest.fixture(autouse=True)
def package(comfy_base):
    """The toy under the name that the workflows want."""
    packages = comfy_base / "models" / "lingbot_world"
    if not (packages / PACKAGE).exists():
        shutil.copytree(packages / "toy", packages / PACKAGE)


def rollout(comfy_host, comfy_base, *arguments):
    """The latent of a rollout of many small chunks, and the server's log."""
    with ComfyServer(comfy_host, comfy_base, *arguments, gpu=True, python_path=str(STAND_IN)) as server:
        prompt = as_toy("fast_long").set("LingBotWorldPrepareImage", width=64, height=48)
        prompt = prompt.set(ROLLOUT, seed=7, chunk="1", window=4, sink=1)
        prompt = prompt.add("latent", "SaveLatent", samples=prompt.link(ROLLOUT), filename_prefix="sage")
        server.queue(needed_by(prompt, "latent"))
        newest = max((comfy_base / "output").glob("sage*.latent"), key=lambda path: path.stat().st_mtime)
        return load_file(newest)["latent_tensor"].float(), server.log()


@pytest.mark.parametrize("vram", [(), ("--disable-dynamic-vram",)], ids=["dynamic", "static"])
def test_a_rollout_does_not_replay_without_its_attention(comfy_host, comfy_base, vram):
    want, quiet = rollout(comfy_host, comfy_base, *vram)
    got, log = rollout(comfy_host, comfy_base, "--use-sage-attention", *vram)
    assert "default stream alone" not in quiet
    assert "default stream alone, so forwards with it are not recorded" in log
    errors = (got - want).pow(2).mean((0, 1, 3, 4)).sqrt() / want.pow(2).mean().sqrt()
    assert errors.max() < 5e-2
