"""Descriptions of the fields in file formats, which state how a reader treats each field.

Every reader has one list of fields, and docs/formats.md is generated from these lists. `text_of` reads small text files
of any format.
"""

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from .errors import InputError

Effect = Literal["applied", "refused", "reported", "ignored"]
NAMED_AT_ONCE = 8
LARGEST_TEXT = 64 * 2**20


class Field(NamedTuple):
    """A description of one or more fields of a file format that a reader treats in the same way.

    names: the fields' names in the file.
    effect: "applied", "refused" (an error), "reported" (not used, and a note informs the user), or "ignored" (cannot
    change the result).
    how: a sentence for docs/formats.md.
    """

    names: tuple[str, ...]
    effect: Effect
    how: str


class Reported(str):
    """The text of a note to the user about a file. The command prints such a note even with `--quiet`."""


def unread(names: Iterable[str], fields: Sequence[Field]) -> list[str]:
    """Return a list with one note for the user that names the unknown fields of a file. Without unknown fields the list
    is empty.

    `names`: the fields found in the file. A field is unknown if no item of `fields` describes it.
    """
    known = {name for field in fields for name in field.names}
    strange = sorted({str(name) for name in names} - known)
    if not strange:
        return []
    more = f" and {len(strange) - NAMED_AT_ONCE} more" if len(strange) > NAMED_AT_ONCE else ""
    return [f"Not read, since this reader does not know them: {', '.join(strange[:NAMED_AT_ONCE])}{more}."]


def check_text(name: str, text: str) -> None:
    """Raise InputError if `text` has lone surrogates, which cannot be encoded as UTF-8. Python represents bytes of the
    command line that are not UTF-8 by lone surrogates. `name`: a name for the text, with which the message begins."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text: character {error.start + 1} is {text[error.start]!a}; type it again in a UTF-8 "
            "terminal, or save the file as UTF-8"
        ) from error


def text_of(path: Path) -> str:
    """Return the content of a UTF-8 text file of at most 64 MiB, without a byte order mark. A pipe is read to its end.

    Raises UnicodeDecodeError for other encodings. Raises OSError for a missing or larger file, and for devices and
    pipes without a writer, from which a read would not return.
    """
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
    return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
