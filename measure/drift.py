"""Measurement of a video's drift: metrics of each frame, faults found in the metrics, a chart and a table."""

from .drift_faults import Fault, find_faults
from .drift_metrics import FrameMetrics, measure_frames
from .drift_report import as_values, render_drift, summary, table

__all__ = ["Fault", "FrameMetrics", "as_values", "find_faults", "measure_frames", "render_drift", "summary", "table"]
