"""The check that a run does not overwrite an existing file; needs no torch."""

from pathlib import Path

from ...errors import InputError


def refuse_existing(file: Path, overwrite: bool, image: str | Path | None = None) -> None:
    """Raise InputError if `file` is a folder or the input `image`, or if `file` exists and `overwrite` is false."""
    if not file.exists():
        return
    if file.is_dir():
        raise InputError(f"{file} is a folder; name a file in it")
    if image is not None and Path(image).exists() and file.samefile(image):
        raise InputError(f"{file} is the `image`, which would be replaced; write elsewhere")
    if not overwrite:
        raise InputError(f"{file} exists already; write elsewhere, or give `overwrite` to replace it")
