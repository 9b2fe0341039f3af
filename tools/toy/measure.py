"""Quality of the engine's walks against the renderer: `python -m lingbot_world.tools.toy.measure PACKAGE`."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ...camera import pose_embedding
from ...loaders import load_expert
from ...model.kv.place import KeyValuePlace
from ...options import CAUSAL_SHIFT, FAST_INDICES, RELEASES, Window
from ...pipeline.geometry import chunk_conditioning
from ...pipeline.world import World, WorldMemory
from ...sampling import few_step_schedule, step_indices
from ...text import encode
from ...toy.package import CAUSAL
from ...toy.world import VAE
from ...vae import VideoDecoder, encode_first_frame, load_vae
from ...vae.encoding import SETTLED
from .prompts import TEXT_ENCODER
from .render import HEIGHT, LENS, WIDTH, render
from .rooms import RandomPaths, Scenes, random_scenes
from .settings import SINK, WINDOW
from .walks import key_walks, random_walks, steps_of

SEED = 987_654_321  # the seed of houses and walks that no training uses
SHORT, LONG, THERE = 33, 477, 165  # frames of short videos, of walks of 30 seconds, and of walks there and back in 10
SECOND = 16
ALIKE = 31.0  # the VAE's PSNR of later frames. A walk whose frames are as near to the first is not counted in the gain.
HELD = Window(WINDOW, SINK)


class Walker:
    """A package's causal model on a device."""

    def __init__(
        self,
        package: Path,
        device: str,
        size: tuple[int, int] = (HEIGHT, WIDTH),
        chunk: int = 1,
        schedule: tuple[int, ...] = FAST_INDICES[:1],
    ) -> None:
        """`size`: height and width. A CPU computes in fp32, a GPU in bf16."""
        self.package, self.device, self.size, self.chunk = package, device, size, chunk
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.model = load_expert(package / CAUSAL, dtype=dtype, device=device)
        self.vae, self.cells = load_vae(package / VAE, device=device), (size[0] // 8, size[1] // 8)
        self.schedule, self.memory = few_step_schedule(schedule, CAUSAL_SHIFT), WorldMemory(KeyValuePlace())

    def video(self, picture: Tensor, steps: Tensor, caption: str, seed: int = 0) -> Tensor:
        """Return frames [f, 3, h, w], -1 to 1, from an image [3, h, w] along `steps_of` a path [n, 4, 4]."""
        return self.frames(picture, steps, caption, seed).permute(0, 3, 1, 2).float() / 127.5 - 1

    @torch.no_grad()
    def frames(self, picture: Tensor, steps: Tensor, caption: str, seed: int = 0) -> Tensor:
        """Return the same frames as uint8 [f, h, w, 3]."""
        random, decoder = torch.Generator().manual_seed(seed), VideoDecoder(self.vae, *self.cells)
        held = HELD.in_cache(len(steps), self.chunk)
        world = World(self.model, self.cells, held, chunk=self.chunk, device=self.device, memory=self.memory)
        world.prompt = encode([caption], self.package / TEXT_ENCODER, self.package)[0][None].to(self.device)
        made = []

        def noise(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=random)

        for y, camera in self._given(picture, steps):
            latent = world.chunk(noise((1, 16, self.chunk, *self.cells)), y, camera, self.schedule, noise)
            made.append(decoder.decode(latent))
        return torch.cat(made)

    def _given(self, picture: Tensor, steps: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        image = encode_first_frame(self.vae, picture, min(4 * len(steps), 4 * SETTLED) - 3).to(self.device)
        for part, y in zip(steps.split(self.chunk), chunk_conditioning(image, self.chunk), strict=False):
            if len(part) < self.chunk:
                break
            camera = pose_embedding(part.double().numpy(), LENS[None], height=self.size[0], width=self.size[1])
            yield y, camera.to(self.device)


def decibels(made: Tensor, truth: Tensor) -> float:
    """Return the PSNR of images from -1 to 1."""
    return float(-10 * torch.log10(((made - truth) / 2).square().mean().clamp(min=1e-10)))


def sharpness(pictures: Tensor) -> float:
    """Return the mean square of the differences between neighbouring pixels."""
    return float(pictures.diff(dim=-1).square().mean() + pictures.diff(dim=-2).square().mean())


def truth_of(scenes: Scenes, index: int, size: tuple[int, int], frames: slice = slice(None)) -> Tensor:
    """Return the renderer's frames [f, 3, h, w] of a scene."""
    scene = scenes[index : index + 1]
    return render(scene.rooms, scene.c2w[:, frames], *size)[0].cpu()


def walked(
    walker: Walker, seed: int, count: int, frames: int, paths: RandomPaths
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the model's frames [f, 3, h, w] of each walk, and the renderer's first and last SECOND."""
    scenes = random_scenes(count, seed, frames, paths).to(walker.device)
    for index, caption in enumerate(scenes.rooms.captions()):
        start = truth_of(scenes, index, walker.size, slice(1))
        made = walker.video(start[0], steps_of(scenes.asked[index : index + 1, ::4])[0].cpu(), caption, index)
        yield made, start, truth_of(scenes, index, walker.size, slice(len(made) - SECOND, len(made)))


def short_videos(walker: Walker, count: int, frames: int = SHORT) -> dict[str, float]:
    """Return PSNR of the first and last frames, their gain over a copy of the first, and relative sharpness."""
    rows, gains = [], list[float]()
    for made, start, last in walked(walker, SEED, count, frames, random_walks):
        later, copied = decibels(made[-SECOND:], last), decibels(start.expand_as(last), last)
        rows.append([decibels(made[:1], start), later, sharpness(made[-SECOND:]) / sharpness(last)])
        gains += [later - copied] if copied < ALIKE else []
    means = dict(zip(("first", "later", "sharpness"), torch.tensor(rows).mean(0).tolist(), strict=True))
    return means | {"gain": sum(gains) / len(gains) if gains else float("nan"), "moving": len(gains)}


def long_walks(walker: Walker, count: int, frames: int = LONG) -> dict[str, float]:
    """Return the last second's relative sharpness and the error of its mean colour, of 255."""
    videos = [(made[-SECOND:], last) for made, _, last in walked(walker, SEED + 1, count, frames, key_walks)]
    own, true = (sum(map(sharpness, part)) for part in zip(*videos, strict=True))
    away = [float((made.mean((0, 2, 3)) - last.mean((0, 2, 3))).abs().max()) * 127.5 for made, last in videos]
    return {"sharpness": own / true, "colour": sum(away) / count}


def there_and_back(walker: Walker, count: int, frames: int = THERE) -> dict[str, float]:
    """Return the PSNR of the last frame of walks that return to their start."""

    def paths(number: int, generator: torch.Generator, _: int) -> Tensor:
        out = key_walks(number, generator, (frames + 1) // 2)
        return torch.cat([out, out.flip(1)[:, 1:]], 1)

    found = [decibels(made[-1], last[-1]) for made, _, last in walked(walker, SEED + 2, count, frames, paths)]
    return {"last frame": sum(found) / count}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toy.measure", description=__doc__)
    add = parser.add_argument
    add("package", type=Path, help="folder that `maze.pack` has written")
    add("--count", type=int, default=16, help="videos of each kind")
    add("--chunk", type=int, default=1, help="latent frames made at a time")
    add("--schedule", default="0", help="the steps, as `generate` takes them: 0 as `live` walks, v1 four as Fast does")
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    steps = step_indices(options.schedule, RELEASES["v1"])
    walker = Walker(options.package, options.device, chunk=options.chunk, schedule=steps)
    for name, of in {"short": short_videos, "there and back": there_and_back, "30 seconds": long_walks}.items():
        print(json.dumps({name: of(walker, options.count)}), flush=True)


if __name__ == "__main__":
    main()
