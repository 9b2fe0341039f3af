#!/usr/bin/env python3
"""How often `camera measure`, `camera from-video` and `measure` are right, on sixty clips whose camera is known.

    python tools/measure/evaluate_measuring.py PHOTOS [--only drift] [--every 5] [--processes 2]

PHOTOS is a folder of folders with an image.jpg each, three or more. Twenty moves through three kinds of scene
(camera_clips.py), four of five noisy, blurred by motion, compressed or with a thing that moves. Each clip is measured
against its own path and the nineteen other moves, and a path is made of it without knowing its lens. Each clip is
looked through for drift, clean and with each of six faults put in (drift_faults.py): nothing freezes or comes again in
one that stands still. An hour of one CPU.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import numpy as np
from camera_clips import AMOUNTS, FAULTS, SCENES, clip, path_of, photos_in, spoilt
from drift_faults import FAULTS as DRIFTS
from lingbot_world.measure import find_camera, video_path
from lingbot_world.measure.drift import find_faults, measure_frames
from lingbot_world.measure.measurement import compared, median_errors_deg

CASES = list(product(AMOUNTS, SCENES))
VERDICTS = {True: "follows", False: "does not", None: "cannot be told"}
OF_MOVES = ("frozen", "repeat")
"""Faults that a clip which stands still cannot have."""
photos_of = cache(photos_in)


def evaluated(number: int, folder: Path, what: tuple[str, ...]) -> dict[str, Any]:
    """What was found in clip `number` of the sixty."""
    (move, scene), fault, photos = CASES[number], FAULTS[number % len(FAULTS)], photos_of(folder)
    clean = clip(move, scene, "clean", photos, number)
    row: dict[str, Any] = {"clip": f"{move}, {scene}, {fault}"}
    if "drift" in what:
        row |= _drift(clean, [name for name in DRIFTS if move != "static" or name not in OF_MOVES])
    if "camera" in what:
        again = clip(move, scene, fault, photos, number) if fault == "blur" else None
        row |= _camera(spoilt(clean, fault, photos, np.random.default_rng(number)) if again is None else again, move)
    return row


def _drift(clean: np.ndarray, faults: list[str]) -> dict[str, Any]:
    """Faults named in a clean clip; of those put in, which were named, with the second or what was said instead."""
    row: dict[str, Any] = {"in clean": [fault.words for fault in find_faults(measure_frames(clean, 16))]}
    for name in faults:
        spoil, begins_s, within_s = DRIFTS[name]
        found = find_faults(measure_frames(spoil(clean), 16))
        right = [fault.name for fault in found] == [name] and begins_s <= found[0].begins_s <= begins_s + within_s
        row.setdefault("faults", {})[name] = True if right else [fault.words for fault in found]
    return row


def _camera(frames: np.ndarray, move: str) -> dict[str, Any]:
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]
    began, path = process_time(), path_of(move)
    camera = find_camera(grey, path.intrinsics[0])
    took = process_time() - began
    own = compared(camera, path)
    found = find_camera(grey)
    try:
        made = VERDICTS[compared(found, video_path(found)).follows]
    except ValueError as error:
        made = str(error)
    return {
        "own": VERDICTS[own.follows],
        "others": Counter(VERDICTS[compared(camera, path_of(other)).follows] for other in AMOUNTS if other != move),
        "registered": float(camera.registered.mean()),
        "turn off": median_errors_deg(own.found)[0],
        "direction off": median_errors_deg(own.found)[1],
        "seconds": took,
        "from-video": made,
        "focal off": float(found.lens[0] / camera.lens[0] - 1) if found.lens_found else None,
    }


def told(rows: list[dict[str, Any]]) -> list[str]:
    """The rows in words, as docs/quality.md has them."""
    said = [f"{len(rows)} clips"]
    if "own" in rows[0]:
        others: Counter = sum((Counter(row["others"]) for row in rows), Counter())
        focal = [abs(row["focal off"]) for row in rows if row["focal off"] is not None]
        said += [
            f"own path: {dict(Counter(row['own'] for row in rows))}; others: {dict(others)}",
            f"keyframes registered: {np.mean([row['registered'] for row in rows]):.1%}",
            *(
                f"{name}, median of the clips: {np.nanmedian([row[name] for row in rows]):.2f} degrees, "
                f"worst {np.nanmax([row[name] for row in rows]):.1f}"
                for name in ("turn off", "direction off")
            ),
            f"CPU seconds: {min(row['seconds'] for row in rows):.1f} to {max(row['seconds'] for row in rows):.1f}",
            f"from-video, against its own path: {dict(Counter(row['from-video'] for row in rows))}",
            f"lens found in {len(focal)}, within 5 % in {sum(off < 0.05 for off in focal)}, worst "
            f"{max(focal, default=0):.1%}",
        ]
    if "in clean" in rows[0]:
        faults = [right for row in rows for right in row.get("faults", {}).values()]
        said.append(
            f"clean clips with a warning: {sum(bool(row['in clean']) for row in rows)}; faults named, and no "
            f"other: {sum(right is True for right in faults)} of {len(faults)}"
        )
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--only", choices=("camera", "drift"), help="left out: both")
    parser.add_argument("--every", type=int, default=1, help="every so many of the sixty clips")
    parser.add_argument("--first", type=int, default=0, help="the clip to begin with")
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    what = ("camera", "drift") if asked.only is None else (asked.only,)
    numbers, rows = range(asked.first, len(CASES), asked.every), []
    with ProcessPoolExecutor(asked.processes) as pool:
        for row in pool.map(partial(evaluated, folder=asked.photos, what=what), numbers):
            rows.append(row)
            print(json.dumps(row), flush=True)
    print(*told(rows), sep="\n")


if __name__ == "__main__":
    main()
