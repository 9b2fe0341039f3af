#!/usr/bin/env python3
"""Take the README's pictures of canvas and editor (docs/images/).

    python tools/pictures/make_pictures.py --server http://127.0.0.1:8188

Needs node, Chromium, `npm ci` in tests/browser, and a ComfyUI that has the files of workflow 01."""

import argparse
import json
import subprocess
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent.parent
BROWSER, IMAGES = ROOT / "tests" / "browser", ROOT / "docs" / "images"
VIEW, SCALE = ("1600", "900"), "1.25"
MAIN = str(next((ROOT / "workflows").glob("01 *.json")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8188", help="a ComfyUI that has this pack (%(default)s)")
    server = parser.parse_args().server.rstrip("/")
    canvas, editor = IMAGES / "workflow.png", IMAGES / "camera-editor.png"
    request = json.dumps({MAIN: str(canvas)})
    subprocess.run(["node", BROWSER / "pictures.mjs", server, request, *VIEW, SCALE], check=True)
    subprocess.run(["node", BROWSER / "node_picture.mjs", server, MAIN, "LingBotWorldCameraEditor", editor], check=True)
    for picture in (canvas, editor):
        with Image.open(picture) as image:
            image.convert("RGB").save(picture, optimize=True)


if __name__ == "__main__":
    main()
