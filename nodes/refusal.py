"""Rejection of a prompt before it runs."""

from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import LingBotError
from ..host.files.folders import fingerprint


class NamesToCheck(list[str]):
    """The names that a combo offers. Every name counts as `in` the list, so that ComfyUI adds no message of its own.

    The node's own check decides which other names are valid, and reports the reason for the rest."""

    def __contains__(self, name: object) -> bool:
        return True


def refusal(check: Callable[..., object], *arguments) -> bool | str:
    """Return True, or the message of the LingBotError that `check(*arguments)` raises, or of a file that cannot be
    read.

    An argument of None comes from another node and is not known yet, so `check` is not called. ComfyUI repeats the
    message for each input that `validate_inputs` names. So `validate_inputs` names one, and reads the others from
    `host.prompt.queue.known_inputs`."""
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
    """Return the fingerprint of the files that `find(*arguments)` returns, or an empty string if these are unknown.

    ComfyUI asks every node of a prompt for its fingerprint, also the nodes that a run leaves out, and logs an error as
    a warning. `validate_inputs` reports a missing file of a node that would run. An argument of None comes from another
    node."""
    if None in arguments:
        return ""
    try:
        found = find(*arguments)
        return fingerprint([found] if isinstance(found, Path) else found)
    except (LingBotError, OSError):
        return ""
