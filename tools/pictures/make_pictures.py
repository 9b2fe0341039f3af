#!/usr/bin/env python3
"""Take the README's pictures of canvas and editor (docs/images/).

    python tools/pictures/make_pictures.py --server http://127.0.0.1:8188 [--only editor]

Needs node, Chromium and `npm ci` in tests/browser; and, lest nodes are framed in red, a ComfyUI that has the files the
workflows name.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS, IMAGES = ROOT / "workflows", ROOT / "docs" / "images"
VIEW = (1600, 900)
MAIN = next(WORKFLOWS.glob("01 *.json"))


def photograph(server: str, pictures: dict[Path, Path], scale: float) -> None:
    request = json.dumps({str(workflow): str(picture) for workflow, picture in pictures.items()})
    script = ROOT / "tests" / "browser" / "pictures.mjs"
    subprocess.run(["node", script, server, request, *map(str, VIEW), str(scale)], check=True)


def canvas(server: str) -> None:
    target = IMAGES / "workflow.png"
    photograph(server, {MAIN: target}, scale=1.25)
    _squeeze(target)


def editor(server: str) -> None:
    script, target = ROOT / "tests" / "browser" / "node_picture.mjs", IMAGES / "camera-editor.png"
    command = ["node", script, server, MAIN, "LingBotWorldCameraEditor", target]
    subprocess.run(command, check=True)
    _squeeze(target)


def _squeeze(picture: Path) -> None:
    with Image.open(picture) as image:
        image.convert("RGB").save(picture, optimize=True)


PICTURES = {"canvas": canvas, "editor": editor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8188", help="a ComfyUI that has this pack (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    options = parser.parse_args()
    for name in options.only:
        PICTURES[name](options.server.rstrip("/"))


if __name__ == "__main__":
    main()
