"""Four clients at once on one ComfyUI, with interrupts and bad prompts among the good ones.

Every good prompt has its bit-exact frames, every bad one its own error, and the server does not grow. The suite queues
a dozen prompts; LINGBOT_LOAD=200 queues 200, on a server of their own, and looks at its memory too."""

from __future__ import annotations

import os
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from comfy_server import ComfyServer, FailedPromptError, RejectedPromptError, Run, write_toy_package
from comfy_tree import Host
from PIL import Image
from toy_prompt import ToyPrompt, as_toy, toy_prompt

pytestmark = pytest.mark.host

LOAD, CLIENTS = int(os.environ.get("LINGBOT_LOAD", 12)), 4
WATCHED = LOAD >= 100
SAMPLER, ROLLOUT = "LingBotWorldSampler", "LingBotWorldRollout"
FRAMES = "frames"


@pytest.fixture(scope="module")
def server(comfy_host: Host, request, tmp_path_factory) -> Iterator[ComfyServer]:
    """The shared server; for a long run one whose C library returns large blocks at once."""
    if not WATCHED:
        yield request.getfixturevalue("comfy_server")
        return
    base = tmp_path_factory.mktemp("load")
    (base / "input").mkdir()
    write_toy_package(base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")
        with ComfyServer(comfy_host, base) as server:
            yield server


def base_model(seed: int) -> ToyPrompt:
    prompt = toy_prompt().set(SAMPLER, seed=seed, steps=2)
    return prompt.add(FRAMES, "SaveImage", images=prompt.link("VAEDecode"), filename_prefix="load")


def causal_model(seed: int) -> ToyPrompt:
    prompt = as_toy("fast").set("LingBotWorldPrepareImage", width=64, height=48).set(ROLLOUT, seed=seed)
    for key, name in (
        ("LingBotWorldLoadCausal", "model_name"),
        ("LingBotWorldTextEncode", "text_encoder"),
        ("LingBotWorldLoadVAE", "vae_name"),
    ):
        value = prompt[prompt.node_id(key)]["inputs"][name]
        prompt = prompt.set(key, **{name: "toy/" + value.partition("/")[2]})
    for kind in ("SaveVideo", "CreateVideo", "LingBotWorldCameraPreview"):
        del prompt[prompt.node_id(kind)]
    return prompt.add(FRAMES, "SaveImage", images=prompt.link(ROLLOUT, 1), filename_prefix="load")


GOOD = [(kind, seed) for kind in (base_model, causal_model) for seed in (1, 2)]


def rejected(prompt: ToyPrompt) -> ToyPrompt:
    return prompt.set("LingBotWorldTextEncode", text_encoder="../../secret")


def failing(prompt: ToyPrompt) -> ToyPrompt:
    return prompt.set("WanImageToVideo", length=17)


BAD = [
    (rejected, RejectedPromptError, "is not a name inside ComfyUI"),
    (failing, FailedPromptError, "wire the camera's frames"),
]


def frames(server: ComfyServer, run: Run) -> np.ndarray:
    files = Run(run.prompt_id, {FRAMES: run.outputs[FRAMES]}).files(server.base / "output")
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    for file in files:
        file.unlink()
    return pixels


class Client:
    """What one prompt came to, in a word; AssertionError where it is not what it should be."""

    def __init__(self, server: ComfyServer, wanted: dict):
        self.server, self.wanted, self.memory = server, wanted, []

    def __call__(self, number: int) -> str:
        chance = random.Random(number)
        fate = chance.choices(["good", "interrupted", "bad"], [6, 2, 2])[0]
        kind, seed = chance.choice(GOOD)
        prompt = kind(seed)
        prompt[FRAMES]["inputs"]["filename_prefix"] = f"load/{number}"  # saved again, whatever is cached
        try:
            return self._bad(chance, number) if fate == "bad" else self._good(prompt, (kind, seed), fate)
        finally:
            self.memory.append(self.server.anonymous_bytes() if WATCHED else 0)

    def _good(self, prompt: ToyPrompt, key: tuple, fate: str) -> str:
        def stop(event: str, data: dict) -> None:
            if fate == "interrupted" and event == "progress":
                self.server.post("/interrupt", {"prompt_id": data["prompt_id"]})

        run = self.server.queue(prompt, on_event=stop, timeout=600)
        if run.interrupted:
            assert fate == "interrupted"
            return "interrupted"
        assert np.array_equal(frames(self.server, run), self.wanted[key])
        return "good" if fate == "good" else "done before its interrupt"

    def _bad(self, chance: random.Random, number: int) -> str:
        spoil, error, words = chance.choice(BAD)
        with pytest.raises(error, match=words):
            self.server.queue(spoil(base_model(number)), timeout=600)
        return error.__name__


def test_clients_do_not_disturb_each_other(server):
    wanted = {(kind, seed): frames(server, server.queue(kind(seed))) for kind, seed in GOOD}
    assert len({image.tobytes() for image in wanted.values()}) == len(GOOD)
    client = Client(server, wanted)
    with ThreadPoolExecutor(CLIENTS) as clients:
        fates = Counter(clients.map(client, range(LOAD)))
    assert sum(fates.values()) == LOAD
    assert fates["good"] >= LOAD // 3
    print(dict(fates))
    if WATCHED:
        settled = client.memory[LOAD // 10 :]
        halves = [statistics.median(part) for part in (settled[: len(settled) // 2], settled[len(settled) // 2 :])]
        print(
            f"anonymous bytes, median of the halves: {halves[0] / 1e6:.1f} and {halves[1] / 1e6:.1f} MB, "
            f"all of it {min(settled) / 1e6:.1f} to {max(settled) / 1e6:.1f} MB"
        )
        assert halves[1] < halves[0] * 1.01
    assert server.alive
    assert Path(f"/proc/{server.process.pid}").exists()
