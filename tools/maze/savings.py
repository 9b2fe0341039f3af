"""`python -m lingbot_world.tools.maze.savings PACKAGE --part savings|drift`: what savings cost in the maze, and what is
left of a walk after minutes. Made by the engine in houses and on walks that no training has seen.

Prints a JSON line for each way to make the walks (savings), for each length and size of chunks (drift)."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...options import FAST_INDICES, Window
from ...quantize import QuantizeOptions, plan_quantize, quantize
from ...toy.package import CAUSAL
from .camera_map import steps_of
from .measure import SECOND, SEED, Walker, as_floats, decibels, off, sharpness, truth_of
from .render import HEIGHT, WIDTH
from .rooms import Scenes, random_scenes
from .walks import key_walks, random_walks

FRAMES, SECONDS, CHUNKS = 117, (10, 30, 60, 120), (1, 3)
"""Of the walks for savings; of those for drift, how long they are, and the chunks that they are made in."""
BEST: dict[str, Any] = {"schedule": (0,), "chunk": 1}
"""One step and chunks of 1, as `live` takes them there by itself. The window is `Walker`'s own, 18 with a sink of 6."""
DEFAULT, NOISE = "default", "other noise"
WAYS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    NOISE: {},
    "--schedule v1": {"schedule": FAST_INDICES},
    "--chunk 3": {"chunk": 3},
    "--chunk 4": {"chunk": 4},
    "--window 0": {"window": Window()},
    "--window 9 --sink 3": {"window": Window(9, 3)},
    "--window 4 --sink 1": {"window": Window(4, 1)},
    "--kv_cache 8bit": {"kv_cache": "8bit"},
    "--attention 8bit": {"attention": "8bit"},
    "--arithmetic fp8": {"arithmetic": "fp8"},
    "--arithmetic int8": {"arithmetic": "int8"},
    "--dtype bf16 --vae_dtype bf16": {"dtype": torch.bfloat16},
}
"""What is changed of the best, by the options of `generate` that do so. The walks of NOISE differ in nothing but their
noise: so far away from each other are two videos that save nothing."""
SMALLER = {"quantize": QuantizeOptions(device="cpu"), "quantize --search": QuantizeOptions(device="cpu", search=True)}
"""Weights in NF4, by the command that makes them."""


def whole_chunks(asked: Tensor, chunk: int) -> Tensor:
    """The `steps_of` a path [f, 4, 4] of latent frames, with some more that stand still where a chunk is not full."""
    steps = steps_of(asked[None])[0]
    still = torch.eye(4, device=steps.device).expand(-len(steps) % chunk, 4, 4)
    return torch.cat([steps, still]).cpu()


def walk(walker: Walker, scenes: Scenes, index: int, start: Tensor, seed: int) -> Tensor:
    """Frames uint8 [f, h, w, 3] of a scene's walk from its first picture, as many as it has poses."""
    steps = whole_chunks(scenes.asked[index, ::4], walker.chunk)
    caption = scenes.rooms.captions()[index]
    return walker.frames(start, steps, caption, seed)[: scenes.asked.shape[1]]


def savings(
    package: Path, ways: dict[str, dict[str, Any]], count: int, frames: int = FRAMES, device: str = "cpu"
) -> Iterator[dict[str, Any]]:
    """For each way the means of some walks: decibels of later frames against the renderer, what they are less than the
    first way's, decibels from the first way's frames, and sharpness as a share of the renderer's."""
    scenes = random_scenes(count, SEED, frames, random_walks).to(device)
    truths = [truth_of(scenes, index, (HEIGHT, WIDTH)) for index in range(count)]
    plain: list[Tensor] = []
    for name, changes in ways.items():
        walker, rows, noise = Walker(package, device, **BEST | changes), [], 1000 * (name == NOISE)
        for index, truth in enumerate(truths):
            made = walk(walker, scenes, index, truth[0], index + noise)
            plain += [made] if len(plain) < count else []
            later, first_way = as_floats(made)[1:], as_floats(plain[index])[1:]
            found = decibels(later, truth[1:])
            rows.append(
                [
                    found,
                    decibels(first_way, truth[1:]) - found,
                    decibels(later, first_way),
                    sharpness(later) / sharpness(truth[1:]),
                ]
            )
        table = torch.tensor(rows)
        means = dict(zip(("later", "less", "from the first", "sharpness"), table.mean(0).tolist(), strict=True))
        yield {"way": name, **means, "less at most": table[:, 1].max().item()}


