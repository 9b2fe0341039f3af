"""The fields of file formats that change the meaning of the rest of a file, and the readers' treatment of them.

Every reader keeps one list of its fields. docs/formats.md is generated from these lists."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Effect = Literal["applied", "refused", "reported", "ignored"]
NAMED_AT_ONCE = 8


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
