"""A whole package of random weights at the real sizes (31 GB), to measure with.

    python tools/bench/random_package.py FOLDER [--device cuda]

Parts that are already there are used again. One tensor is in memory at a time; every block of an expert has the same
weights, as every piece of the text encoder has: what is measured does not depend on them.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from lingbot_world.loaders import open_checkpoint
from lingbot_world.model.config import ModelConfig
from lingbot_world.toy import write_example
from lingbot_world.toy.weights import Weights
from lingbot_world.vae.weights import vae_shapes
from make_random_expert import random_tensors, write_random_expert
from measure_text_memory import XXL, write_safetensors, write_tokenizer
from safetensors.torch import save_file

FULL = ModelConfig(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40, freq_dim=256, text_dim=4096)
SMALL = ModelConfig(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30, freq_dim=256, text_dim=4096)
"""2.0 1.3B."""
VAE_WIDTH = 96
SHARDS = 6
SMALL_INDEX = "diffusion_pytorch_model.safetensors.index.json"


def expert(folder: Path, role: str, device: str = "cuda", config: ModelConfig = FULL) -> Path:
    """The folder of the "high" or "low" expert of a package, written if need be."""
    path = folder / f"{role}_noise_model_bnb_nf4"
    if not (path / "model.safetensors").is_file() or open_checkpoint(path).config != config:
        write_random_expert(path, config, device=device, seed=("high", "low").index(role), repeat_block=True)
    return path


def causal(folder: Path, device: str = "cuda") -> Path:
    """The folder of a package's causal model, written if need be."""
    path = folder / "lingbot_world_fast"
    if not (path / "model.safetensors").is_file():
        write_random_expert(path, replace(FULL, causal=True), device=device, seed=2, repeat_block=True)
    return path


def small(folder: Path, device: str = "cuda") -> Path:
    """The 1.3B of 2.0 as `hf download` leaves it, written if need be: six shards of float32 and their index."""
    path = folder / "lingbot-world-v2-1.3b-causal-fast"
    if (path / SMALL_INDEX).is_file():
        return path
    path.mkdir(parents=True, exist_ok=True)
    shapes, places = SMALL.parameter_shapes(), {}
    names = list(shapes)
    weights = dict(random_tensors(SMALL, device=device, seed=3, quantized=False))
    for shard in range(SHARDS):
        file = f"diffusion_pytorch_model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        part = names[shard * len(names) // SHARDS : (shard + 1) * len(names) // SHARDS]
        places |= dict.fromkeys(part, file)
        save_file({name: weights[name].float().cpu().contiguous() for name in part}, path / file)
    index = {"metadata": {}, "weight_map": places}
    (path / SMALL_INDEX).write_text(json.dumps(index))
    return path


def text_encoder(folder: Path) -> tuple[Path, Path]:
    """The umt5-xxl file of a package and its tokenizer's folder, written if need be."""
    file, tokenizer = folder / "models_t5_umt5-xxl-enc-bf16.safetensors", folder / "tokenizer"
    if not file.is_file():
        tokenizer.mkdir(parents=True, exist_ok=True)
        write_tokenizer(tokenizer / "tokenizer.json")
        write_safetensors(file, XXL)
    return file, tokenizer


def vae(folder: Path) -> Path:
    """The VAE of a package, written if need be."""
    file = folder / "Wan2.1_VAE.pth"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        weights = Weights(0)
        torch.save({name: weights.layer(name, shape) for name, shape in vae_shapes(VAE_WIDTH).items()}, file)
    return file


def whole(folder: Path, device: str = "cuda") -> Path:
    """All of it, and in `example/` an image, a prompt and a camera path; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for role in ("high", "low"):
        expert(folder, role, device)
    text_encoder(folder)
    vae(folder)
    write_example(folder / "example")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu", help="where the weights are made and quantized")
    options = parser.parse_args()
    print(whole(options.folder, options.device))


if __name__ == "__main__":
    main()
