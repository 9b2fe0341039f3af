"""Time and memory of LingBot-World Rollout with a full-size random causal model in a real ComfyUI.

    python tools/bench/bench_rollout_node.py --comfyui ComfyUI --folder SCRATCH --reserve-vram 117       # as 24 GB
    python tools/bench/bench_rollout_node.py --comfyui ComfyUI --folder SCRATCH --model 1.3b --chunk 1 --size 464*832
    python tools/bench/bench_rollout_node.py --comfyui ComfyUI --folder SCRATCH --toy TOY --size 96*160 # on a CPU

One server makes the same video with each of `--kv_cache`. `gap`: a latent's relative distance from the first one."""

import argparse
import statistics

import random_package
from bench_server import END, LOADER, SAMPLER, api_prompt, measured_server, prepare_base, server_parser, show
from lingbot_world.loaders import open_checkpoint
from lingbot_world.options import CHUNK

MODELS = {"14b": "lingbot_world_fast", "1.3b": "lingbot-world-v2-1.3b-causal-fast"}


def prepare(options: argparse.Namespace) -> int:
    package = prepare_base(options)
    if not options.toy:
        (random_package.small if options.model == "1.3b" else random_package.causal)(package)
        random_package.vae(package)
    return open_checkpoint(package / MODELS[options.model]).config.text_dim


def prompt_for(kv_cache: str, text_dim: int, options: argparse.Namespace) -> dict:
    """Return a rollout as an API prompt; ComfyUI repeats it only with another `kv_cache`."""
    height, width = map(int, options.size.split("*"))
    model = {"model_name": f"bench/{MODELS[options.model]}", "weight_dtype": "default"}
    move = {"preset": "dolly_in", "amount": 1.0, "radius": 1.0, "shake": 0.0, "fov_deg": 60.0, "easing": "linear"}
    rollout = {
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
        "window": 18,
        "sink": 6,
        "kv_cache": kv_cache,
        "chunk": str(options.chunk),
    }
    ways = {"arithmetic": options.arithmetic, "attention": options.attention}
    return api_prompt(
        {
            LOADER: ("LingBotWorldLoadCausal", model | ways),
            "prompt": ("BenchPrompt", {"text_dim": text_dim}),
            "vae": ("LingBotWorldLoadVAE", {"vae_name": "bench/Wan2.1_VAE.pth"}),
            "image": ("EmptyImage", {"width": width, "height": height, "batch_size": 1, "color": 0x406080}),
            "camera": ("LingBotWorldCameraPreset", {**move, "frames": options.frame_num, "seed": 0}),
            SAMPLER: ("LingBotWorldRollout", rollout),
            END: ("BenchEnd", {"samples": [SAMPLER, 0], "name": "rollout"}),
        }
    )


def figures(timeline, frames: int, chunk: int) -> dict:
    ends = [timeline.steps[frame] for frame in range(4 * chunk - 3, frames + 1, 4 * chunk) if frame in timeline.steps]
    chunks = [end - begin for begin, end in zip(ends, ends[1:], strict=False)]
    return {
        "load_s": timeline.seconds(LOADER),
        "to_first_chunk_s": ends[0] - timeline.began[SAMPLER],
        "chunk_s": [round(seconds, 2) for seconds in chunks],
        "full_chunk_s": statistics.median(chunks[-max(2, len(chunks) // 4) :]),
        "decode_s": timeline.ended[SAMPLER] - ends[-1],
        "node_s": timeline.seconds(SAMPLER),
    }


def main() -> None:
    parser = server_parser(__doc__)
    parser.add_argument("--kv_cache", nargs="+", default=["auto", "gpu", "8bit", "host"])
    parser.add_argument("--model", choices=list(MODELS), default="14b")
    parser.add_argument("--chunk", type=int, default=CHUNK)
    parser.add_argument("--arithmetic", default="auto")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--frame_num", type=int, default=117)
    options = parser.parse_args()
    text_dim = prepare(options)
    with measured_server("default", options) as run:
        for kv_cache in options.kv_cache:
            timeline, over = run(prompt_for(kv_cache, text_dim, options))
            times = figures(timeline, options.frame_num, options.chunk)
            show({"kv_cache": kv_cache, **times, **timeline.shown, **over})


if __name__ == "__main__":
    main()
