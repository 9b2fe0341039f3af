"""The roles of two experts: whether files can be the high-noise and the low-noise expert of one model."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch

from ..errors import CheckpointError
from ..options import PerExpert
from .checkpoint import Checkpoint
from .release import Role, role_of

_COMPARED_WEIGHTS, _COMPARED_BYTES = 8, 4096


def check_roles(experts: PerExpert[Checkpoint]) -> None:
    """Raise CheckpointError if two models cannot be the two experts: their names are swapped, one is causal, their
    architectures differ, or their weights are the same."""
    high, low = map(_name, experts)
    paths = [checkpoint.path for checkpoint in experts]
    roles = PerExpert(*(named_role(path, paths) for path in paths))
    if roles.high == "low" and roles.low != "low" or roles.low == "high" and roles.high != "high":
        raise CheckpointError(
            f"the experts look swapped: high-noise is {high}, low-noise is {low}; "
            "exchange them, or rename the files if their names are wrong"
        )
    causal = next((_name(checkpoint) for checkpoint in experts if checkpoint.config.causal), None)
    if causal is not None:
        raise CheckpointError(
            f"{causal} is a causal model (LingBot-World Fast or 2.0), not one of two experts; it "
            "makes videos by itself: give its own folder as the package"
        )
    if _same_weights(experts):
        raise CheckpointError(f"{high} and {low} are the same weights; give the high-noise and the low-noise expert")
    if experts.high.config != experts.low.config:
        ours, theirs = asdict(experts.high.config), asdict(experts.low.config)
        other = [f"{key} {ours[key]} and {theirs[key]}" for key in ours if ours[key] != theirs[key]]
        raise CheckpointError(
            f"the experts are of different architectures: {high} and {low} have {', '.join(other)}; "
            "both have to come from one release"
        )


def named_role(path: Path, others: Iterable[Path] = ()) -> Role | None:
    """Return the expert's role that a file's name states, or else the name of the folder around it. Return None if
    neither states a role. `others`: the other files of the package."""
    return role_of(path, others) or role_of(path.parent, [other.parent for other in others])


def _name(checkpoint: Checkpoint) -> str:
    """Return the last two parts of a checkpoint's path, for messages. The last part alone is often the same for both
    experts."""
    return "/".join(checkpoint.path.parts[-2:])


def _same_weights(experts: PerExpert[Checkpoint]) -> bool:
    high, low = experts
    if [file.resolve() for file in high.files] == [file.resolve() for file in low.files]:
        return True
    weights = sorted(name for name in high.shapes if name.endswith(".weight"))
    some = weights[:: max(1, len(weights) // _COMPARED_WEIGHTS)]
    return high.shapes == low.shapes and all(_first_bytes(high, name) == _first_bytes(low, name) for name in some)


def _first_bytes(checkpoint: Checkpoint, name: str) -> bytes:
    values = checkpoint.tensors[name].view().view(-1)[:_COMPARED_BYTES]
    return bytes(values.view(torch.uint8).numpy())
