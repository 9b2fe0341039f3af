"""Conversion of the camera editor's state to a path, with the same results as the JavaScript in web/."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import CameraError
from ...options import FPS
from ..easing import EASINGS, apply_easing
from ..path import DEFAULT_FOV_DEG, CameraPath, lens_from_fov
from ..rotation import from_quaternions
from .keyframes import path_through

VERSION = 1
MOST_KEYFRAMES, MOST_FRAMES, LONGEST_STATE = 1000, 10_001, 2**20


def path_from_editor(state: str | Mapping) -> CameraPath:
    """Return the path of an editor state, JSON text or the parsed object. Raise CameraError for a missing or invalid
    field."""
    state = _parse(state)
    if state.get("version") != VERSION:
        raise CameraError(f"camera editor: version {state.get('version')!r}, this pack reads version {VERSION}")
    frames = _whole(state.get("frames"), "frames", 5, MOST_FRAMES)
    keyframes, loop = _keyframes(state.get("keyframes"), frames), state.get("loop", False)
    if not isinstance(loop, bool):
        raise CameraError(f"camera editor: loop is {loop!r}, expected true or false")
    if loop:
        keyframes = [key for key in keyframes if key[0] < frames - 1] + [(frames - 1, *keyframes[0][1:])]
    *columns, easings = zip(*keyframes, strict=True)
    knots, positions, quaternions = (np.array(column, dtype=np.float64) for column in columns)
    times = (frames - 1) * apply_easing(state.get("ease", "linear"), np.arange(frames) / (frames - 1))
    for start, end, ease in zip(knots[:-1], knots[1:], easings[:-1], strict=True):
        between = (start < times) & (times < end)
        if ease != "linear" and between.any():
            times[between] = start + (end - start) * apply_easing(ease, (times[between] - start) / (end - start))
    lens = lens_from_fov(_float(state.get("fov_deg", DEFAULT_FOV_DEG), "fov_deg"))
    rotations, fps = from_quaternions(quaternions), _float(state.get("fps", FPS), "fps")
    return path_through(knots, positions, rotations, times, lens=lens, fps=fps)


def _parse(state: str | Mapping) -> Mapping:
    if isinstance(state, str):
        if len(state) > LONGEST_STATE:
            raise CameraError(f"camera editor: {len(state)} characters, expected at most {LONGEST_STATE}")
        try:
            state = json.loads(state)
        except (ValueError, RecursionError) as error:
            raise CameraError(f"camera editor: the state is not JSON ({error})") from error
    if not isinstance(state, Mapping):
        raise CameraError(f"camera editor: the state is {type(state).__name__}, expected an object")
    return state


def _keyframes(entries: Any, frames: int) -> list[tuple]:
    if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_KEYFRAMES:
        found = f"{len(entries)} of them" if isinstance(entries, list) else type(entries).__name__
        raise CameraError(f"camera editor: keyframes is {found}, expected a list of 1 to {MOST_KEYFRAMES}")
    keyframes = [_keyframe(entry, f"keyframe {index}", frames) for index, entry in enumerate(entries)]
    for index in range(1, len(keyframes)):
        if keyframes[index][0] <= keyframes[index - 1][0]:
            raise CameraError(f"camera editor: keyframe {index} does not come after the one before it in time")
    return keyframes


def _keyframe(entry: Any, name: str, frames: int) -> tuple[int, list[float], list[float], str]:
    if not isinstance(entry, Mapping):
        raise CameraError(f"camera editor: {name} is {type(entry).__name__}, expected an object")
    frame = _whole(entry.get("frame"), f"{name} frame", 0, frames - 1)
    quaternion = _floats(entry.get("quaternion"), 4, f"{name} quaternion")
    if math.hypot(*quaternion) < 1e-6:
        raise CameraError(f"camera editor: {name} quaternion is zero, expected a rotation x, y, z, w")
    ease = entry.get("ease", "linear")
    if not isinstance(ease, str) or ease not in EASINGS:
        raise CameraError(f"camera editor: {name} ease is {ease!r}, expected one of {', '.join(EASINGS)}")
    return frame, _floats(entry.get("position"), 3, f"{name} position"), quaternion, ease


def _floats(value: Any, count: int, name: str) -> list[float]:
    if not isinstance(value, list) or len(value) != count:
        raise CameraError(f"camera editor: {name} is {value!r}, expected {count} numbers")
    return [_float(part, name) for part in value]


def _float(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e9:
        raise CameraError(f"camera editor: {name} is {value!r}, expected a finite number")
    return float(value)


def _whole(value: Any, name: str, least: int, most: int) -> int:
    number = _float(value, name)
    if number != int(number) or not least <= number <= most:
        raise CameraError(f"camera editor: {name} is {value!r}, expected a whole number from {least} to {most}")
    return int(number)
