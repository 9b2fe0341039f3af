"""The preview image of a camera path, with warnings."""

from .render import render_preview

__all__ = ["render_preview"]
