"""The version of this package. pyproject.toml repeats the version for ComfyUI's registry."""

__version__ = "1.0.0"
