"""The file of a drawing, which is checked before anything is measured or drawn."""

from pathlib import Path

from PIL import Image

from ...errors import InputError, describe_os_error
from ...outputs import written_whole
from .existing import refuse_existing


def check_drawing(file: str | Path, overwrite: bool, image: str | Path | None = None) -> None:
    """Raises InputError where no picture can be written to `file`, or where it would take the place of the `image` that
    is read, or, unless it may `overwrite`, of any other file."""
    file = Path(file)
    refuse_existing(file, overwrite, image)
    if _kind(file) not in Image.SAVE:
        raise InputError(f"{file}: cannot be written as a picture; give it a name such as drawing.png")
    if not file.parent.is_dir():
        raise InputError(f"{file}: cannot be written, there is no folder {file.parent}; make it, or choose another")


def save_drawing(picture: Image.Image, file: str | Path) -> None:
    """Writes a picture in the format that the file's name says. Raises InputError."""
    file = Path(file)
    try:
        with written_whole(file) as (part,):
            picture.save(part, _kind(file))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be written ({describe_os_error(error)})") from error


def _kind(file: Path) -> str | None:
    """Pillow's name of the format that a file's suffix says."""
    return Image.registered_extensions().get(file.suffix.lower())
