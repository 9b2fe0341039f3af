"""Files that get their names when they are whole: what was there before stays until then."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(*files: Path) -> Iterator[list[Path]]:
    """Gives names to write to. They become `files` when the block has ended well; else they go."""
    parts = [file.with_name(f"{file.name}.part") for file in files]
    try:
        yield parts
        for part, file in zip(parts, files, strict=True):
            os.replace(part, file)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
