"""Detection of start images with other colours in ComfyUI's Load Image than in browsers."""

from collections.abc import Iterator
from pathlib import Path

import folder_paths
import numpy as np
from PIL import Image
from torch import Tensor

from ...errors import InputError
from ...pipeline.images.files import picture_of
from ..files.image import pixels
from ..prompt.queue import UnknownError, running_prompt

GRID = (8, 8)
"""The (rows, columns) into which an image is divided. Two images are compared by the mean colour of each cell."""
TOLERANCE = 8
"""The maximum difference between mean colours that count as equal, in 8-bit values."""


def image_file_warnings(image: Tensor, name: str) -> Iterator[str]:
    """Yield a warning if a browser would show other colours than `image`, the pixels that Load Image has read for the
    running node's input `name`."""
    try:
        prompt, node = running_prompt()
        loader = prompt[prompt[node]["inputs"][name][0]]
        file = Path(folder_paths.get_annotated_filepath(loader["inputs"]["image"]))
        shown = picture_of(file).pixels if loader["class_type"].startswith("LoadImage") else None
    except InputError as error:
        yield f"ComfyUI's Load Image reads colours as they are stored. {error}"
        return
    except (UnknownError, LookupError, TypeError, AttributeError, OSError):  # no file's, or one that Pillow cannot read
        return
    if shown is not None and not _alike(shown, pixels(image[0])):
        yield (
            f"{file.name} has other colours in a browser, and in `lingbot-world generate`: ComfyUI's Load Image does "
            "not apply colour profiles, gamma, bit depth and transparency. Save it as an opaque 8-bit PNG in sRGB."
        )


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    first, second = (np.array(Image.fromarray(each).resize(GRID, Image.Resampling.BOX), int) for each in (one, other))
    return one.shape == other.shape and int(np.abs(first - second).max()) <= TOLERANCE
