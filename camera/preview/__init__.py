"""A camera path as a drawing, with what the model will not follow in words."""

from .render import render_preview

__all__ = ["render_preview"]
