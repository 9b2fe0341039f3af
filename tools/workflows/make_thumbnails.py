#!/usr/bin/env python3
"""Draw the templates' thumbnails (workflows/*.jpg): a start image, and the workflow's camera path into it.

    python tools/workflows/make_thumbnails.py --examples FOLDER

FOLDER holds the official repository's examples: 00, 01 and 02, each with image.jpg and poses.npy. No frame of a result
is shown, because none was made with the real weights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from lingbot_world.camera.moves import path_from_editor, path_from_keys, preset_path
from lingbot_world.camera.path import CameraPath
from lingbot_world.camera.pose_folder import load_poses
from lingbot_world.camera.preview import render_preview
from lingbot_world.toy.scene import landscape
from PIL import Image, ImageOps

WORKFLOWS = Path(__file__).resolve().parent.parent.parent / "workflows"
SHEET, ANGLE = (1600, 1200), (446, 130, 1090, 878)  # the preview, and its panel "at an angle" without the title
PHOTO, DRAWING = (330, 360), (310, 360)
TOY, NO_PATH = "toy", "no path"


def edited() -> CameraPath:
    """The path that the main workflow's editor holds."""
    workflow = json.loads((WORKFLOWS / "api" / "camera.json").read_text(encoding="utf-8"))
    inputs = (node["inputs"] for node in workflow.values())
    return path_from_editor(next(each["path"] for each in inputs if "path" in each))


def named(name: str) -> Callable[[], CameraPath]:
    return lambda: preset_path(name, frames=81)


PICTURES: dict[str, tuple[str, Callable[[], CameraPath] | str | None]] = {
    "camera": ("00", edited),
    "simple": ("01", edited),
    "moves": ("02", lambda: path_from_keys("w-26,wl-15") + preset_path("crane_up", frames=41)),
    "poses": ("01", None),
    "from_video": ("02", None),
    "views": ("00", named("arc_right")),
    "fast": ("01", named("dolly_in")),
    "fast_long": ("00", named("spiral")),
    "go_on": ("02", named("pan_right")),
    "larger": ("02", named("dolly_in")),
    "first_last": ("01", NO_PATH),
    "lora_four_steps": ("00", named("dolly_in")),
    "easy_cache": ("01", named("arc_right")),
    "own_sampler": ("02", named("truck_right")),
    "core_nodes": ("00", named("orbit_left")),
    "toy": (TOY, named("dolly_in")),
    "fast_lora": ("02", named("arc_left")),
    "real_time": ("00", named("dolly_in")),
    "walk": ("02", named("spiral")),
}
"""A start image and a path for each workflow; None is the path of the image's own example, NO_PATH the image alone."""


def draw(examples: Path, example: str, make: Callable[[], CameraPath] | str | None) -> Image.Image:
    image = landscape() if example == TOY else Image.open(examples / example / "image.jpg").convert("RGB")
    if make == NO_PATH:
        return ImageOps.fit(image, (PHOTO[0] + DRAWING[0], PHOTO[1]))
    path = CameraPath(*load_poses(examples / example))[:81] if make is None else make()
    thumbnail = Image.new("RGB", (PHOTO[0] + DRAWING[0], PHOTO[1]))
    thumbnail.paste(ImageOps.fit(image, PHOTO), (0, 0))
    panel = render_preview(path, image, size=SHEET).crop(ANGLE)
    thumbnail.paste(ImageOps.fit(panel, DRAWING), (PHOTO[0], 0))
    return thumbnail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=Path, required=True)
    examples = parser.parse_args().examples
    for file in sorted(WORKFLOWS.glob("*.json")):
        name = json.loads(file.read_text(encoding="utf-8"))["extra"]["lingbot_world_api"]
        draw(examples, *PICTURES[name]).save(file.with_suffix(".jpg"), quality=82, optimize=True)


if __name__ == "__main__":
    main()
