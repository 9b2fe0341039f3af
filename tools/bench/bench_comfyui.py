"""Time and memory of full-size random models through a real ComfyUI, one server per way of handling memory.

    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --reserve-vram 115   # on 140 GB, play 24
    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --lora --split       # two GPUs
    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --toy TOY --size 48*32 --frame_num 9
    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --rollout 1.3b --chunk 1 --size 464*832

Makes the models in FOLDER. Each server samples a video cold, warm, with --lora through a LoRA of every block, and with
--split all again behind MultiGPU CFG Split; with --rollout a causal video with each of --kv_cache, by default in one
server. Prints a JSON line per run.

load_s: the loader node, and the first step's excess over its expert's other steps; switch_s: that of the low-noise
expert. gap: a latent's relative distance from the first one of its name. Memory is a run's peak: VRAM over what was
used before the server started, anon (of the server) and host (without page cache) over the idle server."""

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import random_package
import torch
from bench_server import MODES, SAMPLER, Timeline, measured_server, prepare_base, server_parser, show
from lingbot_world.loaders import open_checkpoint
from lingbot_world.model.config import ModelConfig
from lingbot_world.options import BOUNDARY, CHUNK
from lingbot_world.sampling import first_low_step, flow_timesteps
from safetensors.torch import save_file

LORA_RANK, SHIFT = 32, 15.0  # this shift gives each expert two of 4 steps
MODELS = {"14b": "lingbot_world_fast", "1.3b": "lingbot-world-v2-1.3b-causal-fast"}
Nodes = dict[str, tuple[str, dict]]
Run = tuple[dict, Nodes, Callable[[Timeline], dict]]


def write_lora(path: Path, config: ModelConfig) -> None:
    tensors, generator = {}, torch.Generator().manual_seed(0)
    for name, shape in config.parameter_shapes().items():
        if re.match(r"blocks\.\d+\.(self_attn|cross_attn|ffn)\..*weight", name) and len(shape) == 2:
            layer = "diffusion_model." + name.removesuffix(".weight")
            for side, size in (("A", (LORA_RANK, shape[1])), ("B", (shape[0], LORA_RANK))):
                value = torch.empty(size, dtype=torch.bfloat16).normal_(std=0.01, generator=generator)
                tensors[f"{layer}.lora_{side}.weight"] = value
    save_file(tensors, path)


def video(run: str, seed: int, config: ModelConfig, options: argparse.Namespace) -> Nodes:
    """Return the nodes of a video. What the run's name holds stands between loader and sampler."""
    height, width = map(int, options.size.split("*"))
    steps = {
        "LoraLoaderModelOnly": {"lora_name": "bench.safetensors", "strength_model": 1.0} if "lora" in run else None,
        "MultiGPU_WorkUnits": {"max_gpus": 2} if "split" in run else None,
    }
    models, between = [["loader", 0], ["loader", 1]], {}
    for kind, inputs in steps.items():
        for role in (0, 1) if inputs is not None else ():
            between[f"{kind} {role}"] = kind, {"model": models[role], **inputs}
            models[role] = [f"{kind} {role}", 0]
    experts = dict.fromkeys(("high_noise_expert", "low_noise_expert"), "from the package")
    shape = {"frames": options.frame_num, "height": height, "width": width}
    inputs = {"text_dim": config.text_dim, "camera_channels": config.control_channels}
    guided = {"high_noise": models[0], "low_noise": models[1], "cfg_high": 5.0, "cfg_low": 5.0, "boundary": BOUNDARY}
    sampling = {"seed": seed, "steps": options.steps, "shift": SHIFT, "solver": "unipc", **guided}
    sampling |= {name: ["inputs", slot] for slot, name in enumerate(("positive", "negative", "latent"))}
    return between | {
        "loader": ("LingBotWorldLoadExperts", {"package": "bench", **experts, "weight_dtype": "default"}),
        "inputs": ("BenchInputs", shape | inputs),
        SAMPLER: ("LingBotWorldSampler", sampling),
        "end": ("BenchEnd", {"samples": [SAMPLER, 0], "name": f"{'lora' in run} {seed}"}),
    }


def step_figures(timeline: Timeline, steps: int) -> dict:
    """Return the seconds of the run's parts."""
    high = first_low_step(flow_timesteps(steps, SHIFT), BOUNDARY)
    ends = [timeline.began[SAMPLER], *(timeline.steps.get(step, float("nan")) for step in range(1, steps + 1))]
    taken = [end - begin for begin, end in pairwise(ends)]
    low_step = statistics.median(taken[high + 1 :] or taken[-1:])
    high_step = statistics.median(taken[1:high] or [low_step])
    loading = timeline.seconds("loader")
    found = {"load_s": loading + taken[0] - high_step, "loader_node_s": loading, "high_step_s": high_step}
    found |= {"low_step_s": low_step, "switch_s": taken[high] - low_step, "sampler_s": timeline.seconds(SAMPLER)}
    return found | {"steps_s": [round(second, 2) for second in taken]}


