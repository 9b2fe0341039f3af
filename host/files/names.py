"""Checks of file and folder names in untrusted workflows and in workflows from other operating systems."""

import re

from ...errors import InputError

_FORBIDDEN = re.compile(r'[<>"|?*\x00-\x1f]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?$", re.IGNORECASE)
_MAX_PART_BYTES = 255
"""The maximum length of one part of a path, in bytes. It is the limit of common file systems."""
_MAX_CHARACTERS = 1000
"""The maximum length of a whole path, in characters."""
_MAX_NEW_BYTES = 240
"""The maximum length of a new folder's name, in bytes. It leaves room for the suffix `.part`."""


def split_path(name: str, label: str, folders: str = "model folders") -> list[str]:
    """Return the parts of a relative path, split at slashes and backslashes. Raise InputError if the path is absolute,
    too long, or leads out of its folder. The message names `label` and `folders`."""
    name = str(name)  # a prompt of the API may hold a number or a list
    parts = re.split(r"[\\/]+", name[: _MAX_CHARACTERS + 1])
    if len(name) > _MAX_CHARACTERS or any(_bytes(part) > _MAX_PART_BYTES for part in parts):
        raise InputError(f"{name[:60]!r}... is too long for the name of a {label}")
    if any(part in ("", ".", "..") or ":" in part or "\0" in part for part in parts):
        raise InputError(f"the {label} {name!r} is not a name inside ComfyUI's {folders}: no drive, no ..")
    return parts


def new_parts(name: str, label: str) -> list[str]:
    """Split `name`, a new model folder's path, into one or two folder names. Raise InputError for a longer path or a
    name that is invalid on Windows, Linux or macOS. `label` is the path's description in errors."""
    parts = split_path(name, label)
    if len(parts) > 2:
        raise InputError(f"`name` {name!r}: at most two folders, as in my-package or my-package/lingbot_world_fast")
    for part in parts:
        if _FORBIDDEN.search(part) or _RESERVED.match(part) or part != part.strip() or part.endswith((".", ".part")):
            raise InputError(
                f"`name` {name!r}: {part!r} cannot be a folder's name on every system; choose letters, "
                "digits, spaces, - and _"
            )
        if _bytes(part) > _MAX_NEW_BYTES:
            raise InputError(f"`name` {part[:40]!r}... is too long, at most {_MAX_NEW_BYTES} bytes are possible")
    return parts


def _bytes(part: str) -> int:
    return len(part.encode("utf-8", "surrogatepass"))
