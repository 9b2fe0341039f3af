"""The package's exceptions, and optional and lazy imports."""

import errno
import importlib
import sys
from collections.abc import Callable
from types import ModuleType


class CancelledError(Exception):
    """The exception that ends a run which the calling program has cancelled."""


class LingBotError(ValueError):
    """The base class of errors that a user can fix. Messages quote parameter names in backticks; the command prints
    `ckpt` as --ckpt."""


class CheckpointError(LingBotError):
    """The error for a weight file that cannot be used."""


class TextError(LingBotError):
    """The error for a prompt, tokenizer or text encoder that cannot be used."""


class CameraError(LingBotError):
    """The error for a camera path that cannot be used, or a video's camera that cannot be measured."""


class InputError(LingBotError):
    """The error for an image, size, path or option that cannot be used."""


class DependencyError(LingBotError):
    """The error for a missing or broken Python package."""


def describe_os_error(error: OSError | ValueError) -> str:
    """Return the operating system's message for a file error, or the error's text, with a remedy if one is known."""
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
    """Import and return a module. If the import fails for any reason, raise DependencyError, which names the `package`
    to install; "": the module's name."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise DependencyError(
            f"{module} cannot be imported by {sys.executable} ({type(error).__name__}: {error}). "
            f'Install it with: "{sys.executable}" -m pip install --upgrade {package or module}'
        ) from error


def on_first_use(package: str, /, **modules: str) -> Callable[[str], object]:
    """Return a package's `__getattr__`, which imports a module on the first use of its names. `modules` maps each
    module to its names, separated by spaces."""
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{homes[name]}", package), name)

    return get
