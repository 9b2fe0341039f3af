"""What weights in 4 bits (four_bit.py) and in 8 bits (scaled.py) have in common."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...options import T
from ..tensors import MappedFile, TensorEntry, in_file_order


class QuantizedWeight(Protocol):
    """Where a weight's tensors lie, and what makes a parameter of them."""

    @property
    def quant_type(self) -> str:
        """nf4, fp8 and the like."""

    @property
    def entries(self) -> list[TensorEntry]:
        """The tensors that its decode needs."""

    @property
    def offset(self) -> float | None:
        """The nested offset of a 4-bit weight."""

    def parameter(
        self, tensors: Mapping[str, Tensor], offset: Tensor | None, dtype: torch.dtype | None
    ) -> torch.nn.Parameter:
        """See `FourBitWeight.parameter`."""


class DecodedParameter(torch.nn.Parameter):
    """A weight in fewer bits as a model outside ComfyUI has it. It needs nothing but torch: importing comfy_kitchen and
    bitsandbytes takes six seconds, half of it for torch's compiler. In ComfyUI a QuantizedTensor takes its place, which
    the host can move and patch."""

    _kept: dict[torch.dtype, Any] | None = None

    def keep(self) -> None:
        """From now on what decoding and recoding make stays beside the weight, and is given again."""
        self._kept = {}

    def _kept_or_made(self, dtype: torch.dtype, make: Callable[[], T]) -> T:
        kept = {} if self._kept is None else self._kept
        if dtype not in kept:
            kept[dtype] = make()
        return kept[dtype]


def quantized_tensors(
    weights: Mapping[str, QuantizedWeight], tensors: Mapping[str, Tensor], dtype: torch.dtype | None,
    device: torch.device,
) -> dict[str, Tensor]:
    """The weights' parameters (see `FourBitWeight.parameter`) by name, over tensors on `device` by entry name."""
    nested = {name: weight.offset for name, weight in weights.items() if weight.offset is not None}
    # One small tensor holds all nested offsets, so that a single copy brings them to the device.
    offsets = dict(zip(nested, torch.tensor(list(nested.values()), dtype=torch.float32, device=device), strict=True))
    return {name: weight.parameter(tensors, offsets.get(name), dtype) for name, weight in weights.items()}


def check_finite(file: str, weights: Iterable[QuantizedWeight]) -> None:
    """Raise CheckpointError naming every weight whose float32 scales or tables hold NaN or infinity.

    Reads the float32 components only: some 5 MB of a double-quantized expert."""
    entries = [entry for weight in weights for entry in weight.entries if entry.dtype == torch.float32]
    suspects = []
    for joined in _joined(entries):
        first, values = joined[0], joined[0].view()
        if len(joined) > 1 and isinstance(first.source, MappedFile):
            values = first.source.view(first.offset, (sum(entry.nbytes for entry in joined) // 4,), torch.float32)
        suspects += [] if torch.isfinite(values).all() else joined
    bad = [entry.name for entry in suspects if not torch.isfinite(entry.view()).all()]
    if bad:
        raise CheckpointError(f"{file}: NaN or infinity in {len(bad)} scales ({', '.join(bad[:5])}), expected finite "
                              "numbers; the file is corrupt, download it again")  # fmt: skip


def _joined(entries: list[TensorEntry]) -> list[list[TensorEntry]]:
    """Entries that touch each other in their file, in one list: checked together they take one call, not thousands."""
    lists: list[list[TensorEntry]] = []
    for entry in in_file_order(entries):
        last = lists[-1][-1] if lists else None
        mapped = isinstance(entry.source, MappedFile)
        if mapped and last and last.source is entry.source and last.offset + last.nbytes == entry.offset:
            lists[-1].append(entry)
        else:
            lists.append([entry])
    return lists
