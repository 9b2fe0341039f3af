"""Conversion of images for nodes. An IMAGE is [B, H, W, C] with values 0 to 1."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ...errors import InputError
from ...pipeline.geometry import Geometry, explicit_geometry, output_geometry
from ...pipeline.images.files import BACKGROUND, picture_of

AREAS = {
    "832x480, in the image's shape": 832 * 480,
    "1280x720, in the image's shape": 1280 * 720,
    "416x240, in the image's shape": 416 * 240,
}
"""The choices of the size input that set only the video's area, in pixels. The image gives the aspect ratio."""
PRESETS = {
    "16:9 (832x480)": (832, 480),
    "9:16 (480x832)": (480, 832),
    "1:1 (624x624)": (624, 624),
    "16:9 (1280x720)": (1280, 720),
    "9:16 (720x1280)": (720, 1280),
    "1:1 (960x960)": (960, 960),
}
"""The fixed sizes that the size input offers, each with the video's (width, height) in pixels. The image's aspect ratio
does not change these sizes."""
EXPLICIT = "width and height"
SIZES = (*AREAS, *PRESETS, EXPLICIT)
FORMER_SIZES = {"480*832": 832 * 480, "720*1280": 1280 * 720, "240*416": 416 * 240}
"""The size choices of earlier versions, which saved workflows may contain, each with the video's area in pixels."""
FITS = ("stretch", "crop", "pad")
ONE_FRAME = 1


def read_image(path: Path) -> Tensor:
    """Return an image file as an IMAGE: float32 [1, H, W, 3], values 0 to 1."""
    return to_image(picture_of(path).pixels)


def to_image(picture: Image.Image | np.ndarray) -> Tensor:
    """Return an RGB image, uint8 [H, W, 3], as an IMAGE: float32 [1, H, W, 3], values 0 to 1."""
    return torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255)[None]


def pixels(image: Tensor) -> np.ndarray:
    """Return one image [H, W, C] with values 0 to 1 as uint8 [H, W, 3]. An alpha channel is dropped."""
    return (image[..., :3].clamp(0, 1) * 255).byte().cpu().numpy()


def target_geometry(image: Tensor, size: str, width: int, height: int) -> Geometry:
    """Return the video's size for a choice `size`. `width` and `height` are used only for EXPLICIT. `image` is used
    only for a choice in AREAS or FORMER_SIZES. Raise InputError for an unknown choice."""
    check_size(size)
    if area := (AREAS | FORMER_SIZES).get(size):
        return output_geometry(image.shape[2], image.shape[1], area, ONE_FRAME)
    return explicit_geometry(*PRESETS.get(size, (width, height)), ONE_FRAME)


def check_size(size: str) -> None:
    """Raise InputError if `size` is neither in SIZES nor in FORMER_SIZES."""
    if size not in SIZES and size not in FORMER_SIZES:
        raise InputError(f"size is {size!r}, expected one of: {'; '.join(SIZES)}")


def fit_image(image: Tensor, geometry: Geometry, fit: str) -> Tensor:
    """Return an IMAGE resized to [B, geometry.height, geometry.width, 3]. `fit` is "stretch", "crop" or "pad" (with
    black bars). Raise InputError for another `fit`."""
    if fit not in FITS:
        raise InputError(f"fit is {fit!r}, expected one of {', '.join(FITS)}")
    pixels = _opaque(image.float()).movedim(-1, 1)
    height, width = size = geometry.height, geometry.width
    if fit != "stretch":
        ratios = height / pixels.shape[-2], width / pixels.shape[-1]
        scale = max(ratios) if fit == "crop" else min(ratios)
        size = tuple(max(1, round(side * scale)) for side in pixels.shape[-2:])
    resized = F.interpolate(pixels, size, mode="bicubic", align_corners=False, antialias=fit != "stretch")
    if fit != "stretch":
        top, left = (height - size[0]) // 2, (width - size[1]) // 2
        resized = F.pad(resized.clamp(0, 1), (left, width - size[1] - left, top, height - size[0] - top))
    return resized.movedim(1, -1).contiguous()


def _opaque(image: Tensor) -> Tensor:
    """Return an IMAGE [B, H, W, 3], its transparent pixels blended with white."""
    if image.shape[-1] != 4:
        return image[..., :3]
    alpha = image[..., 3:].clamp(0, 1)
    return image[..., :3] * alpha + BACKGROUND / 255 * (1 - alpha)
