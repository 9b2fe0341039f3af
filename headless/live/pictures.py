"""The images in which a walk can begin: those that the page offers, and those that clients send."""

from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from ...errors import InputError
from ...pipeline.images.colours import HEAD
from ...pipeline.images.files import read_opened
from ...toy.package import EXAMPLE
from ...toy.scene import PROMPT, landscape
from ..files.pictures import BROKEN, reason
from .opening import LoadedModel

MAX_EXAMPLES = 12
"""The maximum number of a package's example images that the page offers."""
MAX_PIXELS = 50_000_000
READ = ("PNG", "JPEG", "WEBP")


class Example(NamedTuple):
    """A start image that the page offers, with its prompt.

    name: a caption, such as the prompt or the file's name.
    is_default: whether the server starts walks from this image by default.
    kind: the media type of `data`, such as image/png.
    """

    name: str
    prompt: str
    is_default: bool
    data: bytes
    kind: str

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "prompt": self.prompt, "own": self.is_default}


def examples(loaded: LoadedModel) -> list[Example]:
    """Return the start images that the page offers: the server's, then the package's examples, or a drawn landscape if
    the package has none."""
    start = loaded.start
    pixels = (start.frame.clamp(-1, 1) + 1).mul(127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
    own = Example("the server's own picture", start.prompt, True, _jpeg(Image.fromarray(pixels)), "image/jpeg")
    model, image = Path(loaded.plan.options.ckpt_dir).absolute(), loaded.plan.options.image
    folder = next((path / EXAMPLE for path in (model, model.parent) if (path / EXAMPLE).is_dir()), None)
    images = [] if folder is None else sorted(path for path in folder.glob("*.png") if path.is_file())
    if not images:
        return [own, Example("a landscape", PROMPT, False, _jpeg(landscape()), "image/jpeg")]
    others = [path for path in images if not (isinstance(image, (str, Path)) and path.samefile(image))]
    return [own, *(_read(path, start.prompt) for path in others[:MAX_EXAMPLES])]


def _read(path: Path, otherwise: str) -> Example:
    """Return a start image for the page: the PNG file `path` with a prompt. The prompt comes from the text file next to
    the PNG file, or is `otherwise` if there is no text."""
    text = path.with_name("prompt.txt") if path.stem == "image" else path.with_suffix(".txt")
    prompt = text.read_text(encoding="utf-8-sig", errors="replace").strip() if text.is_file() else ""
    return Example(prompt or path.stem, prompt or otherwise, False, path.read_bytes(), "image/png")


def _jpeg(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "JPEG", quality=92)
    return file.getvalue()


def read_upload(data: bytes, size: tuple[int, int], *, crop: bool) -> np.ndarray:
    """Decode the bytes of a PNG, JPEG or WebP file to pixels, uint8 [H, W, 3], without resizing. If `crop` is set, crop
    the center to the aspect ratio of `size` (height, width). Otherwise ignore `size`. Raises InputError for other
    files."""
    try:
        with Image.open(BytesIO(data), formats=READ) as image:
            if image.width * image.height > MAX_PIXELS:
                raise InputError(f"the image has {image.width}x{image.height} pixels; scale it down")
            picture = Image.fromarray(read_opened(image, data[:HEAD]).pixels)
    except (*BROKEN, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        why = "" if isinstance(error, UnidentifiedImageError) else f" ({reason(error)})"
        raise InputError(f"not an image that can be read{why}; PNG, JPEG and WebP are") from error
    if crop:
        height, width = size
        share = min(picture.width / width, picture.height / height)
        across, down = (max(1, round(side * share)) for side in (width, height))
        left, top = (picture.width - across) // 2, (picture.height - down) // 2
        picture = picture.crop((left, top, left + across, top + down))
    return np.array(picture)


def upload_notes(data: bytes) -> tuple[str, ...]:
    """Return notes on how an uploaded image is read, such as its transparency. `data`: the file's content."""
    with Image.open(BytesIO(data), formats=READ) as image:
        return read_opened(image, data[:HEAD]).notes
