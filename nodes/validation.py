"""Checks of a node's inputs before it runs, and fingerprints by which ComfyUI notices changed files."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import signature
from pathlib import Path

from comfy_api.latest import io

from ..errors import InputError, LingBotError
from ..host.files.search import fingerprint
from ..host.prompt.queue import UnknownError


class NamesToCheck(list[str]):
    """A list of combo options for which `in` is always true. ComfyUI's check accepts every name, so the node's check
    reports unknown names instead."""

    def __contains__(self, name: object) -> bool:
        return True


def validate(check: Callable[..., object], *arguments) -> bool | str:
    """Return True if `check(*arguments)` passes, or if an argument is None because it is linked. Otherwise return the
    error's message."""
    # ComfyUI repeats the message for each parameter of `validate_inputs`: take one, and the others by `known_inputs`.
    if None in arguments:
        return True
    try:
        check(*arguments)
    except UnknownError:
        return True
    except LingBotError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror or error}"
    return True


def fingerprint_of(find: Callable[..., Path | Iterable[Path | None]], *arguments) -> str:
    """Return a fingerprint of the files at `find(*arguments)`, or "" if a file is missing or an argument is None."""
    if None in arguments:
        return ""
    try:
        found = find(*arguments)
        return fingerprint([found] if isinstance(found, Path) else found)
    except (LingBotError, OSError):
        return ""


def refuse_empty_inputs(node: type[io.ComfyNode]) -> type[io.ComfyNode]:
    """Change a node class so that `execute` raises InputError for an input of None, unless None is the default."""
    execute = node.execute.__func__  # type: ignore[attr-defined]
    _, *parameters = signature(execute).parameters.values()  # the first is the class
    may_be_empty = {each.name for each in parameters if each.default is None}

    @wraps(execute)
    def checked(cls, *values, **named):
        inputs = {**{each.name: value for each, value in zip(parameters, values, strict=False)}, **named}
        check_given({name: value for name, value in inputs.items() if name not in may_be_empty})
        return execute(cls, *values, **named)

    node.execute = classmethod(checked)  # type: ignore[assignment]
    return node


def check_given(inputs: Mapping[str, object]) -> None:
    """Raise InputError if one of a node's inputs is None, as from a switch node without an active input."""
    for name, value in inputs.items():
        if value is None:
            raise InputError(
                f"{name} is empty: the node connected to it has returned nothing, as a switch without an active input "
                "does; connect another node, or enter a value"
            )
