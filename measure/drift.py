"""Measurement of a video's drift: metrics of each frame, the faults found in them, a chart and a table. The parts are
in drift_figures.py, drift_faults.py and drift_report.py."""

from .drift_faults import Fault, find_faults
from .drift_figures import Figures, measure_frames
from .drift_report import as_values, render_drift, table, words

__all__ = ["Fault", "Figures", "as_values", "find_faults", "measure_frames", "render_drift", "table", "words"]
