"""The version of this package. pyproject.toml repeats it for ComfyUI's registry."""

__version__ = "1.0.0"
