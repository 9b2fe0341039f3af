"""Readers and writers of other programs' camera files."""

from ..conventions import CONVENTIONS
from .files import FORMATS, check_camera_output, read_camera, write_camera

__all__ = ["CONVENTIONS", "FORMATS", "check_camera_output", "read_camera", "write_camera"]
