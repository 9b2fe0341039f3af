"""Packages of random weights at the real sizes (31 GB), used again if there. All blocks of an expert have the same
weights."""

import math
import os
import random
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import torch
from lingbot_world.loaders import open_checkpoint
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.quantized import codec
from lingbot_world.model.quantized.ggml import BLOCKS
from lingbot_world.quantize import writer
from lingbot_world.text import NEGATIVE_PROMPT
from lingbot_world.text.weights import UMT5Config
from lingbot_world.tools.toy.pack import in_shards
from lingbot_world.toy import write_example
from lingbot_world.toy.tokenizer import SPACE, vocabulary, write_tokenizer
from lingbot_world.toy.weights import Weights
from lingbot_world.vae.weights import vae_shapes
from torch import Tensor

FULL = ModelConfig(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40, freq_dim=256, text_dim=4096)
SMALL = ModelConfig(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30, freq_dim=256, text_dim=4096)  # 2.0 1.3B
XXL = UMT5Config(
    vocab_size=256384, dim=4096, attention_dim=4096, ffn_dim=10240, num_heads=64, num_layers=24, buckets=32
)
TOKENS, VAE_WIDTH, SHARDS = 256_300, 96, 6


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    value = torch.empty(shape, device=generator.device, dtype=torch.bfloat16).normal_(generator=generator)
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.02 * value
    return value * (0.5 * shape[-1] ** -0.5 if len(shape) == 2 else 0.02)


def write_random_expert(
    folder: Path, config: ModelConfig, *, dtype=None, device: str = "cpu", seed: int = 0, repeat_block: bool = False
) -> Path:
    """Write the folder of an expert, in NF4 without a `dtype`. Return the path of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    path, shapes, first_block = folder / "model.safetensors", config.parameter_shapes(), {}
    quantized, generator = () if dtype else writer.linear_weights(shapes), torch.Generator(device).manual_seed(seed)
    with writer.TensorFile(path, shapes, quantized, dtype=dtype or torch.bfloat16) as file:
        for name, shape in shapes.items():
            twin = name.split(".", 2)[-1] if repeat_block and name.startswith("blocks.") else name
            value = first_block.get(twin)
            if value is None:
                value = _random(name, shape, generator)
                value = codec.encode(value) if not dtype and len(shape) == 2 else value
            if twin != name:
                first_block[twin] = value
            file.write(name, value)
        file.finish()
    if not dtype:
        writer.write_json(folder / "config.json", writer.config_json(config))
        writer.write_json(folder / "quantization_meta.json", {"quant": writer.QUANT})
    return path


def expert(folder: Path, role: str, device: str = "cuda", config: ModelConfig = FULL) -> Path:
    """Return the folder of the "high" or "low" expert, written if missing; likewise below."""
    path = folder / f"{role}_noise_model_bnb_nf4"
    if not (path / "model.safetensors").is_file() or open_checkpoint(path).config != config:
        write_random_expert(path, config, device=device, seed=("high", "low").index(role), repeat_block=True)
    return path


def causal(folder: Path, device: str = "cuda") -> Path:
    path = folder / "lingbot_world_fast"
    if not (path / "model.safetensors").is_file():
        write_random_expert(path, replace(FULL, causal=True), device=device, seed=2, repeat_block=True)
    return path


def causal_gguf(folder: Path, kind: str = "Q4_K") -> Path:
    """Return a GGUF file of the causal model with random blocks."""
    import gguf

    folder.mkdir(parents=True, exist_ok=True)
    path, drawn = folder / f"lingbot-world-fast-{kind}.gguf", {}
    if path.is_file():
        return path
    file, generator = gguf.GGUFWriter(path=None, arch="wan"), torch.Generator().manual_seed(4)
    for name, shape in replace(FULL, causal=True).parameter_shapes().items():
        twin = name.split(".", 2)[-1] if name.startswith("blocks.") else name
        if twin not in drawn:
            matrix = len(shape) == 2
            drawn[twin] = blocks(kind, shape) if matrix else _random(name, shape, generator).float().numpy()
        is_matrix = drawn[twin].dtype == np.uint8
        file.add_tensor(name, drawn[twin], raw_dtype=gguf.GGMLQuantizationType[kind] if is_matrix else None)
    file.write_header_to_file(path=path)
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def blocks(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return random blocks of a format with two scales at its start, Q4_K or Q5_K: uint8 [rows, bytes of a row]."""
    form = BLOCKS[kind]
    made = np.random.default_rng(0).integers(0, 256, (*shape[:-1], shape[-1] // form.values, form.nbytes), np.uint8)
    made[..., :4].view(np.float16)[...] = np.float16(2e-5), np.float16(1.5e-4)
    return made.reshape(*shape[:-1], -1)


def small(folder: Path, device: str = "cuda") -> Path:
    """Return the 1.3B of 2.0 as `hf download` leaves it: six shards of float32 and their index."""
    path = folder / "lingbot-world-v2-1.3b-causal-fast"
    whole = path / "diffusion_pytorch_model.safetensors"
    if not path.joinpath(f"{whole.name}.index.json").is_file():
        write_random_expert(path, SMALL, dtype=torch.float32, device=device, seed=3).rename(whole)
        in_shards(whole, SHARDS)
    return path


def text_encoder(folder: Path) -> tuple[Path, Path]:
    """Return the umt5-xxl file and its tokenizer's folder. Its tensors share their numbers."""
    file, tokenizer = folder / "models_t5_umt5-xxl-enc-bf16.safetensors", folder / "tokenizer"
    if not file.is_file():
        draw, letters, shapes = random.Random(0), sorted({*NEGATIVE_PROMPT}), XXL.parameter_shapes()
        words = ["".join(draw.choices(ascii_lowercase, k=12)) for _ in range(TOKENS - len(vocabulary(letters)))]
        write_tokenizer(tokenizer, [*letters, *(SPACE + word for word in words)])
        noise = torch.empty(max(map(math.prod, shapes.values())), dtype=torch.bfloat16).normal_(std=0.02)
        with writer.TensorFile(file, shapes, ()) as out:
            for name, shape in shapes.items():
                out.write(name, noise[: math.prod(shape)].view(shape))
            out.finish()
    return file, tokenizer


def vae(folder: Path) -> Path:
    file = folder / "Wan2.1_VAE.pth"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        weights = Weights(0)
        torch.save({name: weights.layer(name, shape) for name, shape in vae_shapes(VAE_WIDTH).items()}, file)
    return file


def around(folder: Path) -> None:
    """Write what a causal model needs besides: text encoder, VAE, and an `example/`."""
    text_encoder(folder)
    vae(folder)
    (folder / "example").mkdir(parents=True, exist_ok=True)
    write_example(folder / "example")


def whole(folder: Path, device: str = "cuda") -> Path:
    for role in ("high", "low"):
        expert(folder, role, device)
    around(folder)
    return folder


def environment() -> dict[str, str]:
    """Return the variables of a timed command, which may write bytecode: else each run would compile torch's
    sources."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
