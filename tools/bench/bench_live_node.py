"""Walks in the node LingBot-World Live in a real ComfyUI, with a full-size random causal model.

    python tools/bench/bench_live_node.py --comfyui ComfyUI --folder SCRATCH [--model 1.3b] [--chunk 1] [--seconds 30]
    python tools/bench/bench_live_node.py --comfyui ComfyUI --folder SCRATCH --toy TOY --size 96*160     # on a CPU

A client of the view's websocket presses keys at random times, says a new prompt half way, and stops. That twice, cold
and warm; then the node walks a recorded path as fast as it can. What each walk hands out is checked in a node behind
it. Prints JSON, a line a run: seconds, frames a second, and memory over the idle server, the highest, with the walk
over, and after ComfyUI was told to free it. The other options are those of bench_rollout_node.py."""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import random_package
import torch
from bench_comfyui import GB, say
from bench_rollout_node import MODELS, prepare
from bench_server import END, LOADER, MODES, SAMPLER, ComfyUI, Timeline
from lingbot_world.headless.live.measuring import Walker
from lingbot_world.host.sampling.live_route import ADDRESS
from lingbot_world.live.wire.codec import JSON
from lingbot_world.options import FPS
from memory_watch import Memory

PATIENCE = 120.0
"""Seconds in which ComfyUI reaches the node."""


class ViewWalker(Walker):
    """A client of the node's view, which has messages in JSON; half way it says a new prompt."""

    codec = JSON

    def __init__(self, address: str) -> None:
        super().__init__(address, FPS)
        self._header: dict[str, Any] = {}
        self.prompt_s = None

    @property
    def first_at(self) -> float:
        """When the first frames came, by time.perf_counter."""
        return self._arrived[0][0]

    async def _press(self, socket: Any, seconds: float) -> None:
        saying = asyncio.create_task(self._say(socket, seconds / 2))
        await super()._press(socket, seconds)
        await saying

    async def _say(self, socket: Any, seconds: float) -> None:
        await self._there.wait()
        await asyncio.sleep(seconds)
        self._said = time.perf_counter()
        await self.codec.send(socket, {"type": "event", "kind": "prompt", "payload": "It begins to rain."})

    def _receive(self, data: bytes | str) -> None:
        if isinstance(data, bytes):
            self._take({**self._header, "type": "frame_batch"})
            return
        message = self.codec.read(data)
        if message["type"] == "frame_batch_header":
            self._header = message
        if message.get("content") == "prompt":
            self.prompt_s = round(time.perf_counter() - self._said, 2)
        if message.get("content") == "failed":
            raise RuntimeError(message["reason"])
        self._take(message)


def prompt_for(run: int, options: argparse.Namespace) -> dict:
    """A walk as an API prompt; the last run walks by itself."""
    height, width = map(int, options.size.split("*"))
    encoder = "pth" if options.toy else "safetensors"
    nodes = {
        LOADER: (
            "LingBotWorldLoadCausal",
            {
                "model_name": f"bench/{MODELS[options.model]}",
                "weight_dtype": "default",
                "arithmetic": options.arithmetic,
                "attention": options.attention,
            },
        ),
        "clip": ("LingBotWorldLoadTextEncoder", {"text_encoder": f"bench/models_t5_umt5-xxl-enc-bf16.{encoder}"}),
        "vae": ("LingBotWorldLoadVAE", {"vae_name": "bench.pth"}),
        "image": ("EmptyImage", {"width": width, "height": height, "batch_size": 1, "color": 0x406080}),
        "camera": (
            "LingBotWorldCameraPreset",
            {
                "preset": "dolly_in",
                "amount": 1.0,
                "radius": 1.0,
                "shake": 0.0,
                "frames": options.frame_num,
                "fov_deg": 60.0,
                "seed": 0,
                "easing": "linear",
            },
        ),
        SAMPLER: (
            "LingBotWorldLive",
            {
                "model": [LOADER, 0],
                "clip": ["clip", 0],
                "vae": ["vae", 0],
                "start_image": ["image", 0],
                "prompt": "A quiet street.",
                "frames": 10_001,
                "seed": run,
                "walked_by": "me, or else the recorded path",
                "chunk": str(options.chunk),
                "window": options.window,
                "sink": options.sink,
                "kv_cache": "auto",
                "wait": int(PATIENCE),
            },
        ),
        END: (
            "BenchWalked",
            {"images": [SAMPLER, 0], "samples": [SAMPLER, 1], "state": [SAMPLER, 2], "path": [SAMPLER, 3]},
        ),
    }
    if run == RECORDED:
        nodes[SAMPLER][1].update(camera=["camera", 0], walked_by="the recorded path")
    return {node: {"class_type": kind, "inputs": inputs} for node, (kind, inputs) in nodes.items()}


