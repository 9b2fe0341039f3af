"""Estimate a run's duration from the last run of its kind, stored in the file that LINGBOT_WORLD_TIMES names."""

import hashlib
import json
import os
import platform
from contextlib import suppress

import torch

from ...model.choice.user_cache import cache_path, read_json, write_json
from ..checks import Plan
from ..options import CAMERAS
from ..rollout_plan import RolloutPlan
from .profile import Stage

CHUNKS_STAGE, REPLAY_STAGE = "chunks", "replay"
"""The names of two stages of a causal run. The first generates new chunks, the second replays a continued video. The
duration of both grows with the number of frames."""
VARIABLE, NAME = "LINGBOT_WORLD_TIMES", "times.json"
MAX_KINDS = 200
_IRRELEVANT = (
    *CAMERAS,
    *("prompt", "negative", "image", "output", "overwrite", "seed", "fps", "save_state", "continue_from", "events"),
    *("frame_num", "max_area", "width", "height"),  # the geometry has them
)


def estimate_duration(plan: Plan) -> str:
    """Return an estimate of the run's duration, such as "about 3 min", or "" without an earlier run of this kind."""
    with suppress(KeyError, TypeError):
        found = read_json(cache_path(VARIABLE, NAME))[_hash_kind(plan)]
        again = found.get("per_frame_before", 0) * plan.frames_before
        seconds = found["once"] + found["per_frame"] * plan.geometry.frames + again
        time = f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
        time = time if seconds >= 90 else f"{max(seconds, 1):.0f} s"
        return f"about {time}, by the last run of this kind"
    return ""


def store_durations(plan: Plan, stages: list[Stage]) -> None:
    """Store the durations of a run's stages for later estimates. Errors in writing are ignored."""
    grow = [sum(stage.seconds for stage in stages if stage.name == name) for name in (CHUNKS_STAGE, REPLAY_STAGE)]
    took = {"once": sum(stage.seconds for stage in stages) - sum(grow), "per_frame": grow[0] / plan.geometry.frames}
    kinds = read_json(cache_path(VARIABLE, NAME))
    last = kinds.pop(_hash_kind(plan), None)
    if plan.frames_before:
        took["per_frame_before"] = grow[1] / plan.frames_before
    kinds[_hash_kind(plan)] = (last if isinstance(last, dict) else {}) | took
    write_json(cache_path(VARIABLE, NAME), dict(list(kinds.items())[-MAX_KINDS:]))


def _hash_kind(plan: Plan) -> str:
    options = {name: str(value) for name, value in vars(plan.options).items() if name not in _IRRELEVANT}
    on_gpu = plan.device.type == "cuda" and torch.cuda.is_available()
    device = torch.cuda.get_device_name(plan.device) if on_gpu else f"{platform.machine()} {os.cpu_count()}"
    size = plan.geometry.width, plan.geometry.height, 0 if isinstance(plan, RolloutPlan) else plan.geometry.frames
    words = [options, size, device, os.environ.get("WORLD_SIZE", "1")]
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]
