"""Checks of the names of files and folders in workflows, which may come from a stranger or another operating system."""

import re

from ...errors import InputError

_FORBIDDEN = re.compile(r'[<>"|?*\x00-\x1f]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?$", re.IGNORECASE)
_MOST_BYTES, _MOST_CHARACTERS = 255, 1000
"""A name is rejected if one part of the path has more than _MOST_BYTES bytes, the limit of common file systems. A name
of more than _MOST_CHARACTERS characters is also rejected."""
_MOST_BYTES_OF_NEW = 240
"""A new folder's name may have at most this many bytes. The limit is below _MOST_BYTES, because an unfinished folder's
name also has the suffix `.part`."""


def parts_of(name: str, what: str, folders: str = "model folders") -> list[str]:
    """Return the parts of the relative path `name`, split at slashes and backslashes. Raises InputError for an absolute
    path, a drive letter, `.`, `..`, an empty part, a null byte, and a name that is too long. `what` and `folders`
    describe the file and its allowed folders in the message."""
    name = str(name)  # a prompt of the API may hold a number or a list
    parts = re.split(r"[\\/]+", name[: _MOST_CHARACTERS + 1])
    if len(name) > _MOST_CHARACTERS or any(_bytes(part) > _MOST_BYTES for part in parts):
        raise InputError(f"{name[:60]!r}... is too long for the name of a {what}")
    if any(part in ("", ".", "..") or ":" in part or "\0" in part for part in parts):
        raise InputError(f"the {what} {name!r} is not a name inside ComfyUI's {folders}: no drive, no ..")
    return parts


def new_parts(name: str, what: str) -> list[str]:
    """Return the parts of the relative path of a new folder, split at slashes and backslashes. `what`
    describes the folder in the message.

    Raises InputError for:
    - a name that `parts_of` rejects, or that Windows cannot store,
    - more than two parts,
    - a part that ends with `.part`, or is longer than _MOST_BYTES_OF_NEW bytes.
    """
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
