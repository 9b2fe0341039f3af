"""Packages that are imported when first needed."""

import importlib
import sys
from types import ModuleType

from ..errors import DependencyError


def require(name: str) -> ModuleType:
    """Imports `name`; DependencyError names this interpreter and the command that installs what is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DependencyError(
            f"{name} cannot be imported ({error}); install it with: {sys.executable} -m pip install {name}"
        ) from error
