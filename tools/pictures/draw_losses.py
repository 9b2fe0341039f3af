"""Draws the loss curves of a training of the toy: python tools/pictures/draw_losses.py FOLDER_WITH_LOGS OUT.png"""

import json
import math
import sys
from pathlib import Path

from PIL import Image, ImageDraw

SIZE, EDGE = (720, 300), 40
COLOURS = {"vae": (190, 90, 40), "high": (40, 90, 190), "low": (40, 150, 80)}
GRID = (0.03, 0.1, 0.3, 1.0, 3.0)


def main(folder: Path, out: Path) -> None:
    lines = [json.loads(line) for path in sorted(folder.glob("log*.jsonl")) for line in path.read_text().splitlines()]
    points = [(line["phase"], line["seconds"], line["loss"]) for line in lines if "loss" in line]
    end = max(seconds for _, seconds, _ in points)
    largest = max(loss for *_, loss in points)
    grid = [value for value in GRID if value == GRID[0] or value / 3.5 < largest]
    image = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(image)
    for value in grid:
        draw.line([(EDGE, _row(value, grid)), (SIZE[0] - 8, _row(value, grid))], fill=(220, 220, 220))
        draw.text((4, _row(value, grid) - 6), str(value), fill="black")
    trained = {phase for phase, *_ in points}
    for number, (phase, colour) in enumerate((phase, COLOURS[phase]) for phase in COLOURS if phase in trained):
        track = [
            (EDGE + seconds / end * (SIZE[0] - EDGE - 8), _row(loss, grid))
            for name, seconds, loss in points
            if name == phase
        ]
        draw.line(track, fill=colour, width=2)
        draw.text((SIZE[0] - 220, 10 + 14 * number), f"{phase}: {len(track)} points", fill=colour)
    draw.text((SIZE[0] // 2 - 60, SIZE[1] - 16), f"seconds, 0 to {end:.0f}", fill="black")
    image.save(out, optimize=True)


def _row(loss: float, grid: list[float]) -> float:
    share = math.log(max(loss, grid[0]) / grid[0]) / math.log(grid[-1] / grid[0])
    return SIZE[1] - 30 - share * (SIZE[1] - 45)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
