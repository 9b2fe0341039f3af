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

from .nvrtc import check, libcuda

ARCHITECTURE = "sm_90a"
UINT8, PROMOTE_256 = 0, 3
"""Constants of the enums CUtensorMapDataType and CUtensorMapL2promotion in cuda.h."""
MAX_ERROR = 0.01
"""A kernel passes `is_accurate` if its relative RMS error is below this limit."""
MAX_MAPS = 4096  # in the cache
SWIZZLE_32, SWIZZLE_64, SWIZZLE_128 = 1, 2, 3
"""Constants of cuda.h (CUtensorMapSwizzle) for rows of 32, 64 and 128 bytes in shared memory."""


def is_accurate(what: str, run: Callable[[], Tensor], expected: Tensor) -> bool:
    """Return whether `run()` works and its result has a relative RMS error below MAX_ERROR compared with `expected`.
    Log a warning that begins with `what` if `run` raises an error or is inaccurate. Raise `run`'s OutOfMemoryError."""
    try:
        error = ((run() - expected).norm() / expected.norm()).item()
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:
        logging.warning("%s by other kernels, slower: %s", what, " ".join(str(reason).split())[:300])
        return False
    if not error < MAX_ERROR:
        logging.warning("%s by other kernels, slower: ours has an error of %.2g here", what, error)
    return error < MAX_ERROR


def source(name: str, **parts: str) -> str:
    """Return the CUDA source in the file `name`, preceded by hopper.cuh. Each placeholder @NAME@ is replaced by the
    keyword argument NAME."""
    program = f"{text('hopper.cuh')}\n{text(name)}"
    for part, code in parts.items():
        program = program.replace(f"@{part}@", code)
    return program


def text(name: str) -> str:
    """Return the text of a file in the folder of this module."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def product_source(name: str, columns: int, dtype: tuple[str, int], constraint: str = "+f", adds: bool = True) -> str:
    """Return the source of a CUDA function `name`(d, a, b), a WGMMA instruction: d = a @ b or d += a @ b. The registers
    d hold [64, columns]; a and b are descriptors of matrices in shared memory.

    dtype: the PTX name, and the size in bytes, of a's and b's dtype.
    constraint: d's inline-assembly constraint: "+" (read and written) or "=" (only written), then "f" for fp32 or "r"
    for fp16.
    adds: whether to add to d, which requires "+".
    """
    half, across = constraint[1] == "r", ", 0, 0" if dtype[1] == 2 else ""
    count, kind = (columns // 4, "u32") if half else (columns // 2, "float")
    return f"""INLINE void {name}({kind} (&d)[{count}], u64 a, u64 b) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {int(adds)}, 0;\\n"
        "{_instruction(columns, dtype, 16 if half else 32)} "
        "{{{_registers(count)}}}, %{count}, %{count + 1}, p, 1, 1{across};\\n}}"
        : {_outputs(constraint, count)} : "l"(a), "l"(b));
}}"""


def register_product_source(name: str, columns: int, dtype: tuple[str, int]) -> str:
    """Return the source of a CUDA function `name`(d, a, b), which computes d += a @ b by one WGMMA instruction. d is
    [64, columns] in fp32 registers. a has 64 rows in registers. b is the descriptor of a matrix in shared memory.

    dtype: a's and b's dtype: PTX name and size in bytes.
    """
    count, across = columns // 2, ", 1" if dtype[1] == 2 else ""
    a = ", ".join(f"%{count + i}" for i in range(4))
    return f"""INLINE void {name}(float (&d)[{count}], const u32* a, u64 b) {{
    asm volatile("{_instruction(columns, dtype)} {{{_registers(count)}}}, {{{a}}}, %{count + 4}, 1, 1, 1{across};"
        : {_outputs("+f", count)} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}}"""


def _instruction(columns: int, dtype: tuple[str, int], bits: int = 32) -> str:
    name, size = dtype
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k{32 // size}.f{bits}.{name}.{name}"


def _registers(count: int) -> str:
    return ", ".join(f"%{i}" for i in range(count))


def _outputs(constraint: str, count: int) -> str:
    return ", ".join(f'"{constraint}"(d[{i}])' for i in range(count))


def tensor_map(
    x: Tensor, box: Sequence[int], swizzle: int, shape: Sequence[int] = (), strides: Sequence[int] = ()
) -> ctypes.Array[ctypes.c_char]:
    """Return a TMA descriptor (CUtensorMap) for boxes of the tensor x. All sequences begin with the innermost
    dimension. The innermost sizes and all strides are in bytes.

    box: the size of a box.
    swizzle: SWIZZLE_32, SWIZZLE_64 or SWIZZLE_128, for box rows of 32, 64 or 128 bytes.
    shape, strides: x's sizes, and its strides without the innermost; by default those of a matrix.
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
        libcuda().cuTensorMapEncodeTiled(
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
