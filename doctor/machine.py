"""Facts about a machine that need no GPU kernel: versions, memory and disk speed."""

import os
import platform
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..model.choice import user_cache
from ..model.choice.card import Card, card_of
from ..model.choice.table import KITCHEN, NOT_INSTALLED, TRITON, missing
from ..pipeline.rollout_memory import available_host_memory

DISK_BYTES = 2**25
"""The size of the file that times a disk, in bytes."""
COMFYUI_ARGUMENTS = (
    *("lowvram", "novram", "highvram", "gpu_only", "cpu"),
    *("use_sage_attention", "use_flash_attention", "use_split_cross_attention"),
    *("disable_dynamic_vram", "disable_pinned_memory", "reserve_vram", "fast"),
    *("fp16_vae", "fp32_vae", "bf16_vae", "cpu_vae"),
)
"""ComfyUI's command-line switches that affect where weights lie or which kernels run."""


def describe_machine(device: torch.device, folder: Path | None = None) -> dict[str, Any]:
    """Return a machine's facts as a dict of JSON values. `folder`: a folder on the disk to time, by default the
    cache."""
    card, found = card_of(device), user_cache.driver_version()
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "card": card.known_as,
        "device": str(device),
        "driver": _driver_package() or (found if found == "none" else f"supports CUDA or HIP {found}"),
        "torch": f"{torch.__version__}, built for {_build()}",
        "triton": _triton(card),
        "comfy-kitchen": _package(KITCHEN, card),
        "sageattention": _package("sageattention", card),
        **_gpu_memory(device),
        **_host_memory(),
        "disk": disk_speed(folder or _cache_folder()),
    }
    if (switches := comfyui_switches()) is not None:
        facts["ComfyUI"] = switches
    return facts


def _build() -> str:
    if torch.version.hip is not None:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"


def _driver_package() -> str | None:
    with suppress(Exception):
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        return str(nvml.nvmlSystemGetDriverVersion())
    place = Path("/proc/driver/nvidia/version")
    with suppress(OSError, IndexError):
        return place.read_text(encoding="utf-8").split("Kernel Module")[1].split()[0]
    return None


def _triton(card: Card) -> str:
    found = user_cache.versions()
    why = missing(TRITON, card)
    if why != NOT_INSTALLED:
        version = found.get("triton") or found.get("triton-windows") or "installed"
        return version if why is None else f"{version}; {why}; norms and gates run in plain torch, slower"
    other = "triton-windows" if sys.platform == "win32" else "triton"
    return f"not installed: norms and gates run in plain torch, slower; pip install {other}"


def _package(name: str, card: Card) -> str:
    version = user_cache.versions().get(name)
    if version is None:
        return "not installed"
    if card.maker not in ("nvidia", "amd"):
        return f"{version}; this device has no use for it"
    why = missing(name, card)
    return version if why is None else f"{version}, not used on this card: {why}"


def _gpu_memory(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    ours = torch.cuda.memory_reserved(device)
    return {"memory_total": total, "memory_free": free, "memory_held_elsewhere": max(0, total - free - ours)}


def _host_memory() -> dict[str, Any]:
    with suppress(ImportError):
        psutil = import_module("psutil")
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        return {"ram_total": memory.total, "ram_free": memory.available, "page_file": swap.total}
    free = available_host_memory()
    return {"ram_free": free} if free < 2**62 else {}


def disk_speed(folder: Path) -> dict[str, Any]:
    """Measure a folder's disk speeds. Return `write_mb_s` and, with posix_fadvise, `read_mb_s`; after a failure, return
    `reason` instead."""
    data = os.urandom(DISK_BYTES // 16) * 16
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            start = time.perf_counter()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            wrote = time.perf_counter() - start
            drop = getattr(os, "posix_fadvise", None)  # drops the page cache, so that the read uses the disk
            if drop is not None:
                drop(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            start = time.perf_counter()
            while file.read(2**22):
                pass
            took = time.perf_counter() - start
    except OSError as reason:
        return {"folder": str(folder), "reason": reason.strerror or str(reason)}
    found = {"folder": str(folder), "write_mb_s": round(DISK_BYTES / wrote / 1e6)}
    return found | ({} if drop is None else {"read_mb_s": round(DISK_BYTES / took / 1e6)})


def _cache_folder() -> Path:
    place = user_cache.cache_path("LINGBOT_WORLD_CARDS", user_cache.NAME)
    return Path(tempfile.gettempdir()) if place is None else place.parent


def comfyui_switches() -> list[str] | None:
    """Return the COMFYUI_ARGUMENTS that are set in the running ComfyUI, such as "--lowvram True"; None outside
    ComfyUI."""
    options = sys.modules.get("comfy.cli_args")
    if options is None:
        return None
    values = vars(options.args)
    return [f"--{name.replace('_', '-')} {values[name]}" for name in COMFYUI_ARGUMENTS if values.get(name)]
