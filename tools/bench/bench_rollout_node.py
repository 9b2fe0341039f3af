"""Time and memory of LingBot-World Rollout with a full-size random causal model in a real ComfyUI.

    python tools/bench/bench_rollout_node.py --comfyui ComfyUI --folder SCRATCH                       # all of the GPU
    python tools/bench/bench_rollout_node.py --comfyui ComfyUI --folder SCRATCH --reserve-vram 117       # as 24 GB
    python tools/bench/bench_rollout_node.py --comfyui ComfyUI --folder SCRATCH --model 1.3b --chunk 1 --size 464*832
    python tools/bench/bench_rollout_node.py --comfyui ComfyUI --folder SCRATCH --toy TOY --size 96*160 # on a CPU

One server makes the same video cold, warm and with keys and values in each of `--kv_cache`. `gap` is how far a video's
latent is from the first one's, relative to it. The VAE runs in ComfyUI, after the last chunk. `--toy` is a folder that
`lingbot-world toy --random` wrote. Options that bench_comfyui.py has too mean the same."""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import random_package
import torch
from bench_comfyui import GB, say
from bench_server import END, LOADER, MODES, SAMPLER, ComfyUI, prepare_base
from lingbot_world.loaders import open_checkpoint
from lingbot_world.options import CHUNK
from memory_watch import Memory

MODELS = {"14b": "lingbot_world_fast", "1.3b": "lingbot-world-v2-1.3b-causal-fast"}


def prepare(options: argparse.Namespace) -> int:
    """The base directory of the server; returns the width of the model's prompts."""
    package = options.folder / "models/lingbot_world/bench"
    prepare_base(options.folder, {"models/vae/bench.pth": package / "Wan2.1_VAE.pth"})
    if options.toy is not None and not package.exists():
        package.symlink_to(options.toy.resolve())
    elif options.toy is None:
        package.mkdir(exist_ok=True)
        (random_package.small if options.model == "1.3b" else random_package.causal)(package)
        random_package.vae(package)
    return open_checkpoint(package / MODELS[options.model]).config.text_dim


def prompt_for(mode: str, text_dim: int, options: argparse.Namespace) -> dict:
    """A rollout as an API prompt; `seed` makes ComfyUI run it again in another mode only."""
    height, width = map(int, options.size.split("*"))
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
        "prompt": ("BenchPrompt", {"text_dim": text_dim}),
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
            "LingBotWorldRollout",
            {
                "model": [LOADER, 0],
                "positive": ["prompt", 0],
                "vae": ["vae", 0],
                "start_image": ["image", 0],
                "camera": ["camera", 0],
                "frames": options.frame_num,
                "seed": 0,
                "steps": "as the model was trained",
                "shift": 10.0,
                "indices": "0",
                "window": options.window,
                "sink": options.sink,
                "kv_cache": mode,
                "chunk": str(options.chunk),
            },
        ),
        END: ("BenchEnd", {"samples": [SAMPLER, 0], "name": "rollout"}),
    }
    return {node: {"class_type": kind, "inputs": inputs} for node, (kind, inputs) in nodes.items()}


def figures(timeline, frames: int, chunk: int) -> dict:
    """Seconds: until the sampler begins, of the first and the last chunk, of all of the node."""
    ends = [timeline.steps[frame] for frame in range(4 * chunk - 3, frames + 1, 4 * chunk) if frame in timeline.steps]
    chunks = [end - begin for begin, end in zip(ends, ends[1:], strict=False)]
    begin = timeline.began[SAMPLER]
    return {
        "load_s": timeline.seconds(LOADER),
        "to_first_chunk_s": ends[0] - begin,
        "chunk_s": [round(seconds, 2) for seconds in chunks],
        "full_chunk_s": statistics.median(chunks[-max(2, len(chunks) // 4) :]),
        "decode_s": timeline.ended[SAMPLER] - ends[-1],
        "node_s": timeline.seconds(SAMPLER),
        "latent": timeline.latent,
        "gap": None if timeline.gap is None else f"{timeline.gap:.1e}",
    }


def bench(options: argparse.Namespace, memory: Memory) -> None:
    text_dim, before = prepare(options), memory.now(None)
    with ComfyUI(options.server, options) as server:
        floor = {**memory.now(server.process.pid), **{n: v for n, v in before.items() if n.startswith("vram")}}
        for mode in options.kv_cache:
            memory.now(server.process.pid, 0)
            begin = time.monotonic()
            timeline = server.run(prompt_for(mode, text_dim, options))
            over = {f"{name}_GB": (value - floor[name]) / GB for name, value in sorted(memory.peaks.items())}
            row = {"kv_cache": mode, **figures(timeline, options.frame_num, options.chunk), **over}
            row["run_s"] = time.monotonic() - begin
            say(json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--toy", type=Path)
    parser.add_argument("--kv_cache", nargs="+", default=["auto", "gpu", "8bit", "host"])
    parser.add_argument("--model", choices=list(MODELS), default="14b")
    parser.add_argument("--chunk", type=int, default=CHUNK)
    parser.add_argument("--server", choices=list(MODES), default="default")
    parser.add_argument("--arithmetic", default="auto")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--size", default="480*832")
    parser.add_argument("--frame_num", type=int, default=117)
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
