"""CUDA source code, accuracy test and tensor maps (TMA descriptors) of the Hopper kernels."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .nvrtc import check, driver

ARCHITECTURE = "sm_90a"
UINT8, PROMOTE_256 = 0, 3
"""Constants of the enums CUtensorMapDataType and CUtensorMapL2promotion in cuda.h."""
WORST = 0.01
"""The relative RMS error below which a kernel passes `is_right`."""
MAX_MAPS = 4096  # in the cache
SWIZZLE_32, SWIZZLE_64, SWIZZLE_128 = 1, 2, 3
"""Constants of cuda.h (CUtensorMapSwizzle) for rows of 32, 64 and 128 bytes in shared memory."""


def is_right(what: str, made: Callable[[], Tensor], want: Tensor) -> bool:
    """Return whether the result of `made()` has a relative RMS error below WORST compared with `want`. Failures
    are logged; the message begins with `what`."""
    try:
        error = ((made() - want).norm() / want.norm()).item()
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:
        logging.warning("%s by other kernels, slower: %s", what, " ".join(str(reason).split())[:300])
        return False
    if not error < WORST:
        logging.warning("%s by other kernels, slower: ours has an error of %.2g here", what, error)
    return error < WORST


def source(name: str, **parts: str) -> str:
    """Return the CUDA source of the file `name` after hopper.cuh, with each @NAME@ replaced by the argument NAME."""
    program = f"{text('hopper.cuh')}\n{text(name)}"
    for part, given in parts.items():
        program = program.replace(f"@{part}@", given)
    return program


def text(name: str) -> str:
    """Return the text of a file in the folder of this module."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def product(name: str, columns: int, dtype: tuple[str, int], given: str = "+f", adds: bool = True) -> str:
    """Return the source of a CUDA function `name`(d, a, b) that multiplies 64 rows by `columns` columns in shared
    memory.

    dtype: the operands' PTX name and size in bytes.
    given: the inline-assembly constraint of d: "+f" or "=f" for fp32, "+r" or "=r" for fp16.
    adds: whether to add to d, which requires "+", or to overwrite d.
    """
    half, across = given[1] == "r", ", 0, 0" if dtype[1] == 2 else ""
    count, kind = (columns // 4, "u32") if half else (columns // 2, "float")
    return f"""INLINE void {name}({kind} (&d)[{count}], u64 a, u64 b) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {int(adds)}, 0;\\n"
        "{_instruction(columns, dtype, 16 if half else 32)} "
        "{{{_registers(count)}}}, %{count}, %{count + 1}, p, 1, 1{across};\\n}}"
        : {_each(given, count)} : "l"(a), "l"(b));
}}"""


def product_of_registers(name: str, columns: int, dtype: tuple[str, int]) -> str:
    """Return the source of a CUDA function `name`(d, a, b) that adds a product to d. The factors are 64 rows in
    registers and `columns` columns in shared memory."""
    count, across = columns // 2, ", 1" if dtype[1] == 2 else ""
    a = ", ".join(f"%{count + i}" for i in range(4))
    return f"""INLINE void {name}(float (&d)[{count}], const u32* a, u64 b) {{
    asm volatile("{_instruction(columns, dtype)} {{{_registers(count)}}}, {{{a}}}, %{count + 4}, 1, 1, 1{across};"
        : {_each("+f", count)} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}}"""


def _instruction(columns: int, dtype: tuple[str, int], bits: int = 32) -> str:
    name, size = dtype
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k{32 // size}.f{bits}.{name}.{name}"


def _registers(count: int) -> str:
    return ", ".join(f"%{i}" for i in range(count))


def _each(given: str, count: int) -> str:
    return ", ".join(f'"{given}"(d[{i}])' for i in range(count))


def tensor_map(
    x: Tensor, box: Sequence[int], swizzle: int, shape: Sequence[int] = (), strides: Sequence[int] = ()
) -> ctypes.Array[ctypes.c_char]:
    """Return a tensor map (TMA descriptor) with which TMA loads boxes of a matrix x [rows, columns].

    box: the bytes of a row, and the number of rows.
    shape, strides: of a map with more than two dimensions, innermost first; row length and strides in bytes.
    """
    shape = shape or (x.shape[1] * x.itemsize, x.shape[0])
    return _encoded(x.data_ptr(), tuple(shape), tuple(strides or (x.stride(0) * x.itemsize,)), tuple(box), swizzle)


@lru_cache(MAX_MAPS)
def _encoded(
    address: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int
) -> ctypes.Array[ctypes.c_char]:
    made, aligned, ones = (ctypes.c_char * 128)(), (ctypes.c_char * 192)(), [1] * len(shape)
    at = -(-ctypes.addressof(aligned) // 64) * 64  # the driver requires a multiple of 64
    check(
        driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(at),
            UINT8,
            len(shape),
            ctypes.c_void_p(address),
            _array(ctypes.c_uint64, shape),
            _array(ctypes.c_uint64, strides),
            _array(ctypes.c_uint32, box),
            _array(ctypes.c_uint32, ones),
            0,
            swizzle,
            PROMOTE_256,
            0,
        ),
        "cuTensorMapEncodeTiled",
    )
    ctypes.memmove(made, at, 128)
    return made


def _array(kind: Any, values: Sequence[int]) -> Any:
    return (kind * len(values))(*values)
