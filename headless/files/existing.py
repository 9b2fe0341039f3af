"""What is there already is not replaced without a word. This imports no torch."""

from pathlib import Path

from ...errors import InputError


def refuse_existing(file: Path, overwrite: bool, image: str | Path | None = None) -> None:
    """Raises InputError where writing `file` would replace the `image` that is read, or, unless it may
    `overwrite`, anything else."""
    if not file.exists():
        return
    if image is not None and Path(image).exists() and file.samefile(image):
        raise InputError(f"{file} is the `image`, which would be replaced; write elsewhere")
    if not overwrite:
        raise InputError(f"{file} exists already; write elsewhere, or give `overwrite` to replace it")
