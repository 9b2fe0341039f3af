"""Draws the loss curves of a training of the toy: python scripts/draw_losses.py FOLDER_WITH_LOGS OUT.png"""

import json
import math
import sys
from pathlib import Path

from PIL import Image, ImageDraw

SIZE, EDGE = (720, 300), 40
COLOURS = {"vae": (190, 90, 40), "high": (40, 90, 190), "low": (40, 150, 80)}
LOWEST, HIGHEST = 0.03, 3.0


def main(folder: Path, out: Path) -> None:
    lines = [json.loads(line) for path in sorted(folder.glob("log*.jsonl")) for line in path.read_text().splitlines()]
    points = [(line["phase"], line["seconds"], line["loss"]) for line in lines if "loss" in line]
    end = max(seconds for _, seconds, _ in points)
    image = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(image)
    for value in (0.03, 0.1, 0.3, 1.0, 3.0):
        draw.line([(EDGE, _row(value)), (SIZE[0] - 8, _row(value))], fill=(220, 220, 220))
        draw.text((4, _row(value) - 6), str(value), fill="black")
    for number, (phase, colour) in enumerate(COLOURS.items()):
        track = [(EDGE + seconds / end * (SIZE[0] - EDGE - 8), _row(loss)) for name, seconds, loss in points
                 if name == phase]  # fmt: skip
        draw.line(track, fill=colour, width=2)
        draw.text((SIZE[0] - 220, 10 + 14 * number), f"{phase}: {len(track)} points", fill=colour)
    draw.text((SIZE[0] // 2 - 60, SIZE[1] - 16), f"seconds, 0 to {end:.0f}", fill="black")
    image.save(out, optimize=True)


def _row(loss: float) -> float:
    share = math.log(max(loss, LOWEST) / LOWEST) / math.log(HIGHEST / LOWEST)
    return SIZE[1] - 30 - share * (SIZE[1] - 45)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
