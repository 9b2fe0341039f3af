"""Camera files of other programs, read into paths and written from them."""

from .files import FORMATS, read_camera, write_camera

__all__ = ["FORMATS", "read_camera", "write_camera"]
