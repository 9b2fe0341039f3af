"""Write the trained maze as a package: `python -m lingbot_world.tools.toy.pack CHECKPOINTS DEST`."""

import argparse
import json
import lzma
import math
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...live.worlds.walls import MAP, mean_colours
from ...quantize.writer import config_json, write_json
from ...toy.experts import write_expert
from ...toy.package import CAUSAL, EXAMPLE
from ...toy.world import PACKED, VAE
from .parameters import load_weights
from .paths import STEP, rotations
from .prompts import write_text_files
from .render import HEIGHT, LENS, WIDTH, render
from .rooms import BOXES, COLOURS, EYE, MARGIN, PITCH, WEATHERS, Rooms, Scenes
from .settings import config_of
from .walks import TURN

CHECKPOINTS = "vae", "denoiser"
SHARDS = 2
SMALL = 10_000  # bytes under which a file is shipped as it is
BITS = 6  # the significant bits of shipped matrices, 8 in bf16; fewer cost 0.05 dB
EXAMPLE_WALLS, EXAMPLE_PLACE = (0, 3), (PITCH / 2, -EYE, PITCH / 4)
"""Red and blue, and the example's first place: all doors lie in a line ahead."""
EXAMPLE_FRAMES, THROUGH = 129, 96  # the number of frames of the example's path, and of those in which it goes ahead
OTHERS = {
    "fog": ("blue", "yellow", "in the fog", (PITCH / 2, 3.6), 180),
    "night": ("white", "blue", "at night", (PITCH / 2, 0.6), 15),
    "snow": ("green", "white", "in the snow", (3.6, 1.0), -30),
    "yellow": ("yellow", "green", "by day", (1.2, 1.2), 45),
}
"""Start images of other houses: two colours, the weather, x and z, and the yaw to the right in degrees."""

EVENTS = {"night": "It is night.", "snow": "It is in the snow.", "fog": "It is in the fog."}
"""Sentences that extend the prompt of a walk."""

GOAL, GOAL_ROOMS = 3, ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 2), (2, 0), (-2, 0), (0, -2))
"""The golden crate: its index in BOXES, and its possible rooms, relative to a walk's first room."""


def write_package(checkpoints: Path, folder: Path, short: bool = False) -> None:
    """Write the causal model, VAE (float16), text encoder, tokenizer and an example. `short`: with `shortened`
    matrices."""
    vae, weights = (load_weights(checkpoints / f"{name}.pt") for name in CHECKPOINTS)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_files(folder)
    torch.save({name: tensor.half().cpu() for name, tensor in vae.items()}, folder / VAE)
    tensors = {name: shortened(weight) if short and weight.ndim == 2 else weight for name, weight in weights.items()}
    config, causal = replace(config_of(weights), causal=True), folder / CAUSAL
    causal.mkdir()
    write_expert(causal / "diffusion_pytorch_model.safetensors", config, tensors.items(), quant_type=None)
    write_json(causal / "config.json", config_json(config))
    write_example(folder / EXAMPLE)


def shortened(tensor: Tensor) -> Tensor:
    """Round to BITS significant bits; their bf16 compresses well."""
    share, exponent = torch.frexp(tensor)
    return torch.ldexp((share * 2**BITS).round(), exponent - BITS)


