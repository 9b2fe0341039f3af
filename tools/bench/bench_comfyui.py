"""Time and memory of full-size random experts through a real ComfyUI, one server per way of handling memory.

    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --reserve-vram 115   # on 140 GB, play 24
    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --lora --split       # two GPUs
    python tools/bench/bench_comfyui.py --comfyui ComfyUI --folder scratch --size 240*416 --frame_num 17 \
        --dim 256 --ffn 512 --layers 2 --text-dim 64                                        # a toy, CPU included

Makes the two experts in FOLDER (19 GB; used again when they are already there) and a tiny pack with random prompts,
start image and camera. Per mode, one server samples a video cold, then warm, then with --lora through a LoRA of every
block, with --compile through TorchCompileModel as well. With --split it makes all but the last again, each expert
behind MultiGPU CFG Split. Prints a JSON line per run and a table; the servers' logs stay in FOLDER. `--python` needs
what ComfyUI needs, this script `lingbot_world` and websocket-client. Linux only.

load_s is the loader node plus what the first step took longer than its expert's other steps; switch_s is what the first
step of the low-noise expert took longer. gap is how far a split run's latent is from the one that one GPU made from the
same seed, relative to it. Memory is the highest during a run: VRAM of the whole GPU (vram1: the second one) over what
was used before the server started; anon (RssAnon + RssShmem of the server) and host (used memory of the machine,
without page cache: pinned memory of the driver included) over the idle server."""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from bench_server import END, INPUTS, LOADER, MODES, PACK, SAMPLER, ComfyUI, prepare_base
from lingbot_world.loaders import open_checkpoint
from lingbot_world.model.config import ModelConfig
from lingbot_world.options import BOUNDARY
from lingbot_world.sampling import first_low_step, flow_timesteps
from memory_watch import Memory
from random_package import add_size_arguments, config_from
from safetensors.torch import save_file

LORA_RANK = 32
GB = 1e9
TIMES = ("load_s", "high_step_s", "low_step_s", "switch_s", "sampler_s")
COLUMNS = ("mode", "run", *TIMES, "vram_GB", "vram1_GB", "anon_GB", "host_GB", "held_GB", "latent", "gap")


def say(text: str) -> None:
    print(text, flush=True)


def prepare(options: argparse.Namespace, config: ModelConfig) -> None:
    """The base directory of the servers, with experts and LoRA."""
    prepare_base(options.folder, {})
    for seed, role in enumerate(("high", "low")):
        write_expert(options.folder / "models/lingbot_world/bench" / f"{role}_noise_model_bnb_nf4", seed, config)
    if options.lora:
        write_lora(options.folder / "models/loras/bench.safetensors", config)


