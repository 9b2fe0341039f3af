"""Errors that the user can mend. A message names the file or option, what was found, what was expected, what to do.

The command turns them into exit code 2, ComfyUI into an error on the node. An option stands in backticks under its name
in Python, `action_path`; the command shows it as a flag, --action_path."""

import errno
import importlib
import sys
from types import ModuleType


class CancelledError(Exception):
    """A run that its program has ended: no fault, and nothing to mend."""


class LingBotError(ValueError):
    """Input that cannot be used; the family of all errors below."""


class CheckpointError(LingBotError):
    """A weight file that cannot be used."""


class TextError(LingBotError):
    """A prompt, tokenizer or text encoder that cannot be used."""


class CameraError(LingBotError):
    """Poses, intrinsics or a camera script that cannot be used."""


class InputError(LingBotError):
    """An image, size, path or option that cannot be used."""


class DependencyError(LingBotError):
    """A package that is missing or broken; the message names the interpreter and what to install."""


def describe_os_error(error: OSError | ValueError) -> str:
    """Return what the system says of a file, and what to do about it."""
    said = str(getattr(error, "strerror", None) or error)
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
    """Import `module` now. Raises DependencyError naming the interpreter and the `package` to install.

    A broken installation may raise anything (a missing shared library: OSError; a mismatched torch: RuntimeError or
    AttributeError), so every exception counts as "cannot be imported".
    """
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise DependencyError(
            f"{module} cannot be imported by {sys.executable} ({type(error).__name__}: {error}). "
            f'Install it with: "{sys.executable}" -m pip install --upgrade {package or module}'
        ) from error
