"""Helpers of the kernels for GPUs of compute capability 9.0: parts of their sources, and tensor maps for TMA, which
loads their operands."""

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
"""Constants of cuda.h: of CUtensorMapDataType and CUtensorMapL2promotion."""
WORST_PROBE = 0.01
"""The relative RMS error above which a kernel is rejected."""
MOST_MAPS = 4096
"""The number of cached maps: tensors are allocated at the same addresses again and again."""
SWIZZLE_32, SWIZZLE_64, SWIZZLE_128 = 1, 2, 3
"""Constants of cuda.h: CUtensorMapSwizzle, by the bytes of a row in shared memory."""


def is_right(what: str, made: Callable[[], Tensor], want: Tensor) -> bool:
    """Return whether `made()`, which runs a kernel, returns a result close to `want`. Otherwise log that the work
    `what` is slower."""
    try:
        error = ((made() - want).norm() / want.norm()).item()
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:
        logging.warning("%s by other kernels, slower: %s", what, " ".join(str(reason).split())[:300])
        return False
    if not error < WORST_PROBE:
        logging.warning("%s by other kernels, slower: ours has an error of %.2g here", what, error)
    return error < WORST_PROBE


def source(name: str, **parts: str) -> str:
    """Return the shared header and the CUDA source in a file of this folder. Each of the `parts` replaces its name
    between two @ in the source."""
    program = f"{text('hopper.cuh')}\n{text(name)}"
    for part, given in parts.items():
        program = program.replace(f"@{part}@", given)
    return program


def text(name: str) -> str:
    """Return the text of a file of this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def product(name: str, columns: int, dtype: tuple[str, int], given: str = "+f", adds: bool = True) -> str:
    """Return the source of a CUDA function that sets d to, or `adds` to d, the product of 64 rows and `columns`
    columns, 32 bytes of each.

    Rows and columns are in shared memory. `dtype`: the operands' name in PTX and their bytes. `given`: the inline
    assembly constraint of d, which is fp32 ("f") or fp16, two in a register ("r")."""
    half, across = given[1] == "r", ", 0, 0" if dtype[1] == 2 else ""
    count, kind = (columns // 4, "u32") if half else (columns // 2, "float")
    return f"""INLINE void {name}({kind} (&d)[{count}], u64 a, u64 b) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {int(adds)}, 0;\\n"
        "{_instruction(columns, dtype, 16 if half else 32)} "
        "{{{_registers(count)}}}, %{count}, %{count + 1}, p, 1, 1{across};\\n}}"
        : {_each(given, count)} : "l"(a), "l"(b));
}}"""


def product_of_registers(name: str, columns: int, dtype: tuple[str, int]) -> str:
    """Return a CUDA function that adds the product of rows in registers and columns in shared memory to d.

    Two-byte columns lie along the rows of shared memory."""
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
    """Return the tensor map from which TMA loads a `box` of x [rows, numbers] at a time: bytes of a row, and rows.

    Elements outside x are 0. For more dimensions, from the innermost on, `shape` has bytes and then rows, and `strides`
    the bytes of all but the first dimension."""
    shape = shape or (x.shape[1] * x.itemsize, x.shape[0])
    return _encoded(x.data_ptr(), tuple(shape), tuple(strides or (x.stride(0) * x.itemsize,)), tuple(box), swizzle)


@lru_cache(MOST_MAPS)
def _encoded(
    address: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int
) -> ctypes.Array[ctypes.c_char]:
    """Return the tensor map of these values, which stays valid whatever is stored at the address."""
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
