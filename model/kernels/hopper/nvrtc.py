"""CUDA kernels, compiled by torch's copy of NVRTC and launched by the CUDA driver on torch's current stream."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

DYNAMIC_SHARED_BYTES = 8
"""The id in cuda.h, not a size, of the function attribute CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_COMPILING = Lock()
Argument = Tensor | int | ctypes.Array[Any] | None
"""A kernel's argument: a tensor's address, an int or struct by value, or None as a null pointer."""


class Launch(NamedTuple):
    """The size of a launch: thread blocks in two dimensions, threads of a block, and bytes of dynamic shared memory."""

    blocks: tuple[int, int]
    threads: int
    shared: int = 0


class CudaKernel:
    """A kernel function in a compiled CUDA module, on one device."""

    def __init__(self, module: ctypes.c_void_p, name: str, shared: int = 0) -> None:
        """Look up the function `name`. `shared` is the maximum dynamic shared memory of a launch, in bytes. Raise
        RuntimeError if the driver fails."""
        self._function = ctypes.c_void_p()
        check(
            libcuda().cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()),
            "cuModuleGetFunction",
        )
        check(libcuda().cuFuncSetAttribute(self._function, DYNAMIC_SHARED_BYTES, shared), "cuFuncSetAttribute")

    def __call__(self, launch: Launch, *arguments: Argument) -> None:
        """Launch the kernel on torch's current stream. The current device must be the kernel's. Raise RuntimeError if
        the driver fails."""
        values = [_value(each) for each in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(
            libcuda().cuLaunchKernel(
                self._function, *launch.blocks, 1, launch.threads, 1, 1, launch.shared, stream, pointers, None
            ),
            "cuLaunchKernel",
        )


def _value(argument: Argument) -> Any:
    if isinstance(argument, int):
        return ctypes.c_int(argument)
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p(None if argument is None else argument.data_ptr())
    return argument


def check(result: int, what: str) -> None:
    """Raise RuntimeError, naming the called function `what`, if a status code is not 0."""
    if result:
        raise RuntimeError(f"{what}: error {result}")


@lru_cache
def libcuda() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def load(source: str, architecture: str) -> ctypes.c_void_p:
    """Compile CUDA source code for an architecture such as "sm_90a", and return it as a module on the current device.
    Raise RuntimeError or OSError if that fails."""
    torch.cuda.current_stream().synchronize()  # torch creates the device's context
    module = ctypes.c_void_p()
    check(libcuda().cuModuleLoadData(ctypes.byref(module), compiled(source, architecture)), "cuModuleLoadData")
    return module


def compiled(source: str, architecture: str) -> bytes:
    """Return the machine code of a CUDA source, without a GPU. Raise RuntimeError with the compiler's log, or OSError
    if NVRTC is missing."""
    with _COMPILING:
        return _compiled(source, architecture)


@lru_cache
def _compiled(source: str, architecture: str) -> bytes:
    library, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None), "NVRTC")
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"-use_fast_math", b"--std=c++17"]
        failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if failed:
            raise RuntimeError(f"NVRTC does not compile the kernel: {_text(library, program)[:2000]}")
        check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
        code = ctypes.create_string_buffer(size.value)
        check(library.nvrtcGetCUBIN(program, code), "nvrtcGetCUBIN")
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace")


@lru_cache
def _library() -> ctypes.CDLL:
    cuda = (torch.version.cuda or "").split(".")[0]
    windows = sys.platform == "win32"
    name = f"nvrtc64_{cuda}0_0.dll" if windows else f"libnvrtc.so.{cuda or '*'}"
    for folder in _folders():
        for found in folder.glob(name):
            for needed in () if windows else folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(needed))  # NVRTC searches for it by its name alone
            return ctypes.CDLL(str(found))
    return ctypes.CDLL(name)


def _folders() -> Sequence[Path]:
    """Return the folders that may hold NVRTC: those of pip's nvidia packages, and torch's own."""
    nvidia = find_spec("nvidia")
    packages = [Path(each) for each in (nvidia.submodule_search_locations or ())] if nvidia else []
    found = [folder for package in packages for folder in sorted(package.glob("*/lib"))]
    return [*found, Path(torch.__file__).parent / "lib"]
