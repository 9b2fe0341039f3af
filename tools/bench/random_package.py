"""Packages of random weights at the real sizes (31 GB), to measure with.

Parts that are already there are used again. One tensor is in memory at a time; every block of an expert has the same
weights, as every piece of the text encoder has: what is measured does not depend on them.
"""

import json
import os
import random
import struct
from collections.abc import Iterator
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
from lingbot_world.toy import write_example
from lingbot_world.toy.weights import Weights
from lingbot_world.vae.weights import vae_shapes
from safetensors.torch import save_file
from torch import Tensor

FULL = ModelConfig(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40, freq_dim=256, text_dim=4096)
SMALL = ModelConfig(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30, freq_dim=256, text_dim=4096)
"""2.0 1.3B."""
XXL = UMT5Config(
    vocab_size=256384, dim=4096, attention_dim=4096, ffn_dim=10240, num_heads=64, num_layers=24, buckets=32
)
PIECES = 256_300
PIECE = 64 << 20
VAE_WIDTH = 96
SHARDS = 6
SMALL_INDEX = "diffusion_pytorch_model.safetensors.index.json"


def random_tensors(
    config: ModelConfig, *, device: str = "cpu", seed: int = 0, repeat_block: bool = False, quantized: bool = True
) -> Iterator[tuple[str, writer.Values]]:
    """Every parameter of `config`: norms around 1, the rest small; linear weights already encoded when `quantized`."""
    generator = torch.Generator(device).manual_seed(seed)
    first_block = {}
    for name, shape in config.parameter_shapes().items():
        twin = name.split(".", 2)[-1] if repeat_block and name.startswith("blocks.") else None
        if twin not in first_block:
            value = _random(name, shape, generator, device)
            value = codec.encode(value) if quantized and len(shape) == 2 else value
            if twin is None:
                yield name, value
                continue
            first_block[twin] = value
        yield name, first_block[twin]


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator, device: str) -> Tensor:
    value = torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(generator=generator)
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.02 * value
    return value * (0.5 * shape[-1] ** -0.5 if len(shape) == 2 else 0.02)


def write_random_expert(folder: Path, config: ModelConfig, *, bf16: bool = False, **options) -> Path:
    """Write the folder of an expert and return the path of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    path, shapes = folder / "model.safetensors", config.parameter_shapes()
    with writer.TensorFile(path, shapes, () if bf16 else writer.linear_weights(shapes)) as file:
        for name, value in random_tensors(config, quantized=not bf16, **options):
            file.write(name, value)
        file.finish()
    if not bf16:
        writer.write_json(folder / "config.json", writer.config_json(config))
        writer.write_json(folder / "quantization_meta.json", {"quant": writer.QUANT})
    return path


def write_safetensors(file: Path, config: UMT5Config) -> Path:
    """Random bf16 of the usual scale; one random piece is written again and again, so nothing is held."""
    header, offset = {}, 0
    for key, shape in config.parameter_shapes().items():
        nbytes = 2 * torch.Size(shape).numel()
        header[key] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = (torch.randn(PIECE // 2) * 0.02).bfloat16().view(torch.uint8).numpy()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, offset, PIECE):
            out.write(piece[: offset - start])
    return file


def write_tokenizer(file: Path) -> Path:
    """A unigram vocabulary of the real size, made of random words and the letters."""
    draw = random.Random(0)
    letters = [chr(code) for code in range(33, 127)] + sorted({*NEGATIVE_PROMPT})
    words = {"\u2581" + "".join(draw.choices(ascii_lowercase, k=draw.randint(2, 9))) for _ in range(PIECES)}
    pieces = ["<pad>", "</s>", "<s>", "<unk>", "\u2581", *letters, *sorted(words)]
    while len(pieces) < PIECES:
        pieces.append(f"<filler_{len(pieces)}>")
    vocabulary = [[piece, -1.0 - i / 1e4] for i, piece in enumerate(pieces[:PIECES])]
    model = {"type": "Unigram", "unk_id": 3, "vocab": vocabulary}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    file.write_text(json.dumps({"version": "1.0", "pre_tokenizer": space, "model": model}), "utf-8")
    return file


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


def causal_gguf(folder: Path, kind: str = "Q4_K") -> Path:
    """A GGUF file of the causal model, written if need be: matrices in a block format, drawn at random."""
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
            drawn[twin] = blocks(kind, shape) if matrix else _random(name, shape, generator, "cpu").float().numpy()
        is_matrix = drawn[twin].dtype == np.uint8
        file.add_tensor(name, drawn[twin], raw_dtype=gguf.GGMLQuantizationType[kind] if is_matrix else None)
    file.write_header_to_file(path=path)
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def blocks(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random blocks of a format with two scales at its start, Q4_K or Q5_K: uint8 [rows, bytes of a row]."""
    form = BLOCKS[kind]
    made = np.random.default_rng(0).integers(0, 256, (*shape[:-1], shape[-1] // form.values, form.nbytes), np.uint8)
    made[..., :4].view(np.float16)[...] = np.float16(2e-5), np.float16(1.5e-4)
    return made.reshape(*shape[:-1], -1)


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


def around(folder: Path) -> None:
    """What a causal model needs besides: text encoder, VAE, and in `example/` an image, a prompt and a camera path."""
    text_encoder(folder)
    vae(folder)
    (folder / "example").mkdir(parents=True, exist_ok=True)
    write_example(folder / "example")


def whole(folder: Path, device: str = "cuda") -> Path:
    """Both experts and all that is `around` them; returns the folder."""
    for role in ("high", "low"):
        expert(folder, role, device)
    around(folder)
    return folder


def environment() -> dict[str, str]:
    """Return the variables of a timed command. pip writes bytecode: an environment that keeps Python from it would
    compile all of torch's sources in each run."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
