"""A camera path as a drawing, and in words what the model will not follow."""

from .advice import hints, warnings
from .render import render_preview

__all__ = ["hints", "render_preview", "warnings"]
