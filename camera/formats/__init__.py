"""Camera files of other programs: read into paths, and written from them."""

from ..conventions import CONVENTIONS
from .files import FORMATS, check_written, read_camera, write_camera

__all__ = ["CONVENTIONS", "FORMATS", "check_written", "read_camera", "write_camera"]
