"""The devices of a run: one that computes, and one that decodes frames."""

import logging
from functools import cache
from pathlib import Path
from shutil import which

import torch

from ..errors import InputError

log = logging.getLogger(__name__)


def find_device(name: str | None) -> torch.device:
    """Return the torch device `name`. None means the GPU, or the CPU if there is no GPU. Raises InputError if torch
    cannot use the device."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        _warn_of_cpu_build()
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"`device` {name}: not a device that torch knows; use cpu, cuda or cuda:1") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"`device` {name}: torch sees {torch.cuda.device_count()} CUDA GPUs here; use cpu")
    if device.type not in ("cpu", "cuda"):
        try:
            torch.zeros(1, device=device).cpu()
        except (RuntimeError, AssertionError) as error:  # torch's message for a missing device
            found = str(error).splitlines()[0]
            raise InputError(f"`device` {name}: torch cannot use it here ({found:.80}); use cpu or cuda") from error
    return device


@cache
def _warn_of_cpu_build() -> None:
    driver = which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists()
    if driver and torch.version.cuda is None and torch.version.hip is None:
        log.warning(
            "torch %s is built for the CPU only, but this machine has an NVIDIA driver: the run takes the CPU. Install "
            "torch for the GPU: pip install uv && uv pip install --reinstall torch --torch-backend auto",
            torch.__version__,
        )


def find_decoding_device(name: str | None, device: torch.device) -> torch.device:
    """Return the device that decodes frames: `device` if `name` is None, else the GPU `name`. Raises InputError if
    `name` is not another CUDA GPU."""
    if name is None:
        return device
    gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    others = [f"cuda:{index}" for index in gpus if index != (device.index or 0)]
    if name not in others:
        raise InputError(
            f"`decoder_device` {name}: expected another CUDA GPU than `device` {device}; here there is "
            f"{' or '.join(others) or 'none: leave it out'}"
        )
    return torch.device(name)
