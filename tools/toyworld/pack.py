"""The trained models in the official layout. `python -m lingbot_world.tools.toyworld.pack CHECKPOINTS DEST`
makes the one that is shipped of the checkpoints of a training."""

import argparse
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from ...camera.moves.presets import preset_path
from ...model.config import ModelConfig
from ...quantize.model import QuantizeOptions
from ...quantize.package import QuantizePlan, plan_quantize, quantize
from ...quantize.writer import config_json, linear_weights, write_json
from ...toy.experts import write_expert, write_expert_folder
from ...toy.world import CHANGE, PACKED
from .parameters import lacking, load_weights
from .paths import FRAMES, STEP
from .prompts import ROOM_WORDS, write_text_files
from .render import HEIGHT, LENS, WIDTH, render
from .rooms import scenes_around
from .settings import CONFIG, MODELS

PREFIX = "diffusion_model."
"""Of a LoRA's keys, as ComfyUI writes them."""
LORAS = "loras/night"
"""So deep in the package that ComfyUI's loader of experts, which looks into its folders, does not list them."""
VAE = "Wan2.1_VAE.pth"
KEEP = {
    "high": ("time_embedding*", "head.head", "c2ws_*", "text_embedding*", "patch_embedding*"),
    "low": ("time_*", "head.head", "c2ws_*", "text_embedding*", "patch_embedding*"),
}
"""What stays bf16 of each expert, 1.0 and 1.5 MB: the camera's way in above all, docs/quality.md has the figures."""
QUANTIZED = {
    expert: [
        name
        for name in linear_weights(CONFIG.parameter_shapes())
        if not any(fnmatchcase(name.removesuffix(".weight"), pattern) for pattern in keep)
    ]
    for expert, keep in KEEP.items()
}
"""The weights that the package has in 4 bits, of each expert."""
SMALL = 10_000
"""Bytes under which a file is shipped as it is."""
EXAMPLE_SEED = 3_000_000_021
"""Of the example's room, which no training has seen."""
EXAMPLE_MOVE = "pan_right", 25.0


def write_package(
    folder: Path,
    vae: Mapping[str, Tensor],
    high: Mapping[str, Tensor],
    low: Mapping[str, Tensor],
    *,
    nf4: bool = True,
    config: ModelConfig = CONFIG,
    words: str = ROOM_WORDS,
) -> None:
    """Two experts, NF4 or bf16, the VAE in float16, text encoder and tokenizer, which knows these `words` too, into a
    folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text_files(folder, words)
    torch.save({name: tensor.half().cpu() for name, tensor in vae.items()}, folder / VAE)
    for name, tensors in (("high", high), ("low", low)):
        on_cpu = ((key, tensor.float().cpu()) for key, tensor in tensors.items())
        if nf4:
            write_expert_folder(folder / f"{name}_noise_model_bnb_nf4", config, on_cpu)
            continue
        expert = folder / f"{name}_noise_model"
        expert.mkdir()
        write_expert(expert / "diffusion_pytorch_model.safetensors", config, on_cpu, quant_type=None)
        write_json(expert / "config.json", config_json(config))


def archive(folder: Path, path: Path) -> None:
    """The folder's files in one file."""
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        tar.add(folder, arcname=folder.name)


def quantized_package(checkpoints: Path, destination: Path) -> None:
    """The package that is shipped: its experts by `lingbot-world quantize --search`, all but KEEP in 4 bits; with an
    example, LoRAs, and what makes a causal model of one. `destination` must not be there yet."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "toy-world")
        plain_package(checkpoints, source)
        quantize(_plan(source, destination), lambda *_: nullcontext(lambda *_: None))
    write_example(destination / "example")
    write_loras(checkpoints, destination / LORAS)
    if (checkpoints / "causal.pt").is_file():
        write_change(checkpoints / "causal.pt", destination / CHANGE)


def _plan(source: Path, destination: Path) -> QuantizePlan:
    """Both experts' quantization, each with what is kept of it."""
    high, low = (
        plan_quantize(source, destination, QuantizeOptions(search=True, keep=KEEP[name], device="cpu"))
        for name in ("high", "low")
    )
    return replace(high, jobs=[high.jobs[0], low.jobs[1]])


def plain_package(checkpoints: Path, destination: Path) -> None:
    """The same models with experts in bf16, of which `lingbot-world quantize` makes 4-bit ones."""
    parts = (load_weights(checkpoints / f"{name}.pt") for name in MODELS)
    write_package(destination, *parts, nf4=False)


def write_loras(checkpoints: Path, folder: Path) -> None:
    """The LoRAs that lie beside the checkpoints, if any, into a new folder."""
    for file in sorted(checkpoints.glob("night_*.safetensors")):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / file.name)


def compressed(package: Path, destination: Path) -> None:
    """The package as it is shipped: its files, all but pictures and small ones compressed. `destination` is made."""
    for file in sorted(path for path in package.rglob("*") if path.is_file()):
        target = destination / file.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".png" or file.stat().st_size < SMALL:
            shutil.copyfile(file, target)
            continue
        with file.open("rb") as plain, lzma.open(f"{target}{PACKED}", "wb", preset=9) as packed:
            shutil.copyfileobj(plain, packed)


def write_change(checkpoint: Path, file: Path) -> None:
    """What `toyworld.causal` has trained as a LoRA file, from which `toy.causal` makes the causal model."""
    file.parent.mkdir(parents=True, exist_ok=True)
    change = torch.load(checkpoint, map_location="cpu", weights_only=True)
    save_file({PREFIX + key: tensor.bfloat16().contiguous() for key, tensor in change.items()}, file)


def write_example(folder: Path) -> None:
    """First frame, prompt and camera path of a room, into a new folder."""
    folder.mkdir()
    path = preset_path(EXAMPLE_MOVE[0], frames=FRAMES, amount=EXAMPLE_MOVE[1])
    widest = preset_path("truck_right", frames=FRAMES, amount=8 * STEP)
    poses = torch.tensor(np.stack([widest.c2w])).float()
    scene = scenes_around(poses, torch.Generator().manual_seed(EXAMPLE_SEED))
    picture = render(scene.rooms, scene.c2w[:, :1], 480, 832)[0, 0]
    pixels = ((picture + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(folder / "image.png", optimize=True)
    np.save(folder / "poses.npy", path.c2w.astype(np.float32))
    np.save(folder / "intrinsics.npy", np.tile(LENS, (FRAMES, 1)).astype(np.float32))
    write_json(folder / "live.json", {"width": WIDTH, "height": HEIGHT})
    (folder / "prompt.txt").write_text(scene.rooms.captions()[0] + "\n", encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toyworld.pack", description=__doc__)
    parser.add_argument("checkpoints", type=Path, help="folder with vae.pt, high.pt and low.pt")
    parser.add_argument("destination", type=Path, help="the package's folder, which must not be there yet")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--bf16", action="store_true", help="with experts in bf16, for `quantize`")
    kind.add_argument("--shipped", action="store_true", help="compressed, as toy/trained is, for `lingbot-world toy`")
    options = parser.parse_args()
    if problem := lacking(options.checkpoints, MODELS):
        parser.error(problem)
    if options.destination.exists():
        parser.error(f"{options.destination} exists already; name a folder that does not, or remove it")
    if not options.shipped:
        make = plain_package if options.bf16 else quantized_package
        make(options.checkpoints, options.destination)
        return
    with tempfile.TemporaryDirectory() as folder:
        quantized_package(options.checkpoints, Path(folder, "toy"))
        compressed(Path(folder, "toy"), options.destination)


if __name__ == "__main__":
    main()
