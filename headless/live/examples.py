"""The start images that the page offers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from ...toy.package import EXAMPLE
from ...toy.scene import PROMPT, landscape
from ..options import GenerateOptions
from .opening import Opened

MOST = 12
"""The number of a package's images that are offered."""


class Example(NamedTuple):
    """A start image and its prompt. `own`: the image that a walk uses if a client names none."""

    name: str
    prompt: str
    own: bool
    data: bytes
    kind: str

    def told(self) -> dict[str, Any]:
        """Return the facts about this example for the page."""
        return {"name": self.name, "prompt": self.prompt, "own": self.own}


def examples(opened: Opened) -> list[Example]:
    """Return the server's start image, then the images in the package's example folder, or a landscape if the folder
    has none."""
    start = opened.start
    pixels = (start.frame.clamp(-1, 1) + 1).mul(127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
    own = Example("the server's own picture", start.prompt, True, _jpeg(Image.fromarray(pixels)), "image/jpeg")
    pictures = _pictures(opened.plan.options)
    if not pictures:
        return [own, Example("a landscape", PROMPT, False, _jpeg(landscape()), "image/jpeg")]
    begun = opened.plan.options.image
    others = [path for path in pictures if not (isinstance(begun, (str, Path)) and path.samefile(begun))]
    return [own, *(_read(path, start.prompt) for path in others[:MOST])]


def _pictures(options: GenerateOptions) -> list[Path]:
    """Return the images in the example folder of the model's package: in the model's folder, or in its parent."""
    model = Path(options.ckpt_dir).absolute()
    folder = next((path / EXAMPLE for path in (model, model.parent) if (path / EXAMPLE).is_dir()), None)
    return [] if folder is None else sorted(path for path in folder.glob("*.png") if path.is_file())


def _read(path: Path, otherwise: str) -> Example:
    """Return an image's unchanged bytes, which a client sends back, with the prompt from the text file of the same
    name."""
    text = path.with_name("prompt.txt") if path.stem == "image" else path.with_suffix(".txt")
    told = text.read_text(encoding="utf-8-sig", errors="replace").strip() if text.is_file() else ""
    return Example(told or path.stem, told or otherwise, False, path.read_bytes(), "image/png")


def _jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92)
    return file.getvalue()
