"""The fields of file formats that change the meaning of the rest of a file, and the readers' treatment of them.

Every reader keeps one list of its fields. docs/formats.md is generated from these lists. `text_of` reads small text
files of any format."""

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

Effect = Literal["applied", "refused", "reported", "ignored"]
NAMED_AT_ONCE = 8
LARGEST_TEXT = 64 * 2**20


class Field(NamedTuple):
    """Some fields of a format, by their names in the file, and the reader's treatment.

    `effect` is "applied", "refused", "reported" (the value has no effect, and a note tells the user), or "ignored" for
    a field that cannot change the result. `how` is one sentence for docs/formats.md.
    """

    names: tuple[str, ...]
    effect: Effect
    how: str


class Reported(str):
    """A note on a file that `--quiet` prints too."""


def unread(names: Iterable[str], fields: Sequence[Field]) -> list[str]:
    """Return a note that lists the `names` in a file that no entry of `fields` covers, or an empty list if all are
    covered."""
    known = {name for field in fields for name in field.names}
    strange = sorted({str(name) for name in names} - known)
    if not strange:
        return []
    more = f" and {len(strange) - NAMED_AT_ONCE} more" if len(strange) > NAMED_AT_ONCE else ""
    return [f"Not read, since this reader does not know them: {', '.join(strange[:NAMED_AT_ONCE])}{more}."]


def text_of(path: Path) -> str:
    """Return the text of a UTF-8 file of at most 64 MiB, without a byte order mark; a pipe is read to its end.

    Raises UnicodeDecodeError, and OSError, also for a device, a larger file and a pipe that nobody writes to, because a
    plain read would not end."""
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
