"""The preview image of a camera path, with warnings about motion that the model will not follow."""

from .render import render_preview

__all__ = ["render_preview"]
