"""The test of a recorded CUDA graph: the result of its first replay is compared with the usual computation."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

WORST = 2**-7
"""The largest accepted relative RMS error of a replay, about the rounding error of bf16. A correct replay has an error
of 0."""


def relative_error(got: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """Return the largest relative RMS error of the tensors `got` compared with `wanted`.

    NaN in both tensors counts as equal. The call waits for the GPU.
    """
    errors = []
    for a, b in zip(got, wanted, strict=True):
        difference = (a.float() - b.float()).masked_fill((a == b) | (a.isnan() & b.isnan()), 0)
        errors.append(difference.norm() / b.float().nan_to_num().norm().clamp_min(1e-30))
    return torch.stack(errors).max().item()


def refusal(work: str, error: float) -> str:
    """Return the message for the user if the test rejects a recorded graph, or an empty string if the graph passes.

    A graph passes if the relative `error` of the first replay is at most WORST. NaN is rejected. `work` is the
    beginning of the message and names the recorded computation, such as "A forward".
    """
    if error <= WORST:  # false for NaN
        return ""
    return (
        f"{work} is not replayed from a recording: the first replay was wrong (relative error {error:.2g}). A kernel "
        "that runs on CUDA's default stream alone, as SageAttention 2.x's do, is missing from every recording."
    )
