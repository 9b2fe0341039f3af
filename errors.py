"""The exceptions of this package. The user can fix the cause of all except CancelledError.

A message names the file or option, the value found, the value expected, and the remedy. The command exits with code 2
after a LingBotError, and ComfyUI shows the message on the node. An option has its Python name in backticks, such as
`action_path`. The command shows it as a flag, such as --action_path.
"""

import errno
import importlib
import sys
from types import ModuleType


class CancelledError(Exception):
    """The error that ends a run after the calling program has cancelled it. It is not a fault."""


class LingBotError(ValueError):
    """The base class of the errors whose cause a user can fix."""


class CheckpointError(LingBotError):
    """The error for a weight file that cannot be used."""


class TextError(LingBotError):
    """The error for a prompt, tokenizer or text encoder that cannot be used."""


class CameraError(LingBotError):
    """The error for poses, intrinsics or a script of held camera keys that cannot be used. Also the error for the size
    of a chart, and for a video that cannot be measured."""


class InputError(LingBotError):
    """The error for an image, size, path or option that cannot be used."""


class DependencyError(LingBotError):
    """The error for a missing or broken Python package. The message names the Python interpreter and the package to
    install."""


def describe_os_error(error: OSError | ValueError) -> str:
    """Return a message about a file error, followed by a remedy if one is known.

    The message is the operating system's, or else the error's own text. NumPy's message for a partial write is replaced
    by a message about a full disk.
    """
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
    """Import and return `module`. Raises DependencyError if the import fails; its message names the Python interpreter
    and the `package` to install.

    A broken installation may raise any exception at import (a missing shared library: OSError; a mismatched torch:
    RuntimeError or AttributeError). So every exception is converted.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise DependencyError(
            f"{module} cannot be imported by {sys.executable} ({type(error).__name__}: {error}). "
            f'Install it with: "{sys.executable}" -m pip install --upgrade {package or module}'
        ) from error
