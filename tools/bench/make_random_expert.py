"""Write a random expert in the community package's format, by default as large as the real one (9.58 GB of NF4).

    python tools/bench/make_random_expert.py FOLDER [--device cuda] [--repeat-block] [--bf16] [--dim 128 --layers 2 ...]

One tensor is in memory at a time. On a CPU use --repeat-block: one random block's weights serve all of them.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.quantized import codec
from lingbot_world.quantize import writer
from torch import Tensor


def random_tensors(
    config: ModelConfig, *, device: str = "cpu", seed: int = 0, repeat_block: bool = False, quantized: bool = True
) -> Iterator[tuple[str, writer.Source]]:
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


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    sizes = {"dim": 5120, "ffn": 13824, "layers": 40, "text-dim": 4096, "freq-dim": 256, "control": 6}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")


def config_from(args: argparse.Namespace) -> ModelConfig:
    """Sizes as given; heads of 128. `--control 0` leaves the camera layers out."""
    return ModelConfig(
        dim=args.dim,
        ffn_dim=args.ffn,
        num_heads=args.dim // 128,
        num_layers=args.layers,
        freq_dim=args.freq_dim,
        text_dim=args.text_dim,
        control=args.control or None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu", help="where the weights are made and quantized")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat-block", action="store_true", help="the same weights in every block: fast on a CPU")
    parser.add_argument("--bf16", action="store_true", help="plain bf16 weights instead of NF4")
    add_size_arguments(parser)
    args = parser.parse_args()
    begin = time.perf_counter()
    file = write_random_expert(
        args.folder,
        config_from(args),
        bf16=args.bf16,
        device=args.device,
        seed=args.seed,
        repeat_block=args.repeat_block,
    )
    print(f"{file}: {file.stat().st_size:,} bytes in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