RUNS = {0: "cold", 1: "warm"}
RECORDED = 2


async def steered(server: ComfyUI, run: int, options: argparse.Namespace) -> dict:
    """Queue a walk, walk in it, and stop."""
    queued = asyncio.create_task(asyncio.to_thread(server.run, prompt_for(run, options)))
    began = time.perf_counter()
    walker, walked = await entered(server, queued, options.seconds)
    stopped = time.perf_counter()
    timeline = await queued
    return {
        "run": RUNS[run],
        **walked,
        "queued_to_first_frame_s": walker.first_at - began,
        "prompt_s": walker.prompt_s,
        "stop_to_outputs_s": timeline.ended[SAMPLER] - stopped,
        "latent": timeline.latent,
    }


async def entered(server: ComfyUI, queued: asyncio.Task, seconds: float) -> tuple[ViewWalker, dict]:
    """A client that has walked; it comes again for as long as the node does not run yet."""
    ends = time.monotonic() + PATIENCE
    while True:
        walker = ViewWalker(f"{server.api.url}{ADDRESS}?node={SAMPLER}")
        try:
            return walker, await walker.walk(seconds)
        except RuntimeError as error:
            if queued.done():
                queued.result()
            if "no walk runs" not in str(error) or time.monotonic() > ends:
                raise


def recorded(timeline: Timeline) -> dict:
    """Frames a second of the last three quarters of a walk by itself."""
    steps = sorted(timeline.steps.items())
    (first, began), (last, ended) = steps[len(steps) // 4], steps[-1]
    return {"run": "recorded path", "frames_a_second": (last - first) / (ended - began), "latent": timeline.latent}


def bench(options: argparse.Namespace, memory: Memory) -> None:
    prepare(options)
    if options.toy is None:
        random_package.text_encoder(options.folder / "models/lingbot_world/bench")
    before = memory.now(None)
    with ComfyUI(options.server, options) as server:
        floor = {**memory.now(server.process.pid), **{n: v for n, v in before.items() if n.startswith("vram")}}
        for run in (*RUNS, RECORDED):
            memory.now(server.process.pid, 0)
            if run == RECORDED:
                row = recorded(server.run(prompt_for(run, options)))
            else:
                row = asyncio.run(steered(server, run, options))
            for when in ("peak", "after", "freed"):
                if when == "freed":
                    server.api.post("/free", {"unload_models": True, "free_memory": True})
                    time.sleep(2)
                peaks = dict(memory.peaks) if when == "peak" else memory.now(server.process.pid)
                row |= {
                    f"{name}_{when}_GB": (peaks[name] - floor[name]) / GB for name in ("vram", "anon") if name in peaks
                }
            say(json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--toy", type=Path)
    parser.add_argument("--model", choices=list(MODELS), default="1.3b")
    parser.add_argument("--chunk", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--server", choices=list(MODES), default="default")
    parser.add_argument("--arithmetic", default="auto")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--size", default="464*832")
    parser.add_argument("--frame_num", type=int, default=161, help="of the recorded path")
    parser.add_argument("--window", type=int, default=18)
    parser.add_argument("--sink", type=int, default=6)
    parser.add_argument("--reserve-vram", type=float, default=0.0)
    options = parser.parse_args()
    options.comfyui, options.folder = options.comfyui.resolve(), options.folder.resolve()
    memory = Memory()
    try:
        with torch.no_grad():
            bench(options, memory)
    except Exception:
        log = options.folder / f"server-{options.server}.log"
        say(log.read_text(errors="replace")[-4000:] if log.is_file() else "no server was started")
        raise
    finally:
        memory.stop()


if __name__ == "__main__":
    main()
