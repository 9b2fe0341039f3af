"""Validation helpers of nodes: checks that reject a prompt before it runs, and fingerprints by which ComfyUI notices a
changed input file."""

from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import LingBotError
from ..host.files.folders import fingerprint


class NamesToCheck(list[str]):
    """A list of combo options for which `in` is always true.

    ComfyUI therefore accepts names that are not in the list, and the node's own check can reject them with a better
    message.
    """

    def __contains__(self, name: object) -> bool:
        return True


def refusal(check: Callable[..., object], *arguments) -> bool | str:
    """Return True if `check(*arguments)` passes, else the message of its LingBotError or OSError.

    An argument is None if a linked node supplies its value later. In this case return True without calling `check`.

    ComfyUI repeats a message for each parameter of a node's `validate_inputs`. Most nodes therefore have one parameter
    there, and read the other inputs from `host.prompt.queue.known_inputs`.
    """
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
    """Return the fingerprint of the files that `find(*arguments)` returns, by which ComfyUI notices changed files.
    Return "" if it is unknown.

    It is unknown if a file is missing, which `validate_inputs` reports. It is also unknown if an argument is None,
    because a linked node supplies the value later.
    """
    if None in arguments:
        return ""
    try:
        found = find(*arguments)
        return fingerprint([found] if isinstance(found, Path) else found)
    except (LingBotError, OSError):
        return ""
