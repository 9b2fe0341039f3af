"""Time and memory of full-size random experts through a real ComfyUI, one server per way of handling memory.

    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --reserve-vram 115   # on 140 GB, play 24
    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --lora --split       # two GPUs
    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --toy TOY --size 48*32 --frame_num 9

Makes two experts in FOLDER (19 GB). Each server samples a video cold, warm, with --lora through a LoRA of every block,
and with --split all again behind MultiGPU CFG Split. Prints a JSON line per run.

load_s: the loader node, and the first step's excess over its expert's other steps; switch_s: that of the low-noise
expert. gap: a split latent's relative distance from one GPU's. Memory is a run's peak: VRAM over what was used before
the server started, anon (of the server) and host (without page cache) over the idle server."""

import argparse
import re
import sys
from pathlib import Path

import random_package
import torch
from bench_server import (
    END,
    INPUTS,
    LOADER,
    MODES,
    SAMPLER,
    api_prompt,
    measured_server,
    prepare_base,
    server_parser,
    show,
)
from lingbot_world.loaders import open_checkpoint
from lingbot_world.model.config import ModelConfig
from lingbot_world.options import BOUNDARY
from lingbot_world.sampling import first_low_step, flow_timesteps
from safetensors.torch import save_file

LORA_RANK, SHIFT = 32, 15.0  # this shift gives each expert two of 4 steps


def prepare(options: argparse.Namespace) -> ModelConfig:
    package = prepare_base(options)
    if not options.toy:
        for role in ("high", "low"):  # on the CPU: the servers have all of the GPU
            random_package.expert(package, role, device="cpu")
    config = open_checkpoint(package / "high_noise_model_bnb_nf4").config
    if options.lora:
        write_lora(options.folder / "models/loras/bench.safetensors", config)
    return config


def write_lora(path: Path, config: ModelConfig) -> None:
    tensors, generator = {}, torch.Generator().manual_seed(0)
    for name, shape in config.parameter_shapes().items():
        if re.match(r"blocks\.\d+\.(self_attn|cross_attn|ffn)\..*weight", name) and len(shape) == 2:
            layer = "diffusion_model." + name.removesuffix(".weight")
            for side, size in (("A", (LORA_RANK, shape[1])), ("B", (shape[0], LORA_RANK))):
                value = torch.empty(size, dtype=torch.bfloat16).normal_(std=0.01, generator=generator)
                tensors[f"{layer}.lora_{side}.weight"] = value
    save_file(tensors, path)


def prompt_for(run: str, seed: int, config: ModelConfig, options: argparse.Namespace) -> dict:
    """Return a video as an API prompt. What the run's name holds stands between loader and sampler."""
    height, width = map(int, options.size.split("*"))
    steps = {
        "LoraLoaderModelOnly": {"lora_name": "bench.safetensors", "strength_model": 1.0} if "lora" in run else None,
        "MultiGPU_WorkUnits": {"max_gpus": 2} if "split" in run else None,
    }
    models, between = [[LOADER, 0], [LOADER, 1]], {}
    for kind, inputs in steps.items():
        for role in (0, 1) if inputs is not None else ():
            between[f"{kind} {role}"] = kind, {"model": models[role], **inputs}
            models[role] = [f"{kind} {role}", 0]
    experts = dict.fromkeys(("high_noise_expert", "low_noise_expert"), "from the package")
    video = {"frames": options.frame_num, "height": height, "width": width}
    inputs = {"text_dim": config.text_dim, "camera_channels": config.control_channels}
    sampling = {
        "high_noise": models[0],
        "low_noise": models[1],
        "positive": [INPUTS, 0],
        "negative": [INPUTS, 1],
        "latent": [INPUTS, 2],
        "seed": seed,
        "steps": options.steps,
        "shift": SHIFT,
        "cfg_high": 5.0,
        "cfg_low": 5.0,
        "boundary": BOUNDARY,
        "solver": "unipc",
    }
    return api_prompt(
        between
        | {
            LOADER: ("LingBotWorldLoadExperts", {"package": "bench", **experts, "weight_dtype": "default"}),
            INPUTS: ("BenchInputs", video | inputs),
            SAMPLER: ("LingBotWorldSampler", sampling),
            END: ("BenchEnd", {"samples": [SAMPLER, 0], "name": f"{'lora' in run} {seed}"}),
        }
    )


def runs_of(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return name and seed of each run. A split run has the seed of one that is not split."""
    names = ["cold", *["warm"] * (options.runs - 1), *["lora"] * options.lora]
    runs = [(name, seed) for seed, name in enumerate(names)]
    return runs + [("split lora" if name == "lora" else "split", seed) for name, seed in runs if options.split]


def main() -> int:
    parser = server_parser(__doc__)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--runs", type=int, default=2, help="videos a server, the first one cold (%(default)s)")
    parser.add_argument("--lora", action="store_true", help=f"one more, with a random LoRA of rank {LORA_RANK}")
    parser.add_argument("--split", action="store_true", help="again through MultiGPU CFG Split, on two GPUs")
    parser.add_argument("--frame_num", type=int, default=81)
    options, failed = parser.parse_args(), []
    config, high = prepare(options), first_low_step(flow_timesteps(options.steps, SHIFT), BOUNDARY)
    for mode in options.modes:
        try:
            with measured_server(mode, options) as run:
                for name, seed in runs_of(options):
                    timeline, figures = run(prompt_for(name, seed, config, options))
                    parts = timeline.figures(options.steps, high)
                    show({"mode": mode, "run": name, **parts, **figures, **timeline.shown})
        except Exception as error:  # the next mode follows
            failed.append(mode)
            print(f"{mode} FAILED: {type(error).__name__}: {error}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
