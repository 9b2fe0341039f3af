"""`python -m lingbot_world.tools.maze.measure PACKAGE`: how good walks are, made by the engine, against the renderer.

Prints a JSON line for each figure and writes sheet.png, the renderer's rows over the model's."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ...camera import pose_embedding
from ...camera.path import CameraPath
from ...loaders import load_expert
from ...measure import measure_camera
from ...model.attention.choose_8bit import takes_operands
from ...model.kv.place import KeyValuePlace
from ...options import CAUSAL_SHIFT, FAST_INDICES, RELEASES, Arithmetic, AttentionMode, KeyValueMode, Window
from ...pipeline.world import World, WorldMemory, chunk_conditioning
from ...sampling import few_step_schedule, step_indices
from ...text import encode
from ...toy.package import CAUSAL
from ...vae import VideoDecoder, encode_first_frame, load_vae
from ...vae.encoding import SETTLED
from ..toyworld.evaluate import sheet
from ..toyworld.pack import VAE
from ..toyworld.parameters import load_weights
from ..toyworld.prompts import TEXT_ENCODER
from ..toyworld.render import LENS
from .camera_map import steps_of
from .pool import encoded
from .render import HEIGHT, WIDTH, render
from .rooms import Scenes, random_scenes
from .settings import SINK, WINDOW, Sizes
from .walks import key_walks, random_walks

SEED = 987_654_321
"""Of houses and walks that no training has seen."""
SHORT, LONG, THERE = 33, 477, 165
"""Frames of the videos that are compared frame by frame, of walks of 30 seconds, of walks there and back in 10."""
SECOND = 16
ALIKE = 31.0
"""Decibels of what the VAE makes of later frames. Nobody gains on a copy of the first frame that is as near as that:
of a walk in which no key is held, or hardly one."""
HELD = Window(WINDOW, SINK)
VERDICTS = {True: "follows", False: "does not", None: "cannot be told"}


class Walker:
    """A package's causal model, on a device."""

    def __init__(
        self,
        package: Path,
        device: str,
        size: tuple[int, int] = (HEIGHT, WIDTH),
        chunk: int = 1,
        *,
        schedule: tuple[int, ...] = FAST_INDICES[:1],
        window: Window = HELD,
        kv_cache: KeyValueMode = "auto",
        arithmetic: Arithmetic = "auto",
        attention: AttentionMode = "auto",
        causal: Path | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """size: height and width of the pictures. dtype: of forwards, by default fp32 on a CPU and bf16 on a GPU. A CPU
        decodes in it too, as `live` does. The others are as the engine's options of the same names; causal: a model
        in place of the package's own."""
        self.package, self.device, self.size, self.chunk, self.window = package, device, size, chunk, window
        dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
        self.model = load_expert(
            causal or package / CAUSAL, dtype=dtype, device=device, arithmetic=arithmetic, attention_mode=attention
        )
        self.vae = self.decoding = load_vae(package / VAE, device=device)
        if device == "cpu" and dtype == torch.bfloat16:
            self.decoding = self.vae.decoding_in_half(dtype)
        self.schedule = few_step_schedule(schedule, CAUSAL_SHIFT)
        fp8 = takes_operands(attention, torch.device(device), self.model.config)
        self.memory = WorldMemory(KeyValuePlace(kv_cache == "8bit" and not fp8, kv_cache == "host", fp8))

    def video(self, picture: Tensor, steps: Tensor, caption: str, seed: int = 0) -> Tensor:
        """Pictures [f, 3, h, w], -1 to 1, of a walk from a picture [3, h, w]: `steps_of` [n, 4, 4] it, whole chunks."""
        return as_floats(self.frames(picture, steps, caption, seed))

    @torch.no_grad()
    def frames(
        self, picture: Tensor, steps: Tensor, caption: str, seed: int = 0, after: Tensor | None = None
    ) -> Tensor:
        """The same pictures as uint8 [f, h, w, 3]: a long walk's are a quarter of the memory so. after: latents [1, 16,
        n, h / 8, w / 8] of the walk, after which each chunk is made, in place of those that were made."""
        random, decoder = torch.Generator().manual_seed(seed), VideoDecoder(self.decoding, *self.cells)
        given, world, made = list(self._given(picture, steps)), self._world(caption, len(steps)), []

        def noise(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=random)

        for index, (y, camera) in enumerate(given):
            if after is not None:
                world = self._world(caption, len(steps))
                for latent, before in zip(after.split(self.chunk, 2), given[:index], strict=False):
                    world.replay(latent, *before)
            latent = world.chunk(noise((1, 16, self.chunk, *self.cells)), y, camera, self.schedule, noise)
            made.append(decoder.decode(latent))
        return torch.cat(made)

    @property
    def cells(self) -> tuple[int, int]:
        """Height and width of the latents."""
        return self.size[0] // 8, self.size[1] // 8

    def _world(self, caption: str, frames: int) -> World:
        """One that has seen nothing, for so many latent frames."""
        held = self.window.held(frames, self.chunk)
        world = World(self.model, self.cells, held, chunk=self.chunk, device=self.device, memory=self.memory)
        world.prompt = encode([caption], self.package / TEXT_ENCODER, self.package)[0][None].to(self.device)
        return world

    def _given(self, picture: Tensor, steps: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Mask and image latent, and the camera, of each whole chunk."""
        image = encode_first_frame(self.vae, picture, min(4 * len(steps), 4 * SETTLED) - 3).to(self.device)
        for part, y in zip(steps.split(self.chunk), chunk_conditioning(image, self.chunk), strict=False):
            if len(part) < self.chunk:
                break
            camera = pose_embedding(part.double().numpy(), LENS[None], height=self.size[0], width=self.size[1])
            yield y, camera.to(self.device)


def as_floats(frames: Tensor) -> Tensor:
    """Frames uint8 [f, h, w, 3] as pictures [f, 3, h, w], -1 to 1."""
    return frames.permute(0, 3, 1, 2).float() / 127.5 - 1


def decibels(made: Tensor, truth: Tensor) -> float:
    """PSNR of pictures -1 to 1."""
    return float(-10 * torch.log10(((made - truth) / 2).square().mean().clamp(min=1e-10)))


def sharpness(pictures: Tensor) -> float:
    """The mean square of the differences between neighbouring pixels."""
    return float(pictures.diff(dim=-1).square().mean() + pictures.diff(dim=-2).square().mean())


def truth_of(scenes: Scenes, index: int, size: tuple[int, int], frames: slice = slice(None)) -> Tensor:
    """The renderer's pictures [f, 3, h, w] of a scene."""
    scene = scenes[index : index + 1]
    return render(scene.rooms, scene.c2w[:, frames], *size)[0].cpu()


def off(made: Tensor, truth: Tensor) -> tuple[float, float]:
    """Sharpness of pictures as a share of the renderer's, and how far a colour's mean is from it, of 255, at most."""
    away = (made.mean((0, 2, 3)) - truth.mean((0, 2, 3))).abs().max()
    return sharpness(made) / sharpness(truth), float(away) * 127.5


def short_videos(walker: Walker, count: int, frames: int = SHORT, out: Path | None = None) -> dict[str, float]:
    """Decibels of first and later frames, what these gain over the first frame copied in walks that move (`ALIKE`),
    how many these are, and the sharpness of the first ones."""
    scenes = random_scenes(count, SEED, frames, random_walks).to(walker.device)
    rows, gains, shown = [], list[float](), []
    for index, caption in enumerate(scenes.rooms.captions()):
        truth = truth_of(scenes, index, walker.size)
        made = walker.video(truth[0], steps_of(scenes.asked[index : index + 1, ::4])[0].cpu(), caption, index)
        seen = truth[: len(made)]
        later, copied = decibels(made[1:], seen[1:]), decibels(seen[:1].expand_as(seen[1:]), seen[1:])
        rows.append([decibels(made[0], seen[0]), later, sharpness(made[1:9]) / sharpness(seen[1:9])])
        gains += [later - copied] if copied < ALIKE else []
        shown.append((seen, made))
    if out is not None:
        truths, videos = (torch.stack(part) for part in zip(*shown[:5], strict=True))
        sheet(truths, videos, out)
    means = dict(zip(("first", "later", "sharpness"), torch.tensor(rows).mean(0).tolist(), strict=True))
    return means | {"gain": sum(gains) / len(gains) if gains else float("nan"), "moving": len(gains)}


@torch.no_grad()
def by_frame(walker: Walker, count: int, frames: int = SHORT) -> dict[str, list[float]]:
    """Decibels of the four pictures of each latent frame but the first: made after its own chunks, after true ones, and
    by the VAE alone."""
    scenes = random_scenes(count, SEED, frames, random_walks).to(walker.device)
    pictures, latents = encoded(
        load_weights(walker.package / VAE, walker.device), scenes, Sizes(height=walker.size[0], width=walker.size[1])
    )
    rows: dict[str, list[list[float]]] = {"after its own": [], "after true ones": [], "the VAE alone": []}
    for index, caption in enumerate(scenes.rooms.captions()):
        truth, latent = pictures[index].cpu(), latents[index : index + 1].float()
        steps = steps_of(scenes.asked[index : index + 1, ::4])[0].cpu()
        made = [walker.frames(truth[0], steps, caption, index, after) for after in (None, latent)]
        made.append(VideoDecoder(walker.decoding, *walker.cells).decode(latent))
        for row, video in zip(rows.values(), map(as_floats, made), strict=True):
            parts = zip(video[1:].split(4), truth[1:].split(4), strict=False)
            row.append([decibels(part, seen) for part, seen in parts])
    return {name: torch.tensor(row).mean(0).tolist() for name, row in rows.items()}


def long_walks(walker: Walker, count: int, frames: int = LONG) -> dict[str, float]:
    """Of the last second of walks by keys: sharpness of all as a share of the renderer's, and the median of the walks'
    own shares (before a flat wall one may be large); how far each colour's mean is from it, of 255, at most."""
    scenes = random_scenes(count, SEED + 1, frames, key_walks).to(walker.device)
    sharp, away = [], []
    for index, caption in enumerate(scenes.rooms.captions()):
        start = truth_of(scenes, index, walker.size, slice(1))[0]
        made = walker.video(start, steps_of(scenes.asked[index : index + 1, ::4])[0].cpu(), caption, index)
        last = truth_of(scenes, index, walker.size, slice(len(made) - SECOND, len(made)))
        sharp.append([sharpness(made[-SECOND:]), sharpness(last)])
        away.append(off(made[-SECOND:], last)[1])
    own, true = torch.tensor(sharp).unbind(1)
    return {
        "sharpness": float(own.sum() / true.sum()),
        "median": float((own / true).median()),
        "colour": sum(away) / count,
        "colour at most": max(away),
    }


def there_and_back(walker: Walker, count: int, frames: int = THERE) -> dict[str, float]:
    """Decibels of a walk's last frames, which show what its first ones do, against the picture that was given."""
    half = (frames + 1) // 2
    found = []

    def paths(number: int, generator: torch.Generator, _: int) -> Tensor:
        out = key_walks(number, generator, half)
        return torch.cat([out, out.flip(1)[:, 1:]], 1)

    scenes = random_scenes(count, SEED + 2, frames, paths).to(walker.device)
    for index, caption in enumerate(scenes.rooms.captions()):
        start = truth_of(scenes, index, walker.size, slice(1))[0]
        made = walker.video(start, steps_of(scenes.asked[index : index + 1, ::4])[0].cpu(), caption, index)
        seen = truth_of(scenes, index, walker.size, slice(len(made) - 1, len(made)))[0]
        found.append(decibels(made[-1], seen))
    return {"last frame": sum(found) / count}


@torch.no_grad()
def followed(walker: Walker, count: int, frames: int = THERE) -> dict[str, dict[str, int]]:
    """How many videos of walks by keys follow the way that the camera took, walls and all, as `camera measure` judges;
    of the pairs of keyframes that it judges, how many do. The same of the renderer's own pictures. Raises
    DependencyError without OpenCV or pycolmap."""
    scenes = random_scenes(count, SEED + 3, frames, key_walks).to(walker.device)
    found: dict[str, Counter[str]] = {"made": Counter(), "the renderer's": Counter()}
    for index, caption in enumerate(scenes.rooms.captions()):
        truth = truth_of(scenes, index, walker.size)
        made = walker.video(truth[0], steps_of(scenes.asked[index : index + 1, ::4])[0].cpu(), caption, index)
        path = CameraPath(scenes.c2w[index].double().cpu().numpy(), LENS[None])
        for counts, video in zip(found.values(), (made, truth[: len(made)]), strict=True):
            grey = ((video.mean(1) + 1) * 127.5).round().byte().numpy()
            measured = measure_camera(grey, path)
            counts.update({VERDICTS[measured.follows]: 1, "pairs": len(measured.judged), "of them": measured.following})
    return {name: dict(counts) for name, counts in found.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.maze.measure", description=__doc__)
    add = parser.add_argument
    add("package", type=Path, help="folder that `maze.pack` has written")
    add("--count", type=int, default=16, help="videos of each kind")
    add("--chunk", type=int, default=1, help="latent frames made at a time")
    add("--schedule", default="0", help="the steps, as `generate` takes them: 0 as `live` walks, v1 four as Fast does")
    add("--sheet", type=Path, default=Path("sheet.png"))
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    steps = step_indices(options.schedule, RELEASES["v1"])
    walker = Walker(options.package, options.device, chunk=options.chunk, schedule=steps)
    print(json.dumps({"short": short_videos(walker, options.count, out=options.sheet)}), flush=True)
    print(json.dumps({"by frame": by_frame(walker, options.count)}), flush=True)
    print(json.dumps({"there and back": there_and_back(walker, options.count)}), flush=True)
    print(json.dumps({"30 seconds": long_walks(walker, options.count)}), flush=True)
    print(json.dumps({"followed": followed(walker, options.count)}), flush=True)


if __name__ == "__main__":
    main()