def write_expert(folder: Path, seed: int, config: ModelConfig) -> None:
    """Write an expert of random weights. This runs in a process of its own, so that its CUDA context is gone when the
    servers run."""
    if (folder / "model.safetensors").is_file() and open_checkpoint(folder).config == config:
        return
    sizes = {
        "dim": config.dim,
        "ffn": config.ffn_dim,
        "layers": config.num_layers,
        "text-dim": config.text_dim,
        "freq-dim": config.freq_dim,
        "control": config.control or 0,
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    command = [sys.executable, str(PACK / "tools/bench/make_random_expert.py"), str(folder), "--repeat-block"]
    command += ["--device", device, "--seed", str(seed), *(f"--{name}={size}" for name, size in sizes.items())]
    subprocess.run(command, check=True)


def write_lora(path: Path, config: ModelConfig) -> None:
    """A small random LoRA on every attention and feed-forward layer of every block."""
    tensors, generator = {}, torch.Generator().manual_seed(0)
    for name, shape in config.parameter_shapes().items():
        if re.match(r"blocks\.\d+\.(self_attn|cross_attn|ffn)\..*weight", name) and len(shape) == 2:
            layer = "diffusion_model." + name.removesuffix(".weight")
            for side, size in (("A", (LORA_RANK, shape[1])), ("B", (shape[0], LORA_RANK))):
                value = torch.empty(size, dtype=torch.bfloat16).normal_(std=0.01, generator=generator)
                tensors[f"{layer}.lora_{side}.weight"] = value
    save_file(tensors, path)
    say(f"{path}: {len(tensors) // 2} layers, {path.stat().st_size:,} bytes")


def prompt_for(run: str, seed: int, config: ModelConfig, options: argparse.Namespace) -> dict:
    """A video as an API prompt. What the run's name holds stands between loader and sampler, for each expert."""
    height, width = map(int, options.size.split("*"))
    with_lora = "lora" in run or (run == "compile" and options.lora)
    steps = {
        "LoraLoaderModelOnly": {"lora_name": "bench.safetensors", "strength_model": 1.0} if with_lora else None,
        "TorchCompileModel": {"backend": "inductor"} if run == "compile" else None,
        "MultiGPU_WorkUnits": {"max_gpus": 2} if "split" in run else None,
    }
    models, between = [[LOADER, 0], [LOADER, 1]], {}
    for kind, inputs in steps.items():
        for role in (0, 1) if inputs is not None else ():
            between[f"{kind} {role}"] = kind, {"model": models[role], **inputs}
            models[role] = [f"{kind} {role}", 0]
    high, low = models
    nodes = between | {
        LOADER: (
            "LingBotWorldLoadExperts",
            {
                "package": "bench",
                "high_noise_expert": "from the package",
                "low_noise_expert": "from the package",
                "weight_dtype": "default",
            },
        ),
        INPUTS: (
            "BenchInputs",
            {
                "frames": options.frame_num,
                "height": height,
                "width": width,
                "text_dim": config.text_dim,
                "camera_channels": config.control_channels,
            },
        ),
        SAMPLER: (
            "LingBotWorldSampler",
            {
                "high_noise": high,
                "low_noise": low,
                "positive": [INPUTS, 0],
                "negative": [INPUTS, 1],
                "latent": [INPUTS, 2],
                "seed": seed,
                "steps": options.steps,
                "shift": options.shift,
                "cfg_high": 5.0,
                "cfg_low": 5.0,
                "boundary": BOUNDARY,
                "solver": "unipc",
                **dict(given.split("=", 1) for given in options.sampler),
            },
        ),
        END: ("BenchEnd", {"samples": [SAMPLER, 0], "name": f"{with_lora} {seed}"}),
    }
    return {node: {"class_type": kind, "inputs": inputs} for node, (kind, inputs) in nodes.items()}


def runs_of(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Name and seed of each run. A split run has the seed of one that is not split."""
    names = ["cold", *["warm"] * (options.runs - 1), *["lora"] * options.lora, *["compile"] * options.compile]
    runs = [(name, seed) for seed, name in enumerate(names)]
    if options.split:
        runs += [("split", seed) for name, seed in runs if name in ("cold", "warm")]
        runs += [("split lora", seed) for name, seed in runs if name == "lora"]
    return runs


def bench_mode(mode: str, config: ModelConfig, options: argparse.Namespace, memory: Memory) -> Iterator[dict]:
    """The figures of each run of a mode, as they come."""
    high = first_low_step(flow_timesteps(options.steps, options.shift), BOUNDARY)
    before, begin = memory.now(None), time.monotonic()
    with ComfyUI(mode, options) as server:
        seconds, idle = time.monotonic() - begin, memory.now(server.process.pid)
        levels = ", ".join(f"{name} {value / GB:.2f} GB" for name, value in idle.items())
        say(f"{mode}: server up in {seconds:.1f} s, idle {levels}")
        floor = {**idle, **{name: value for name, value in before.items() if name.startswith("vram")}}
        for run, seed in runs_of(options):
            begin = time.monotonic()
            memory.now(server.process.pid, 0)
            timeline = server.run(prompt_for(run, seed, config, options))
            over = {f"{name}_GB": (value - floor[name]) / GB for name, value in sorted(memory.peaks.items())}
            yield {
                "mode": mode,
                "run": run,
                **timeline.figures(options.steps, high),
                "vram_GB": None,
                **over,
                "held_GB": timeline.held / GB,
                "latent": timeline.latent,
                "gap": None if timeline.gap is None else f"{timeline.gap:.1e}",
                "run_s": time.monotonic() - begin,
            }


def bench(config: ModelConfig, options: argparse.Namespace, memory: Memory, deadline: float) -> list[dict]:
    """The figures of every run of every mode; a mode that fails shows its server's log, and the next one follows."""
    rows = []
    for mode in options.modes:
        if time.monotonic() + max((row["run_s"] for row in rows), default=0) > deadline:
            say(f"{mode}: left out, --budget is nearly spent")
            continue
        try:
            for row in bench_mode(mode, config, options, memory):
                rows.append(row)
                say(json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()}))
                if time.monotonic() + max(row["run_s"] for row in rows) > deadline:
                    say(f"{mode}: no further run, --budget is nearly spent")
                    break
        except Exception as error:
            log = options.folder / f"server-{mode}.log"
            tail = log.read_text(errors="replace")[-options.tail :]
            say(f"{mode} FAILED: {type(error).__name__}: {error}\n--- end of {log}\n{tail}\n---")
    return rows


def table(rows: list[dict]) -> str:
    def cell(value) -> str:
        return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell(row.get(column)) for column in COLUMNS) + " |" for row in rows]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True, help="the folder of ComfyUI's main.py")
    parser.add_argument("--folder", type=Path, required=True, help="scratch: models, packs, logs")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="runs ComfyUI (default: this one)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--shift", type=float, default=15.0, help="15 gives each expert two of 4 steps (%(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="videos a server, the first one cold (%(default)s)")
    parser.add_argument("--lora", action="store_true", help=f"one more, with a random LoRA of rank {LORA_RANK}")
    parser.add_argument("--compile", action="store_true", help="one more through TorchCompileModel, behind the LoRA")
    parser.add_argument("--split", action="store_true", help="again through MultiGPU CFG Split, on two GPUs")
    parser.add_argument("--sampler", nargs="*", default=[], metavar="INPUT=VALUE", help="further inputs of the sampler")
    parser.add_argument("--size", default="480*832")
    parser.add_argument("--frame_num", type=int, default=81)
    parser.add_argument("--reserve-vram", type=float, default=0.0, help="GiB that ComfyUI shall leave alone")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no run is started")
    parser.add_argument("--tail", type=int, default=3000, help="characters of a failed server's log to print")
    add_size_arguments(parser)
    options = parser.parse_args()
    options.comfyui, options.folder = options.comfyui.resolve(), options.folder.resolve()
    if shutil.which(str(options.python)) is None:
        parser.error(f"--python {options.python}: not an executable")
    return options


def main() -> int:
    options = arguments()
    deadline, config = time.monotonic() + options.budget, config_from(options)
    prepare(options, config)
    memory = Memory()
    try:
        rows = bench(config, options, memory, deadline)
    finally:
        memory.stop()
    say(table(rows))
    return int({row["mode"] for row in rows} != set(options.modes))


if __name__ == "__main__":
    sys.exit(main())
