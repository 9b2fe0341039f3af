"""Write a drawing to an image file, and check the file's path in advance."""

from pathlib import Path

from PIL import Image

from ...errors import InputError, describe_os_error
from ...outputs import written_whole
from .existing import refuse_existing


def check_drawing(file: str | Path, overwrite: bool, image: str | Path | None = None) -> None:
    """Raise InputError if the drawing `file` cannot be written, is the input `image`, or exists and `overwrite` is
    false."""
    file = Path(file)
    refuse_existing(file, overwrite, image)
    if _image_format(file) not in Image.SAVE:
        raise InputError(f"{file}: the suffix is not that of an image; give it a name such as drawing.png")
    if not file.parent.is_dir():
        raise InputError(f"{file}: cannot be written, there is no folder {file.parent}; make it, or choose another")


def save_drawing(image: Image.Image, file: str | Path) -> None:
    """Write an image in the format of the file's suffix. Raises InputError if the file cannot be written."""
    file = Path(file)
    try:
        with written_whole(file) as (part,):
            image.save(part, _image_format(file))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be written ({describe_os_error(error)})") from error


def _image_format(file: Path) -> str | None:
    return Image.registered_extensions().get(file.suffix.lower())
