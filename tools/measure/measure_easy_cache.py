#!/usr/bin/env python3
"""How many steps ComfyUI's EasyCache skips on the toy package, and how far the latent goes from the run without it.

    python tools/measure/measure_easy_cache.py --output COMFYUI/output --log COMFYUI/user/comfyui.log

The server needs the random toy package: `lingbot-world toy --random COMFYUI/models/lingbot_world/toy`. So the figures
say that skipping works and how the threshold acts there, not how videos of the real weights look.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import urllib.request
from pathlib import Path

from safetensors.torch import load_file

WORKFLOW = Path(__file__).resolve().parent.parent.parent / "workflows" / "api" / "easy_cache.json"
TOY = {"package": "toy", "high_noise_expert": "from the package", "low_noise_expert": "from the package"}
THRESHOLDS = (None, 0.1, 0.2, 0.3, 0.6, 1.0)
DROPPED = ("SaveVideo", "CreateVideo", "VAEDecode", "LingBotWorldCameraPreview")


def prompt(threshold: float | None, seed: int) -> dict:
    """The shipped workflow at toy size; without EasyCache where there is no threshold."""
    graph = json.loads(WORKFLOW.read_text(encoding="utf-8").replace("lingbot-world-base-cam-nf4", "toy"))
    ids = {node["class_type"]: key for key, node in graph.items()}
    graph[ids["LingBotWorldLoadExperts"]]["inputs"].update(TOY)
    graph[ids["LingBotWorldPrepareImage"]]["inputs"].update(size="width and height", width=96, height=64)
    graph[ids["LingBotWorldCameraPreset"]]["inputs"].update(frames=9)
    sampler = graph[ids["LingBotWorldSampler"]]["inputs"]
    sampler.update(seed=seed)
    if threshold is None:
        sampler.update(high_noise=[ids["LingBotWorldLoadExperts"], 0], low_noise=[ids["LingBotWorldLoadExperts"], 1])
    for key in [key for key, node in graph.items() if node["class_type"] in DROPPED]:
        del graph[key]
    for node in graph.values():
        if node["class_type"] == "EasyCache":
            node["inputs"].update(reuse_threshold=threshold or 0.2)
    latent = {"samples": [ids["LingBotWorldSampler"], 0], "filename_prefix": name(threshold, seed)}
    return graph | {"save": {"class_type": "SaveLatent", "inputs": latent}}


def name(threshold: float | None, seed: int) -> str:
    return f"easy_cache_{threshold}_{seed}"


def run(server: str, graph: dict) -> None:
    """Queue a prompt and wait until it is in the server's history."""
    request = urllib.request.Request(f"{server}/prompt", json.dumps({"prompt": graph}).encode())
    with urllib.request.urlopen(request, timeout=600) as answer:
        prompt_id = json.load(answer)["prompt_id"]
    while True:
        with urllib.request.urlopen(f"{server}/history/{prompt_id}", timeout=600) as answer:
            if entry := json.load(answer).get(prompt_id):
                assert entry["status"]["status_str"] == "success", entry["status"]
                return
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8188")
    parser.add_argument("--output", type=Path, required=True, help="the server's output folder")
    parser.add_argument("--log", type=Path, required=True, help="what the server prints")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for seed in range(options.seeds):
        for threshold in THRESHOLDS:
            before = options.log.stat().st_size
            run(options.server, prompt(threshold, seed))
            printed = options.log.read_bytes()[before:].decode(errors="replace")
            skipped = [int(count) for count in re.findall(r"skipped (\d+)/", printed)]
            made, plain = (
                load_file(max(options.output.glob(f"{name(value, seed)}_*.latent")))["latent_tensor"].float()
                for value in (threshold, None)
            )
            distance = ((made - plain).square().mean() / plain.square().mean()).sqrt()
            print(f"seed {seed}, threshold {threshold}: skipped {skipped}, relative RMS {distance:.4f}", flush=True)


if __name__ == "__main__":
    main()
