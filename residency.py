"""What stays in GPU memory during the steps, by what is free before them."""

import logging
from dataclasses import dataclass

from .estimate import MARGIN, estimate_camera_cache, estimate_sampling
from .plan import Plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Residency:
    """`both` experts at once or one at a time; bytes that an expert's camera cache may take; how many blocks of an
    expert stay while the weights of the others come from the file in every step (None: all stay)."""

    both: bool = False
    camera_cache_bytes: int = 0
    resident_blocks: int | None = None


def choose_residency(plan: Plan, free: int) -> Residency:
    """What to keep with `free` bytes on the plan's device.

    With "auto" the camera cache comes first, as much of it as fits, for it saves time in every step and a second
    resident expert only the wait at the switch. Where not even one expert fits, as many blocks stay as do. On the CPU
    weights are mapped and there is nothing to gain.
    """
    asked = plan.options.residency
    if asked == "stream":
        return Residency(resident_blocks=0)
    if plan.device.type != "cuda":
        return Residency(both=asked == "both")
    one, two = (_needed(plan, count) for count in (1, 2))
    if asked == "auto" and one > free:
        return _streamed(plan, free)
    cache = _camera_cache(plan, free - (two if asked == "both" else one))
    return Residency(asked == "both" or (asked == "auto" and two + cache <= free), cache)


def _camera_cache(plan: Plan, room: int) -> int:
    mode = plan.options.camera_cache
    if plan.camera is None or mode == "off":
        return 0
    whole = estimate_camera_cache(plan.high, plan.geometry, plan.dtype)
    return whole if mode == "gpu" else min(whole, max(0, room))


def _streamed(plan: Plan, free: int) -> Residency:
    layers = plan.high.config.num_layers
    resident = next((count for count in range(layers - 1, 0, -1) if _needed(plan, 1, count) <= free), 0)
    log.warning("An expert does not fit into the GPU beside its work: %d of its %d blocks stay there, the others come "
                "from the file in every step.", resident, layers)  # fmt: skip
    return Residency(resident_blocks=resident)


def _needed(plan: Plan, experts: int, resident_blocks: int | None = None) -> int:
    larger_first = sorted((plan.high, plan.low), key=lambda checkpoint: -checkpoint.nbytes)
    steps = estimate_sampling(
        larger_first[:experts], plan.geometry, plan.dtype,
        camera=plan.camera is not None, guided=plan.guided, resident_blocks=resident_blocks,
    )  # fmt: skip
    return steps.total + MARGIN
