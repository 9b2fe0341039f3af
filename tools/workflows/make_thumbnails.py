#!/usr/bin/env python3
"""Make the templates' thumbnails (workflows/*.jpg) from videos of the toy along the templates' paths.

python tools/workflows/make_thumbnails.py TOY [--only NAME ...]

TOY is what `lingbot-world toy` wrote. The files are animated WebP: ComfyUI requires the ending .jpg."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from lingbot_world.camera.moves import path_from_editor, path_from_keys, preset_path
from lingbot_world.camera.path import CameraPath
from lingbot_world.camera.pose_folder import load_poses
from lingbot_world.tools.toy.measure import Walker
from lingbot_world.tools.toy.paths import STEP
from lingbot_world.tools.toy.walks import steps_of
from PIL import Image

WORKFLOWS = Path(__file__).resolve().parent.parent.parent / "workflows"
SIZE = 320, 180
FRAMES, EVERY, MILLISECONDS = 33, 2, 125  # frames of a video, the step between shown ones, and their duration
QUALITY, LARGEST = 52, 50_000  # the first WebP quality, and the largest file in bytes


def edited() -> CameraPath:
    workflow = json.loads((WORKFLOWS / "api" / "camera.json").read_text(encoding="utf-8"))
    inputs = (node["inputs"] for node in workflow.values())
    return path_from_editor(next(each["path"] for each in inputs if "path" in each))


PICTURES = {
    "camera": ("image", edited),
    "simple": ("yellow", edited),
    "moves": ("snow", lambda: path_from_keys("w-26,wl-15") + preset_path("crane_up", frames=41)),
    "poses": ("fog", None),
    "from_video": ("night", "handheld"),
    "views": ("yellow", "arc_right"),
    "fast": ("snow", "dolly_in"),
    "fast_long": ("night", "spiral"),
    "go_on": ("image", "pan_right"),
    "larger": ("yellow", "dolly_in"),
    "first_last": ("fog", "truck_left"),
    "lora_four_steps": ("night", "dolly_in"),
    "easy_cache": ("image", "arc_right"),
    "own_sampler": ("snow", "truck_right"),
    "core_nodes": ("image", "truck_left"),
    "toy": ("image", None),
    "fast_lora": ("night", "arc_left"),
    "real_time": ("fog", "dolly_in"),
    "walk": ("snow", "pan_left"),
    "walk_toy": ("yellow", None),
}
"""By workflow: the start image in the toy's example, and the path or its preset; None for the example's path."""


def video(walker: Walker, toy: Path, name: str, move) -> list[Image.Image]:
    given = preset_path(move, frames=FRAMES) if isinstance(move, str) else move and move()
    path = given or CameraPath(*load_poses(toy / "example"))
    poses = torch.tensor(path.at(np.linspace(0, min(len(path), 81) - 1, FRAMES)).c2w)[None].float()
    longest = (poses[:, 4::4, :3, 3] - poses[:, :-4:4, :3, 3]).norm(dim=-1).max()
    poses[..., :3, 3] *= STEP / longest.clamp(min=1e-6) if longest > 1e-6 else 1
    picture = Image.open(toy / "example" / f"{name}.png").convert("RGB").resize(walker.size[::-1], Image.Resampling.BOX)
    start = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 127.5 - 1
    caption = (toy / "example" / f"{'prompt' if name == 'image' else name}.txt").read_text(encoding="utf-8").strip()
    made = walker.frames(start, steps_of(poses[:, ::4])[0], caption)
    return [Image.fromarray(frame.numpy()).resize(SIZE, Image.Resampling.LANCZOS) for frame in made[::EVERY]]


def save(frames: list[Image.Image], file: Path) -> None:
    for quality in range(QUALITY, 0, -14):
        options = {"quality": quality, "duration": MILLISECONDS, "loop": 0, "method": 4}
        frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], **options)
        if file.stat().st_size <= LARGEST:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("toy", type=Path)
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    options = parser.parse_args()
    walker = Walker(options.toy, "cpu")
    for file in sorted(WORKFLOWS.glob("*.json")):
        name = json.loads(file.read_text(encoding="utf-8"))["extra"]["lingbot_world_api"]
        if name in options.only:
            save(video(walker, options.toy, *PICTURES[name]), file.with_suffix(".jpg"))
            print(file.stem, file.with_suffix(".jpg").stat().st_size, flush=True)


if __name__ == "__main__":
    main()
