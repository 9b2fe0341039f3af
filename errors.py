"""The exceptions of this package, and imports of modules that may be missing or that wait for their first use.

A message names the file or option, the value found, the value expected, and the remedy. The command exits with code 2
after a LingBotError, and ComfyUI shows the message on the node. A Python name in backticks, such as `action_path`,
becomes a flag in the command, such as --action_path.
"""

import errno
import importlib
import sys
from collections.abc import Callable
from types import ModuleType


class CancelledError(Exception):
    """The exception that ends a run which the calling program has cancelled. It is not a LingBotError, because no input
    is wrong."""


class LingBotError(ValueError):
    """The base class of errors that a user can fix."""


class CheckpointError(LingBotError):
    """The error for a weight file that cannot be used."""


class TextError(LingBotError):
    """The error for a prompt, tokenizer or text encoder that cannot be used."""


class CameraError(LingBotError):
    """The error for poses, intrinsics or timed keys that cannot be used, and for a video if its camera cannot be
    measured."""


class InputError(LingBotError):
    """The error for an image, size, path or option that cannot be used."""


class DependencyError(LingBotError):
    """The error for a missing or broken Python package. The message names the interpreter and the package to
    install."""


def describe_os_error(error: OSError | ValueError) -> str:
    """Return the operating system's message for a file error, or the error's own text without such a message. A remedy
    follows if one is known, such as "make room, or write elsewhere" for a full disk."""
    said = str(getattr(error, "strerror", None) or error)
    if " requested and " in said:  # NumPy's message for a partial write has no error number
        said = "the disk is full; make room, or write elsewhere"
    remedies = {
        errno.ENOSPC: "make room, or write elsewhere",
        errno.EDQUOT: "make room, or write elsewhere",
        errno.EFBIG: "write to a disk that takes files of this size",
        errno.EROFS: "write elsewhere",
        errno.EACCES: "change its permissions, or choose another place",
    }
    remedy = remedies.get(getattr(error, "errno", None) or 0, "")
    return f"{said}; {remedy}" if remedy else said


def require(module: str, package: str = "") -> ModuleType:
    """Import and return `module`. Raises DependencyError if the import fails. Its message names the `package` to
    install with pip, by default `module`.

    A broken installation may raise any exception (a missing shared library: OSError; a mismatched torch: RuntimeError
    or AttributeError), so every exception becomes a DependencyError.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise DependencyError(
            f"{module} cannot be imported by {sys.executable} ({type(error).__name__}: {error}). "
            f'Install it with: "{sys.executable}" -m pip install --upgrade {package or module}'
        ) from error


def on_first_use(package: str, /, **modules: str) -> Callable[[str], object]:
    """Return a function to assign to `__getattr__` in a package's __init__.py. It imports a module of the package when
    one of the module's names is first used.

    package: the package's name.
    modules: for each module the names that it provides, separated by spaces.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{homes[name]}", package), name)

    return get
