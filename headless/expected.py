"""An estimate of a run's duration from the last run of its kind on this machine. The durations are in the file that
LINGBOT_WORLD_TIMES names, by default in the user's cache; an empty value turns this off."""

import hashlib
import json
import os
import platform
from contextlib import suppress
from pathlib import Path

import torch

from ..model.choice.kept import in_user_cache
from .checks import Plan
from .process.profile import Stage
from .rollout_plan import RolloutPlan

PER_FRAME, PER_FRAME_BEFORE = "chunks", "replay"
"""The stages of a causal run whose time grows with the number of frames: of the video, and of the continued state."""
MOST_KINDS = 200
_OF_NO_MATTER = (
    "prompt",
    "negative",
    "image",
    "output",
    "overwrite",
    "action_path",
    "preset",
    "keys",
    "seed",
    "fps",
    "save_state",
    "continue_from",
    "events",
    "frame_num",
    "max_area",
    "width",
    "height",
)


def expected(plan: Plan) -> str:
    """Return `about 3 min, by the last run of this kind`, or an empty string if there was none."""
    with suppress(KeyError, TypeError):
        found = _read()[_kind(plan)]
        again = found.get("per_frame_before", 0) * plan.frames_before
        seconds = found["once"] + found["per_frame"] * plan.geometry.frames + again
        time = f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
        time = time if seconds >= 90 else f"{max(seconds, 1):.0f} s"
        return f"about {time}, by the last run of this kind"
    return ""


def remember(plan: Plan, stages: list[Stage]) -> None:
    """Record the duration of a run for the next one. If the file cannot be written, nothing happens."""
    grow = [sum(stage.seconds for stage in stages if stage.name == name) for name in (PER_FRAME, PER_FRAME_BEFORE)]
    took = {"once": sum(stage.seconds for stage in stages) - sum(grow), "per_frame": grow[0] / plan.geometry.frames}
    kinds = _read()
    last = kinds.pop(_kind(plan), None)
    if plan.frames_before:
        took["per_frame_before"] = grow[1] / plan.frames_before
    kinds[_kind(plan)] = (last if isinstance(last, dict) else {}) | took
    file = _file()
    with suppress(OSError):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(dict(list(kinds.items())[-MOST_KINDS:])), encoding="utf-8")
            os.replace(part, file)


def _kind(plan: Plan) -> str:
    """Return a hash of everything that determines the duration, without file names: the size, the options, and the
    device."""
    options = {name: str(value) for name, value in vars(plan.options).items() if name not in _OF_NO_MATTER}
    on_gpu = plan.device.type == "cuda" and torch.cuda.is_available()
    device = torch.cuda.get_device_name(plan.device) if on_gpu else f"{platform.machine()} {os.cpu_count()}"
    size = plan.geometry.width, plan.geometry.height, 0 if isinstance(plan, RolloutPlan) else plan.geometry.frames
    words = [options, size, device, os.environ.get("WORLD_SIZE", "1")]
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]


def _file() -> Path | None:
    return in_user_cache("LINGBOT_WORLD_TIMES", "times.json")


def _read() -> dict:
    file = _file()
    with suppress(OSError, ValueError):
        found = {} if file is None else json.loads(file.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
