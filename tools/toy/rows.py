"""The base of rooms, walks and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Rows:
    """A dataclass of tensors [n, ...], with slices and concatenations of the same class."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, part: slice | Tensor) -> Self:
        return type(self)(*(getattr(self, field.name)[part] for field in fields(self)))

    def to(self, device: torch.device | str) -> Self:
        return type(self)(*(getattr(self, field.name).to(device) for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))
