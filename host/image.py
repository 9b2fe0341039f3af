"""The start image (ComfyUI's IMAGE [B, H, W, C], 0..1) at the size of the video."""

import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from ..geometry import Geometry, explicit_geometry, output_geometry

AREAS = {"480*832": 480 * 832, "720*1280": 720 * 1280, "240*416": 240 * 416}
EXPLICIT = "width and height"
FITS = ("stretch", "crop", "pad")
ONE_FRAME = 1


def target_geometry(image: Tensor, size: str, width: int, height: int) -> Geometry:
    """The video's size: for a named area by the official rule from the image, else `width` and `height`. InputError."""
    if size == EXPLICIT:
        return explicit_geometry(width, height, ONE_FRAME)
    if size not in AREAS:
        raise InputError(f"size is {size!r}, expected one of {', '.join([*AREAS, EXPLICIT])}")
    return output_geometry(image.shape[2], image.shape[1], AREAS[size], ONE_FRAME)


def fit_image(image: Tensor, geometry: Geometry, fit: str) -> Tensor:
    """An IMAGE [B, H, W, C] as [B, geometry.height, geometry.width, 3].

    "stretch" is the official resize: bicubic (a = -0.75), no antialiasing, not clamped. "crop" fills the frame and cuts
    what is outside, "pad" shows the whole image on black; both keep the aspect ratio and antialias. InputError.
    """
    if fit not in FITS:
        raise InputError(f"fit is {fit!r}, expected one of {', '.join(FITS)}")
    pixels = image[..., :3].movedim(-1, 1).float()
    if fit == "stretch":
        resized = _bicubic(pixels, geometry.height, geometry.width, antialias=False)
    else:
        resized = _centred(pixels, geometry, cover=fit == "crop")
    return resized.movedim(1, -1).contiguous()


def _bicubic(pixels: Tensor, height: int, width: int, *, antialias: bool) -> Tensor:
    return F.interpolate(pixels, size=(height, width), mode="bicubic", align_corners=False, antialias=antialias)


def _centred(pixels: Tensor, geometry: Geometry, *, cover: bool) -> Tensor:
    ratios = geometry.height / pixels.shape[-2], geometry.width / pixels.shape[-1]
    scale = max(ratios) if cover else min(ratios)
    height, width = (max(1, round(side * scale)) for side in pixels.shape[-2:])
    resized = _bicubic(pixels, height, width, antialias=True).clamp(0, 1)
    top, left = (geometry.height - height) // 2, (geometry.width - width) // 2
    bottom, right = geometry.height - height - top, geometry.width - width - left
    return F.pad(resized, (left, right, top, bottom))
