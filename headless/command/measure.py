"""The command `lingbot-world measure VIDEO`: find the times at which a video degrades."""

import argparse
import json
from typing import Any

from .flags import add_drawing, add_measuring

HELP = """Finds the times at which a video degrades, and prints them as sentences and a table, a drawing or JSON.

Measured over time are sharpness (variance of the Laplacian over that of the grey values), colourfulness (Hasler and
Suesstrunk), brightness, red against blue, and the change from frame to frame. A warning names the second from which on
a video is less than 60 % as sharp or 70 % as colourful as in its first second, tinted, or darker. A video that decays
may also be more than 167 % as sharp or 143 % as colourful. Others name frozen stretches, flicker, seams at even
distances, and repeated stretches. The scene changes all of these figures too: a walk from a meadow into a tunnel is
less colourful, which is not a fault.

Needs OpenCV: pip install -e ".[cli,measure]"."""


def add_measure_command(subparsers: Any) -> None:
    help = "find where a video degrades: sharpness, colours, flicker, seams, repeats, frozen stretches"
    parser = add_measuring(subparsers, "measure", help, HELP, _measure)
    parser.add_argument("--fps", type=float, help="frames a second; left out: the file's, 16 for a folder")
    add_drawing(parser, "also draw all figures over time")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON instead")


def _measure(arguments: argparse.Namespace) -> None:
    from ...measure import drift  # drawing imports torch
    from ..files.drawing import check_drawing, save_drawing
    from ..files.pictures import colour_frames, frame_notes, frame_rate, naming_video

    if arguments.drawing is not None:
        check_drawing(arguments.drawing, arguments.overwrite)
    fps = frame_rate(arguments.video) if arguments.fps is None else arguments.fps
    with naming_video(arguments.video):
        figures = drift.measure_frames(colour_frames(arguments.video), fps)
    faults = drift.find_faults(figures)
    notes = [f"note: {note}" for note in frame_notes(arguments.video)]
    lines = [*notes, *drift.summary(figures, faults), "", *drift.table(figures)]
    values = {**drift.as_values(figures, faults), "notes": notes}
    print(json.dumps(values, indent=1) if arguments.json else "\n".join(lines))
    if arguments.drawing is not None:
        save_drawing(drift.render_drift(figures, faults), arguments.drawing)
