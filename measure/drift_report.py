"""Reports on a video's drift: a chart, a table, messages, and values for JSON."""

from typing import Any

import numpy as np
from PIL import Image

from ..camera.preview import drawing
from ..camera.preview.sheet import Sheet
from .drift_faults import Fault
from .drift_metrics import FrameMetrics

HEADER = "  second   sharpness   colourfulness   brightness   red - blue   change"


def summary(metrics: FrameMetrics, faults: list[Fault]) -> list[str]:
    """Return a message for each fault, or one message that no drift was found."""
    seconds = len(metrics) / metrics.fps
    return [fault.words for fault in faults] or [f"No drift found in {len(metrics)} frames, {seconds:.1f} s."]


def table(metrics: FrameMetrics) -> list[str]:
    """Return the lines of a table: a header, and the mean metrics of each second."""
    values = np.stack([values for _, values in _series(metrics)], 1)
    seconds = (np.arange(len(metrics)) / metrics.fps).astype(int)
    rows = [(int(second), values[seconds == second].mean(0)) for second in np.unique(seconds)]
    first = max(rows[0][1][0], 1e-9)
    lines = [
        f"  {second:6d} {row[0] / first:10.0%} {row[1]:15.1f} {row[2]:12.1f} {row[3]:12.1f} {row[4]:8.2f}"
        for second, row in rows
    ]
    return [HEADER, *lines]


def as_values(metrics: FrameMetrics, faults: list[Fault]) -> dict[str, Any]:
    """Return the metrics of each frame and the faults as a dict for JSON."""
    return {
        "frames": len(metrics),
        "fps": metrics.fps,
        "warnings": [fault._asdict() for fault in faults],
        **{name: values.tolist() for name, values in _series(metrics)},
    }


def render_drift(metrics: FrameMetrics, faults: list[Fault], size: tuple[int, int] = (800, 500)) -> Image.Image:
    """Return an RGB chart of each metric over time. The messages of `faults` are listed below the chart. `size` is
    width and height in pixels. Raises InputError for an invalid size."""
    sheet = Sheet(size)
    sheet.header(f"{len(metrics)} frames, {len(metrics) / metrics.fps:.1f} s", "left to right: the video's time")
    columns = 120  # as many as are distinguishable
    for number, (name, values) in enumerate(_series(metrics)):
        parts = [part.mean() for part in np.array_split(values, min(columns, len(values)))]
        rows, side = (number // 2 / 3, (number // 2 + 1) / 3), (0.5 * (number % 2), 0.5 * (number % 2) + 0.5)
        title = f"{name}: {values.min():.3g} to {values.max():.3g}"
        least = min(0.0, *parts)
        sheet.chart(side, rows, title, np.array(parts) - least, float(max(parts) - least) or 1.0, drawing.STEP)
    color = drawing.WARNING if faults else drawing.START
    sheet.footer([(sentence, color) for sentence in summary(metrics, faults)], "more in the text output")
    return sheet.to_image()


def _series(metrics: FrameMetrics) -> list[tuple[str, np.ndarray]]:
    looks = [(name, getattr(metrics, name)) for name in ("sharpness", "colourfulness", "brightness")]
    return [*looks, ("hue", metrics.tint), ("change", metrics.change)]
