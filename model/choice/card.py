"""The hardware of a torch device: maker, name and compute capability."""

from __future__ import annotations

import platform
from typing import Literal, NamedTuple

import torch

Maker = Literal["nvidia", "amd", "apple", "cpu", "other"]

HOPPER = 9
"""The major compute capability of Hopper GPUs."""


LDS = MIN_SHARED_MEMORY = 65536
SHARED_MEMORY = {
    (12, 0): 101376,
    (9, 0): 232448,
    (8, 9): 101376,
    (8, 7): 166912,
    (8, 6): 101376,
    (8, 0): 166912,
}
"""The bytes of shared memory that a Triton program may use on NVIDIA GPUs. The first entry at or below a GPU's compute
capability applies; without one, MIN_SHARED_MEMORY applies."""


GEFORCE_CAPABILITIES = {(8, 6), (8, 9), (12, 0), (12, 1)}
"""The compute capabilities of GeForce GPUs since Ampere. Some workstation and server GPUs share them."""


class Card(NamedTuple):
    """A GPU or another device.

    capability: the compute capability of an NVIDIA GPU, else (0, 0).
    arch: an AMD GPU's architecture, such as gfx1100, else empty.
    """

    maker: Maker
    name: str
    capability: tuple[int, int] = (0, 0)
    arch: str = ""

    @property
    def shared_memory(self) -> int:
        """The bytes of shared memory that one Triton program may use."""
        if self.maker != "nvidia":
            return LDS
        return next((size for since, size in SHARED_MEMORY.items() if self.capability >= since), MIN_SHARED_MEMORY)

    @property
    def fast_fp16_sums(self) -> bool:
        """Whether fp16 products are probably twice as fast with accumulation in fp16 as in fp32, as on GeForce GPUs."""
        return self.maker == "nvidia" and self.capability in GEFORCE_CAPABILITIES

    @property
    def known_as(self) -> str:
        """The name with the capability or architecture: "NVIDIA GeForce RTX 4060 (compute capability 8.9)"."""
        if self.maker == "nvidia":
            return f"{self.name} (compute capability {'.'.join(map(str, self.capability))})"
        return f"{self.name} ({self.arch})" if self.arch else self.name


def maker_of(device: torch.device) -> Maker:
    """Return the maker of a device. torch calls AMD's GPUs "cuda" too."""
    if device.type == "cuda":
        return "nvidia" if torch.version.hip is None else "amd"
    makers: dict[str, Maker] = {"cpu": "cpu", "mps": "apple"}
    return makers.get(device.type, "other")


def card_of(device: torch.device) -> Card:
    """Return the maker, name and capability of a device."""
    maker = maker_of(device)
    if maker == "nvidia":
        return Card(maker, torch.cuda.get_device_name(device), capability(device))
    if maker == "amd":
        found = torch.cuda.get_device_properties(device)
        return Card(maker, found.name, arch=str(getattr(found, "gcnArchName", "")).split(":")[0])
    return Card(maker, platform.processor() or platform.machine() or device.type)


def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU, or (0, 0) for any other device."""
    if maker_of(device) != "nvidia":
        return 0, 0
    major, minor = torch.cuda.get_device_capability(device)
    return major, minor


def multiplies_half(device: torch.device) -> bool:
    """Return whether a GPU has matrix instructions for fp16."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return maker_of(device) == "amd" or capability(device) >= (7, 0)
