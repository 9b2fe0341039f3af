"""Packages that are imported when first needed, and what to say when they cannot be."""

import importlib
import logging
import sys
from functools import cache
from types import ModuleType

import torch

from ..errors import DependencyError

log = logging.getLogger(__name__)


def require(module: str, package: str) -> ModuleType:
    """Import `module` now. Raises DependencyError naming the interpreter and what to install.

    A broken installation may raise anything (a missing shared library: OSError; a mismatched torch: RuntimeError or
    AttributeError), so every exception counts as "cannot be imported".
    """
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise DependencyError(
            f"{module} cannot be imported by {sys.executable} ({type(error).__name__}: {error}). "
            f'Install it with: "{sys.executable}" -m pip install --upgrade {package}'
        ) from error


@cache
def bitsandbytes_functional() -> ModuleType | None:
    """bitsandbytes.functional, or None (logged once) where it is missing or lacks its library for this CUDA."""
    # On CPUs with AVX512-BF16 it warns about an optional package that nothing here uses.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        functional = require("bitsandbytes.functional", "bitsandbytes")
        library = importlib.import_module("bitsandbytes.cextension").lib
    except DependencyError as error:
        log.warning("4-bit weights are decoded in plain torch: %s", error)
        return None
    # A library that failed to load is a stand-in that answers every attribute, hence `is True`.
    if torch.cuda.is_available() and library.compiled_with_cuda is not True:
        cuda = torch.version.cuda
        log.warning("4-bit weights are decoded in plain torch: bitsandbytes has no library for CUDA %s", cuda)
        return None
    return functional
