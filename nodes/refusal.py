"""Checks that reject a prompt before it runs, and fingerprints of input files."""

from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import LingBotError
from ..host.files.folders import fingerprint


class NamesToCheck(list[str]):
    """The options of a combo for a node that checks the chosen name itself.

    `in` is true for every name, so that ComfyUI adds no message of its own for a name that is not listed."""

    def __contains__(self, name: object) -> bool:
        return True


def refusal(check: Callable[..., object], *arguments) -> bool | str:
    """Return True if `check(*arguments)` passes, else the message of its LingBotError or OSError.

    `check` is not called if an argument is None: a linked node supplies that value later. ComfyUI repeats a message for
    each parameter of `validate_inputs`. So a node's `validate_inputs` has one parameter, and reads its other inputs
    from `host.prompt.queue.known_inputs`."""
    if None in arguments:
        return True
    try:
        check(*arguments)
    except LingBotError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror or error}"
    return True


def fingerprint_of(find: Callable[..., Path | Iterable[Path | None]], *arguments) -> str:
    """Return the fingerprint of the files `find(*arguments)`. Return an empty string if an argument is None, because a
    linked node supplies the value later, and if a file is missing, because `validate_inputs` reports that."""
    if None in arguments:
        return ""
    try:
        found = find(*arguments)
        return fingerprint([found] if isinstance(found, Path) else found)
    except (LingBotError, OSError):
        return ""
