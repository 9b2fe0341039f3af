"""Validation helpers of nodes: checks that reject a prompt before it runs, and fingerprints by which ComfyUI notices a
changed input file."""

from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import LingBotError
from ..host.files.folders import fingerprint


class NamesToCheck(list[str]):
    """A list of combo options that contains every name (`in` is always true).

    With it ComfyUI reports no unlisted name itself, so the node's own check can report it with a better message.
    """

    def __contains__(self, name: object) -> bool:
        return True


def refusal(check: Callable[..., object], *arguments) -> bool | str:
    """Return True if `check(*arguments)` passes, else the message of its LingBotError or OSError.

    If an argument is None, its value comes from a linked node later, so `check` is not called. ComfyUI repeats a
    message for each parameter of a node's `validate_inputs`. So that method has only one parameter and reads the other
    inputs from `host.prompt.queue.known_inputs`.
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
    """Return the fingerprint of the files that `find(*arguments)` returns. Return an empty string if a file is missing,
    because `validate_inputs` reports that, or if an argument is None, because a linked node supplies it later."""
    if None in arguments:
        return ""
    try:
        found = find(*arguments)
        return fingerprint([found] if isinstance(found, Path) else found)
    except (LingBotError, OSError):
        return ""