def video_runs(options: argparse.Namespace) -> Iterator[Run]:
    """Yield each run of the experts. A split run has the seed of one that is not split."""
    package = prepare_base(options)
    if not options.toy:
        for role in ("high", "low"):  # on the CPU: the servers have all of the GPU
            random_package.expert(package, role, device="cpu")
    config = open_checkpoint(package / "high_noise_model_bnb_nf4").config
    if options.lora:
        write_lora(options.folder / "models/loras/bench.safetensors", config)
    names = ["cold", *["warm"] * (options.runs - 1), *["lora"] * options.lora]
    for split in ("", "split ")[: 1 + options.split]:
        for seed, name in enumerate(names):
            run = split + name if name == "lora" or not split else "split"
            yield {"run": run}, video(run, seed, config, options), partial(step_figures, steps=options.steps)


def rollout_runs(options: argparse.Namespace) -> Iterator[Run]:
    """Yield each rollout of a causal model; ComfyUI repeats it only with another `kv_cache`."""
    package = prepare_base(options)
    if not options.toy:
        (random_package.small if options.rollout == "1.3b" else random_package.causal)(package)
        random_package.vae(package)
    text_dim = open_checkpoint(package / MODELS[options.rollout]).config.text_dim
    for kv_cache in options.kv_cache:
        figures = partial(rollout_figures, frames=options.frame_num, chunk=options.chunk)
        yield {"kv_cache": kv_cache}, rollout(kv_cache, text_dim, options), figures


def rollout(kv_cache: str, text_dim: int, options: argparse.Namespace) -> Nodes:
    height, width = map(int, options.size.split("*"))
    model = {"model_name": f"bench/{MODELS[options.rollout]}", "weight_dtype": "default"}
    model |= {"arithmetic": options.arithmetic, "attention": options.attention}
    move = {"preset": "dolly_in", "amount": 1.0, "radius": 1.0, "shake": 0.0, "fov_deg": 60.0, "easing": "linear"}
    given = {name: [node, 0] for name, node in (("model", "loader"), ("positive", "prompt"), ("start_image", "image"))}
    given |= {"vae": ["vae", 0], "camera": ["camera", 0], "frames": options.frame_num, "seed": 0}
    steps = {"steps": "as the model was trained", "shift": 10.0, "indices": "0", "window": 18, "sink": 6}
    return {
        "loader": ("LingBotWorldLoadCausal", model),
        "prompt": ("BenchPrompt", {"text_dim": text_dim}),
        "vae": ("LingBotWorldLoadVAE", {"vae_name": "bench/Wan2.1_VAE.pth"}),
        "image": ("EmptyImage", {"width": width, "height": height, "batch_size": 1, "color": 0x406080}),
        "camera": ("LingBotWorldCameraPreset", {**move, "frames": options.frame_num, "seed": 0}),
        SAMPLER: ("LingBotWorldRollout", {**given, **steps, "kv_cache": kv_cache, "chunk": str(options.chunk)}),
        "end": ("BenchEnd", {"samples": [SAMPLER, 0], "name": "rollout"}),
    }


def rollout_figures(timeline: Timeline, frames: int, chunk: int) -> dict:
    ends = [timeline.steps[frame] for frame in range(4 * chunk - 3, frames + 1, 4 * chunk) if frame in timeline.steps]
    chunks = [end - begin for begin, end in pairwise(ends)]
    return {
        "load_s": timeline.seconds("loader"),
        "to_first_chunk_s": ends[0] - timeline.began[SAMPLER],
        "chunk_s": [round(seconds, 2) for seconds in chunks],
        "full_chunk_s": statistics.median(chunks[-max(2, len(chunks) // 4) :]),
        "decode_s": timeline.ended[SAMPLER] - ends[-1],
        "node_s": timeline.seconds(SAMPLER),
    }


def main() -> int:
    parser = server_parser(__doc__)
    add = parser.add_argument
    add("--modes", nargs="+", choices=MODES, help="default: all, of a rollout the first")
    add("--steps", type=int, default=4)
    add("--runs", type=int, default=2, help="videos a server, the first one cold (%(default)s)")
    add("--lora", action="store_true", help=f"one more, with a random LoRA of rank {LORA_RANK}")
    add("--split", action="store_true", help="again through MultiGPU CFG Split, on two GPUs")
    add("--frame_num", type=int, help="default: 81, of a rollout 117")
    add("--rollout", choices=MODELS, help="roll out this causal model instead")
    add("--kv_cache", nargs="+", default=["auto", "gpu", "8bit", "host"])
    add("--chunk", type=int, default=CHUNK)
    add("--arithmetic", default="auto")
    add("--attention", default="auto")
    options, failed = parser.parse_args(), []
    options.frame_num = options.frame_num or (117 if options.rollout else 81)
    runs = list((rollout_runs if options.rollout else video_runs)(options))
    for mode in options.modes or list(MODES)[: 1 if options.rollout else None]:
        try:
            with measured_server(mode, options) as run:
                for row, nodes, figures in runs:
                    timeline, over = run(nodes)
                    show({"mode": mode, **row, **figures(timeline), **over, **timeline.shown})
        except Exception as error:  # the next mode follows
            failed.append(mode)
            print(f"{mode} FAILED: {type(error).__name__}: {error}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
