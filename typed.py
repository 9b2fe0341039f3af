"""Checks of argument types in public functions."""

import types
from collections.abc import Callable
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    bool: "True or False",
    type(None): "None",
}
_LIKE = {int: Integral, float: Real, Path: PathLike, Literal: str}
"""The class that `isinstance` checks for an annotation. A Literal accepts any text, not only its alternatives."""


def check_types(values: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise InputError if a value does not match its annotation in `wanted`. The keys of both are argument names."""
    for name, value in values.items():
        if name in wanted and not _fits(value, wanted[name]):
            raise InputError(f"`{name}` {value!r:.60}: expected {_words(wanted[name])}, found {type(value).__name__}")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that a call raises InputError for an argument of a wrong type."""
    shape = signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check_types(shape.bind(*args, **kwargs).arguments, get_type_hints(function))
        return function(*args, **kwargs)

    return call


def _fits(value: Any, wanted: Any) -> bool:
    kind = get_origin(wanted) or wanted
    if kind in (Union, types.UnionType):
        return any(_fits(value, other) for other in get_args(wanted))
    if kind is tuple:
        return isinstance(value, tuple | list) and all(_fits(each, _item(wanted)) for each in value)
    if kind in (int, float) and isinstance(value, bool):
        return False
    kind = _LIKE.get(kind, kind)
    try:
        return not isinstance(kind, type) or isinstance(value, kind)
    except TypeError:  # a protocol, which only type checkers can check
        return True


def _item(wanted: Any) -> Any:
    """Return the union of a tuple annotation's item types, such as int | str for tuple[int, str]."""
    return Union[tuple(each for each in get_args(wanted) if each is not ...)]  # noqa: UP007


def _words(wanted: Any) -> str:
    kind = get_origin(wanted) or wanted
    if kind in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_words, get_args(wanted))))
    if kind is Literal:
        return _WORDS[str]
    if kind is tuple:
        return f"a tuple of {_words(_item(wanted))}"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))
