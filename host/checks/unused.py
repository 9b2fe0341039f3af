"""Warnings about settings without effect, such as a LoRA on an expert that runs no step."""

import math
from collections.abc import Iterator

from torch import Tensor

from ..model.patches import GUIDANCE, additions, lineage
from ..prompt.queue import PromptValues, UnknownError, running_prompt


def unused_expert_warning(high, low, cfg: tuple[float, float], first_low: int, steps: int) -> str:
    """Return a warning if an expert runs no step but is changed, as by a LoRA; else "". `high`, `low`: ModelPatchers.

    cfg: the guidance scales of the high-noise and the low-noise expert.
    first_low: the index of the low-noise expert's first step.
    """
    if 0 < first_low < steps or steps < 1:
        return ""
    idle, patcher, other = ("high", high, low) if first_low == 0 else ("low", low, high)
    things = sorted(additions(patcher))
    if patcher.patches or patcher.injections:
        things.append("a LoRA")
    if not math.isclose(*cfg):
        things.append(f"cfg {cfg[0 if idle == 'high' else 1]:g}")
    if not things:
        return ""
    return (
        f"No step of this run is the {idle}-noise expert's, so {', '.join(things)} of the {idle}-noise expert "
        f"{'change' if len(things) > 1 else 'changes'} nothing."
    )


def idle_range_warnings(patcher, sigmas: Tensor) -> Iterator[str]:
    """Yield a warning for each node on the MODEL if its timestep range contains no step of the run."""
    try:
        prompt, _ = running_prompt()
    except UnknownError:
        return
    sampling, levels = patcher.get_model_object("model_sampling"), sigmas[:-1].tolist()
    for node in dict.fromkeys(node for node, _ in lineage(patcher) if node is not None):
        try:
            values = PromptValues(prompt)
            start, end = (values.evaluate(prompt[node]["inputs"][name]) for name in ("start_percent", "end_percent"))
            first, last = (float(sampling.percent_to_sigma(percent)) for percent in (start, end))
        except (UnknownError, KeyError, TypeError, ValueError):
            continue
        if levels and not any(last <= level <= first for level in levels):
            yield (
                f"Node {node}, {prompt[node]['class_type']}, counts from start_percent {start:g} to end_percent "
                f"{end:g}, where this run has no step: it changes nothing."
            )


def ineffective_guidance_warning(patcher) -> str:
    """Return a warning if nodes on the MODEL change the guidance, which a run at cfg 1 does not use, else ""."""
    changed = patcher.model_options.keys() & GUIDANCE
    if not changed or "disable_cfg1_optimization" in changed:
        return ""
    return (
        "At cfg 1 the negative prompt is left out, so a node on the model that changes the guidance may change nothing."
    )


def ineffective_prompt_warning(patcher, scales: tuple[float, float]) -> str:
    """Return a warning if the prompt has no effect because a guidance scale is 0, else an empty string."""
    idle = [role for role, scale in zip(("high", "low"), scales, strict=True) if scale == 0]
    if not idle or patcher.model_options.keys() & GUIDANCE:
        return ""
    which = f" of the {idle[0]}-noise expert" if len(idle) == 1 else ""
    return f"At cfg 0{which} only the negative prompt has an effect, and the prompt has none."
