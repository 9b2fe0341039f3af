"""The README's contact sheet of the toy: python tools/pictures/draw_toy_demo.py OUT.jpg FOLDER_OF_PNG_FRAMES ...

Five frames of each video, a row each, after `lingbot-world generate --output "FOLDER/*.png"`."""

import sys
from pathlib import Path

from PIL import Image

SHOWN, GAP = (0, 8, 16, 24, 32), 4


def main(out: Path, folders: list[Path]) -> None:
    rows = [[Image.open(sorted(folder.glob("*.png"))[frame]) for frame in SHOWN] for folder in folders]
    width, height = rows[0][0].size
    sheet = Image.new("RGB", ((width + GAP) * len(SHOWN) - GAP, (height + GAP) * len(rows) - GAP), "white")
    for row, frames in enumerate(rows):
        for column, frame in enumerate(frames):
            sheet.paste(frame, (column * (width + GAP), row * (height + GAP)))
    sheet.save(out, quality=88)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
