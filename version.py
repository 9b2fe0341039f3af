"""The version of this package, stated once; pyproject.toml has the same, for ComfyUI's registry."""

__version__ = "1.0.0"
