"""The errors that a user can fix. A message names the file or option, the value found, the value expected, and the
remedy.

The command turns them into exit code 2, ComfyUI into an error on the node. An option is written in backticks with its
Python name, `action_path`; the command shows it as a flag, --action_path."""

import errno
import importlib
import sys
from types import ModuleType


class CancelledError(Exception):
    """A run that the calling program has cancelled; not a fault."""


class LingBotError(ValueError):
    """An input that cannot be used; the base class of all errors below."""


class CheckpointError(LingBotError):
    """A weight file that cannot be used."""


class TextError(LingBotError):
    """A prompt, tokenizer or text encoder that cannot be used."""


class CameraError(LingBotError):
    """Poses, intrinsics or a camera script that cannot be used."""


class InputError(LingBotError):
    """An image, size, path or option that cannot be used."""


class DependencyError(LingBotError):
    """A package is missing or broken; the message names the interpreter and the package to install."""


def describe_os_error(error: OSError | ValueError) -> str:
    """Return the system's message for a file error, followed by a remedy."""
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
