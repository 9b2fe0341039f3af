"""Whether a video drifts: figures of every frame, what they say over time, a picture, a table."""

from .faults import Fault, find_faults
from .figures import Figures, measure_frames
from .report import as_values, render_drift, table, words

__all__ = ["Fault", "Figures", "as_values", "find_faults", "measure_frames", "render_drift", "table", "words"]
