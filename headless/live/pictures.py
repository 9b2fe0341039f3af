"""Reading of images that clients send, with limits on formats and sizes."""

from io import BytesIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from ...errors import InputError
from ...pipeline.colours import HEAD
from ...pipeline.image_files import pixels_of, read_pixels
from ..files.pictures import BROKEN, reason

MOST_PIXELS = 50_000_000
READ = ("PNG", "JPEG", "WEBP")


def read_upload(data: bytes, size: tuple[int, int], *, crop: bool) -> np.ndarray:
    """Return the pixels, uint8 [H, W, 3], of the PNG, JPEG or WebP file in `data`. `crop`: whether to crop around the
    centre to the aspect ratio of `size` (height, width). Raises InputError for other formats and more than MOST_PIXELS
    pixels."""
    try:
        with Image.open(BytesIO(data), formats=READ) as image:
            if image.width * image.height > MOST_PIXELS:
                raise InputError(f"the image has {image.width}x{image.height} pixels; scale it down")
            picture = Image.fromarray(read_pixels(image, data[:HEAD]).pixels)
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
    """Return notes for the user on applied or ignored metadata, such as transparency, of a file for `read_upload`."""
    with Image.open(BytesIO(data), formats=READ) as image:
        return pixels_of(image, data[:HEAD]).notes
