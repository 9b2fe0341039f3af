"""Checks of the names of files and folders in workflows, which may come from a stranger and from another system."""

import re

from ...errors import InputError

_FORBIDDEN = re.compile(r'[<>"|?*\x00-\x1f]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?$", re.IGNORECASE)
_MOST_BYTES, _MOST_CHARACTERS = 255, 1000
"""The limits of a part in bytes, which file systems set, and of a whole name in characters."""
_MOST_BYTES_OF_NEW = 240
"""The limit in bytes of a new folder's name, which leaves room for the suffix `.part` of an unfinished folder."""


def parts_of(name: str, what: str, folders: str = "model folders") -> list[str]:
    """Return the parts of a relative path, which either kind of slash separates. Raises InputError for an absolute
    path, a drive, `..`, a null byte and a long name; its message uses `what` and `folders`."""
    parts = re.split(r"[\\/]+", name[: _MOST_CHARACTERS + 1])
    if len(name) > _MOST_CHARACTERS or any(_bytes(part) > _MOST_BYTES for part in parts):
        raise InputError(f"{name[:60]!r}... is too long for the name of a {what}")
    if any(part in ("", ".", "..") or ":" in part or "\0" in part for part in parts):
        raise InputError(f"the {what} {name!r} is not a name inside ComfyUI's {folders}: no drive, no ..")
    return parts


def new_parts(name: str, what: str) -> list[str]:
    """Return the parts of a new folder's relative path. Raises InputError as `parts_of` does, and for more than two
    parts and for names that Windows cannot store."""
    parts = parts_of(name, what)
    if len(parts) > 2:
        raise InputError(f"`name` {name!r}: at most two folders, as in my-package or my-package/lingbot_world_fast")
    for part in parts:
        if _FORBIDDEN.search(part) or _RESERVED.match(part) or part != part.strip() or part.endswith((".", ".part")):
            raise InputError(
                f"`name` {name!r}: {part!r} cannot be a folder's name on every system; choose letters, "
                "digits, spaces, - and _"
            )
        if _bytes(part) > _MOST_BYTES_OF_NEW:
            raise InputError(f"`name` {part[:40]!r}... is too long, at most {_MOST_BYTES_OF_NEW} bytes are possible")
    return parts


def _bytes(part: str) -> int:
    return len(part.encode("utf-8", "surrogatepass"))