def smaller(package: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Ways for the package's causal model in 4 bits, which the project's own quantizer writes into a folder."""
    for number, options in enumerate(SMALLER.values()):
        plan = plan_quantize(package / CAUSAL, folder / str(number), options)
        quantize(plan, lambda *_: nullcontext(lambda *_: None))
    return {name: {"causal": folder / str(number)} for number, name in enumerate(SMALLER)}


def there_and_back(count: int, seed: int, frames: int) -> Scenes:
    """Walks by keys that go back from half-way on as they came: every picture of the way out is seen again, the first
    one last. Where a wall stopped the way out, the way back is asked for as it was gone, not as that was asked for."""
    out = random_scenes(count, seed, (frames + 1) // 2, key_walks)
    back = out.c2w.flip(1)[:, 1:]
    missed = out.asked[:, -1:] - out.c2w[:, -1:]
    return Scenes(out.rooms, torch.cat([out.c2w, back], 1), torch.cat([out.asked, back + missed], 1))


def drift(walker: Walker, count: int, frames: int) -> dict[str, Any]:
    """Of walks there and back: decibels of the last frame against the picture that was given, those of each walk too,
    and of the last second what `off` says. To compare with, `plain`: decibels of that picture's mean colour."""
    scenes, rows = there_and_back(count, SEED + 2, frames).to(walker.device), []
    for index in range(count):
        start = truth_of(scenes, index, walker.size, slice(1))[0]
        made = as_floats(walk(walker, scenes, index, start, index)[-SECOND:])
        last = truth_of(scenes, index, walker.size, slice(frames - SECOND, frames))
        plain = start.mean((1, 2), keepdim=True).expand_as(start)
        rows.append([decibels(made[-1], start), *off(made, last), decibels(plain, start)])
    table = torch.tensor(rows)
    means = dict(zip(("last frame", "sharpness", "colour", "plain"), table.mean(0).tolist(), strict=True))
    return {**means, "colour at most": table[:, 2].max().item(), "last frames": table[:, 0].tolist()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.maze.savings", description=__doc__)
    add = parser.add_argument
    add("package", type=Path, help="folder that `maze.pack` or `toy --maze` has written")
    add("--part", choices=("savings", "drift"), default="savings")
    add("--count", type=int, default=6, help="walks of each kind")
    add("--frames", type=int, default=FRAMES, help="of a walk for savings")
    add("--seconds", type=int, nargs="+", default=SECONDS, help="of walks for drift")
    add("--chunks", type=int, nargs="+", default=CHUNKS, help="of walks for drift")
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    for line in (measured_savings if options.part == "savings" else measured_drift)(options):
        print(json.dumps(line), flush=True)


def measured_savings(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The lines of `--part savings`."""
    with tempfile.TemporaryDirectory() as folder:
        ways = WAYS | smaller(options.package, Path(folder))
        yield from savings(options.package, ways, options.count, options.frames, options.device)


def measured_drift(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The lines of `--part drift`."""
    for chunk in options.chunks:
        walker = Walker(options.package, options.device, **BEST | {"chunk": chunk})
        for seconds in options.seconds:
            yield {"chunk": chunk, "seconds": seconds, **drift(walker, options.count, seconds * SECOND + 1)}


if __name__ == "__main__":
    main()
