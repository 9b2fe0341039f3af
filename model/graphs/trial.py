"""The test of a recorded CUDA graph: its first replay is compared with the usual computation."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

MAX_ERROR = 2**-7
"""The largest relative RMS error of a replay that passes the test, about the rounding error of bf16."""


def relative_error(got: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """Return the largest relative RMS error among the tensors `got`, compared with `wanted`. NaN in both counts as
    equal."""
    errors = []
    for a, b in zip(got, wanted, strict=True):
        difference = (a.float() - b.float()).masked_fill((a == b) | (a.isnan() & b.isnan()), 0)
        errors.append(difference.norm() / b.float().nan_to_num().norm().clamp_min(1e-30))
    return torch.stack(errors).max().item()


def refusal(work: str, error: float) -> str:
    """Return a message for the user if the relative `error` of a replay is NaN or above MAX_ERROR, else an empty
    string. `work` begins the message."""
    if error <= MAX_ERROR:  # false for NaN
        return ""
    return (
        f"{work} is not replayed from a recording: the first replay was wrong (relative error {error:.2g}). A kernel "
        "that runs on CUDA's default stream alone, as SageAttention 2.x's do, is missing from every recording."
    )
