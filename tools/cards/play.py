"""Another NVIDIA card, played on the one at hand: torch reports its compute capability, and Triton compiles for it.

Paths, fallbacks and numbers are the other card's, times are not."""

import os
import tempfile
from pathlib import Path

import torch
from lingbot_world.model.choice.card import Card

ARCHITECTURES = {"7.5": 75, "8.0": 80, "8.6": 86, "8.9": 89, "9.0": 90, "10.0": 100, "12.0": 120}


class SharedMemoryError(RuntimeError):
    """A Triton kernel that the played card could not launch."""


def play(name: str) -> dict[str, int]:
    """Play a card, such as "8.6". Return a dict that fills with each compiled Triton kernel's shared memory in
    bytes."""
    played = tuple(int(part) for part in name.split("."))
    here = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    torch.cuda.get_device_capability = lambda device=None: played
    torch.cuda.get_device_name = lambda device=None: f"played {name}"
    os.environ["TRITON_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"triton-{name}")
    return _compile_for(ARCHITECTURES[name], here)


def _compile_for(architecture: int, here: int) -> dict[str, int]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    target = GPUTarget("cuda", min(architecture, 89) if here < 100 <= architecture else architecture, 32)
    type(triton.runtime.driver.active).get_current_target = lambda self: target
    make_cubin, shared = CUDABackend.make_cubin, {}

    def make(self, source, metadata, options, _capability):
        made = make_cubin(self, source, metadata, options, here)
        kernel, size = metadata["name"], metadata["shared"]
        shared[kernel] = max(shared.get(kernel, 0), size)
        most = Card("nvidia", "", divmod(architecture, 10)).shared_memory
        if size > most:
            raise SharedMemoryError(f"{kernel} needs {size} bytes of shared memory, sm_{architecture} has {most}")
        return made

    CUDABackend.make_cubin = make
    return shared