def in_shards(file: Path, count: int = SHARDS) -> None:
    """Replace a safetensors file by so many shards and their index: each must be under 10 MB."""
    tensors = load_file(file)
    parts: list[dict[str, Tensor]] = [{} for _ in range(count)]
    total, done, where = sum(tensor.nbytes for tensor in tensors.values()), 0, {}
    for key, tensor in tensors.items():
        number = min(count - 1, count * done // total)
        where[key] = f"{file.stem}-{number + 1:05d}-of-{count:05d}.safetensors"
        parts[number][key] = tensor
        done += tensor.nbytes
    for name, part in zip(sorted(set(where.values())), parts, strict=True):
        save_file(part, file.with_name(name))
    write_json(file.with_name(f"{file.name}.index.json"), {"metadata": {"total_size": total}, "weight_map": where})
    file.unlink()


def write_shipped(checkpoints: Path, destination: Path) -> None:
    """Write the package as `toy/maze` has it: shortened, in shards, compressed."""
    with tempfile.TemporaryDirectory() as name:
        package = Path(name, "maze")
        write_package(checkpoints, package, short=True)
        in_shards(package / CAUSAL / "diffusion_pytorch_model.safetensors")
        compressed(package, destination)


def compressed(package: Path, destination: Path) -> None:
    for file in sorted(path for path in package.rglob("*") if path.is_file()):
        target = destination / file.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".png" or file.stat().st_size < SMALL:
            shutil.copyfile(file, target)
            continue
        with file.open("rb") as plain, lzma.open(f"{target}{PACKED}", "wb", preset=9) as packed:
            shutil.copyfileobj(plain, packed)


def example() -> Scenes:
    """Return the example's house and path: through a door, then a look to the right."""
    ahead, turned = torch.arange(EXAMPLE_FRAMES).clamp(max=THROUGH), torch.arange(EXAMPLE_FRAMES) - THROUGH
    path = torch.eye(4).repeat(1, EXAMPLE_FRAMES, 1, 1)
    path[0, :, :3, 3] = torch.tensor(EXAMPLE_PLACE) + ahead[:, None] * torch.tensor([0.0, 0.0, STEP / 4])
    angle = turned.clamp(min=0) * TURN
    path[0, :, :3, :3] = rotations(torch.stack([0 * angle, angle, 0 * angle], 1))
    return Scenes(Rooms(torch.tensor([EXAMPLE_WALLS]), torch.zeros(1, dtype=torch.long)), path, path)


def other(name: str) -> Scenes:
    """Return one of the OTHERS: its house and its pose."""
    one, two, weather, (x, z), degrees = OTHERS[name]
    colours = list(COLOURS)
    rooms = Rooms(torch.tensor([[colours.index(one), colours.index(two)]]), torch.tensor([WEATHERS.index(weather)]))
    pose = torch.eye(4).repeat(1, 1, 1, 1)
    pose[0, 0, :3, 3] = torch.tensor([x, -EYE, z])
    pose[0, 0, :3, :3] = rotations(torch.tensor([[0.0, math.radians(degrees), 0.0]]))[0]
    return Scenes(rooms, pose, pose)


def world_map(scenes: dict[str, Scenes]) -> dict[str, Any]:
    """Return the map of the maze for a walk, with the first pose and the mean colours of each scene."""
    places = [
        {
            "name": name,
            "at": [round(float(value), 4) for value in scene.c2w[0, 0, :3, 3]],
            "yaw": round(math.degrees(math.atan2(scene.c2w[0, 0, 0, 2], scene.c2w[0, 0, 2, 2])), 4),
            "look": mean_colours(torch.from_numpy(_seen(scene)).permute(2, 0, 1)).round().astype(int).tolist(),
        }
        for name, scene in scenes.items()
    ]
    return {"room": PITCH, "margin": MARGIN, "boxes": BOXES, "goal": GOAL, "rooms": GOAL_ROOMS, "places": places}


def _seen(scene: Scenes) -> np.ndarray:
    """Return the image, uint8 [2 * HEIGHT, 2 * WIDTH, 3], from a scene's first pose."""
    seen = render(scene.rooms, scene.c2w[:, :1], 2 * HEIGHT, 2 * WIDTH)[0, 0]
    return ((seen + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()


def _begin(scene: Scenes, picture: Path, prompt: Path) -> None:
    Image.fromarray(_seen(scene)).save(picture, optimize=True)
    prompt.write_text(scene.rooms.captions()[0] + "\n", encoding="utf-8")


def write_example(folder: Path) -> None:
    """Write first frame, prompt and camera path of a house, and images and prompts of OTHERS, into a new folder."""
    folder.mkdir()
    for name in OTHERS:
        _begin(other(name), folder / f"{name}.png", folder / f"{name}.txt")
    scene = example()
    world = world_map({"image": scene, **{name: other(name) for name in OTHERS}})
    (folder / MAP).write_text(json.dumps(world) + "\n", encoding="utf-8")
    np.save(folder / "poses.npy", (torch.linalg.inv(scene.c2w[0, :1]) @ scene.c2w[0]).numpy())
    np.save(folder / "intrinsics.npy", np.tile(LENS, (EXAMPLE_FRAMES, 1)).astype(np.float32))
    events = [{"name": name, "text": text, "key": key} for key, (name, text) in enumerate(EVENTS.items(), 1)]
    write_json(folder / "events.json", events)
    write_json(folder / "live.json", {"width": WIDTH, "height": HEIGHT, "chunk": 1, "schedule": "0"})
    _begin(scene, folder / "image.png", folder / "prompt.txt")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toy.pack", description=__doc__)
    parser.add_argument("checkpoints", type=Path, help="folder with vae.pt and denoiser.pt")
    parser.add_argument("destination", type=Path, help="the package's folder, which must not be there yet")
    parser.add_argument("--shipped", action="store_true", help="compressed, as toy/maze is")
    options = parser.parse_args()
    (write_shipped if options.shipped else write_package)(options.checkpoints, options.destination)


if __name__ == "__main__":
    main()
