"""Names of model files and folders as workflows give them. They may come from a stranger and from another system."""

import re

from ...errors import InputError

_FORBIDDEN = re.compile(r'[<>"|?*\x00-\x1f]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?$", re.IGNORECASE)
_MOST_BYTES, _MOST_CHARACTERS = 255, 1000
"""Of a part, which is what file systems take, and of a whole name."""
_MOST_BYTES_OF_NEW = 240
"""What is not finished is called name.part."""


def parts_of(name: str, what: str, folders: str = "model folders") -> list[str]:
    """The parts of a name below one of ComfyUI's folders, written with either slash. Raises InputError for a name that
    leaves it: an absolute one, one with a drive, `..` or a null byte."""
    parts = re.split(r"[\\/]+", name[: _MOST_CHARACTERS + 1])
    if len(name) > _MOST_CHARACTERS or any(_bytes(part) > _MOST_BYTES for part in parts):
        raise InputError(f"{name[:60]!r}... is too long for the name of a {what}")
    if any(part in ("", ".", "..") or ":" in part or "\0" in part for part in parts):
        raise InputError(f"the {what} {name!r} is not a name inside ComfyUI's {folders}: no drive, no ..")
    return parts


def new_parts(name: str, what: str) -> list[str]:
    """The same for a folder that is to be made: also refuses what Windows cannot store, deep and long names."""
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
