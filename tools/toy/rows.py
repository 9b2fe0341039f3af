"""The base of rooms, walks and pools: tensors with a row for each of the same things."""

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
    """A dataclass of tensors [n, ...]: it has n rows, and its parts and joins are of the same class."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, part: slice | Tensor) -> Self:
        """Some of the rows."""
        return type(self)(*(getattr(self, field.name)[part] for field in fields(self)))

    def to(self, device: torch.device | str) -> Self:
        """The same rows on another device."""
        return type(self)(*(getattr(self, field.name).to(device) for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))
