"""Descriptions of the fields in file formats, and reading of small text files."""

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from .errors import InputError, describe_os_error

Effect = Literal["applied", "refused", "reported", "ignored"]
NAMED_AT_ONCE = 8
LARGEST_TEXT = 64 * 2**20


class Field(NamedTuple):
    """How a reader of a file format treats the fields in `names`.

    effect: applied, refused (an error), reported (unused, with a note to the user) or ignored.
    how: a sentence about these fields for docs/formats.md.
    """

    names: tuple[str, ...]
    effect: Effect
    how: str


class Reported(str):
    """A note to the user about a file, which the command prints even with `--quiet`."""


def notes_on_unknown(names: Iterable[str], fields: Sequence[Field]) -> list[str]:
    """Compare a file's field `names` with the known `fields`. Return a list with one note about the unknown names, or
    an empty list if all are known."""
    known = {name for field in fields for name in field.names}
    strange = sorted({str(name) for name in names} - known)
    if not strange:
        return []
    more = f" and {len(strange) - NAMED_AT_ONCE} more" if len(strange) > NAMED_AT_ONCE else ""
    return [f"Not read, since this reader does not know them: {', '.join(strange[:NAMED_AT_ONCE])}{more}."]


def check_text(name: str, text: str) -> None:
    """Raise InputError if `text` has a lone surrogate, which stands for a byte that is not UTF-8. `name` begins the
    message."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text: character {error.start + 1} is {text[error.start]!a}; type it again in a UTF-8 "
            "terminal, or save the file as UTF-8"
        ) from error


def text_of(path: Path, name: str = "") -> str:
    """Return a small UTF-8 file's content without a byte order mark, with LF line ends. Raises InputError for an
    unreadable file; `name` or the path begins the message."""
    try:
        return _bytes_of(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        reason = describe_os_error(error)
        raise InputError(f"{name or path}: cannot be read ({reason}); name a text file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name or path}: not UTF-8 text ({error}); save it as UTF-8") from error


def _bytes_of(path: Path) -> bytes:
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a name with a NUL character", str(path))
    kind = path.stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or stat.S_ISDIR(kind)):
        raise OSError(errno.EINVAL, "a device, expected a file", str(path))
    with open(path, "rb", opener=_without_waiting) as file:
        waits = stat.S_ISFIFO(kind)
        first = file.read(1) if waits else b""
        if waits and first == b"":
            raise OSError(errno.EPIPE, "a pipe that nobody writes to; start the writer first", str(path))
        if waits:
            os.set_blocking(file.fileno(), True)
        data = (first or b"") + file.read(LARGEST_TEXT)
        if len(data) >= LARGEST_TEXT:
            raise OSError(errno.EFBIG, f"more than {LARGEST_TEXT >> 20} MiB, expected a small text file", str(path))
    return data


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
