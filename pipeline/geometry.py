"""The size of a video in pixels and latent pixels, and the conditioning by its first image."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..camera import frame_count
from ..errors import InputError
from ..options import CELL, CHUNK

PATCH = 2  # latent cells of a token, each way
STEP = CELL * PATCH
LARGEST_SIDE = 8192


@dataclass(frozen=True)
class Geometry:
    """The size of a video in pixels and frames. Its latent has `lat_f` frames of `lat_h` x `lat_w` latent pixels."""

    height: int
    width: int
    frames: int

    @property
    def lat_h(self) -> int:
        return self.height // CELL

    @property
    def lat_w(self) -> int:
        return self.width // CELL

    @property
    def lat_f(self) -> int:
        return (self.frames - 1) // 4 + 1

    @property
    def tokens(self) -> int:
        """The number of the transformer's tokens: one per patch of 2x2 latent pixels in each latent frame."""
        return self.lat_f * self.lat_h * self.lat_w // PATCH**2


def output_geometry(
    image_width: int, image_height: int, max_area: int, frames: int, n_poses: int | None = None, *, chunk: int = 1
) -> Geometry:
    """Return a video's size by the official rule: the image's aspect ratio on at most `max_area` pixels, with sides
    rounded down to multiples of 16.

    frames: the maximum number of frames. The result has 4n+1 frames, which are n+1 latent frames.
    n_poses: the number of camera poses. The result has no more frames than poses; None: no limit.
    chunk: the number of latent frames per chunk. The result's latent frames fill whole chunks.

    Raises InputError for a side that is too small or too large, CameraError for too few poses or frames.
    """
    aspect = image_height / image_width
    height, width = (int(side // STEP) * STEP for side in (np.sqrt(max_area * aspect), np.sqrt(max_area / aspect)))
    if not all(STEP <= side <= LARGEST_SIDE for side in (width, height)):
        raise InputError(
            f"an image of {image_width}x{image_height} on an area of {max_area} pixels gives a {width}x{height} video; "
            "crop the image, change the area, or name width and height"
        )
    return Geometry(height, width, frame_count(frames, n_poses, chunk))


def explicit_geometry(width: int, height: int, frames: int, n_poses: int | None = None, *, chunk: int = 1) -> Geometry:
    """Return the size and length of a video of exactly `width` x `height` pixels.

    width, height: multiples of 16.
    frames: the maximum number of frames. The result has 4n+1 frames, which are n+1 latent frames.
    n_poses: the number of camera poses. The result has no more frames than poses; None: no limit.
    chunk: the number of latent frames per chunk. The result's latent frames fill whole chunks.

    Raises InputError for an invalid side, CameraError for too few poses or frames.
    """
    for name, side in (("width", width), ("height", height)):
        if side % STEP or not STEP <= side <= LARGEST_SIDE:
            nearest = min(max(round(side / STEP), 1) * STEP, LARGEST_SIDE)
            raise InputError(f"{name} {side} is not a multiple of {STEP} from {STEP} to {LARGEST_SIDE}; try {nearest}")
    return Geometry(height, width, frame_count(frames, n_poses, chunk))


def first_frame(image: np.ndarray, geometry: Geometry) -> Tensor:
    """Return an image, uint8 [H, W, 3], stretched to the video's size: float32 [3, height, width], -1 to 1. Bicubic
    resampling may exceed this range."""
    own = np.require(image, requirements=["C_CONTIGUOUS", "WRITEABLE"])  # torch warns about memory that is not writable
    pixels = torch.from_numpy(own).permute(2, 0, 1)[None].float()
    size = geometry.height, geometry.width
    return F.interpolate(pixels / 255 * 2 - 1, size=size, mode="bicubic", align_corners=False)[0]


def image_conditioning(image_latent: Tensor) -> Tensor:
    """Return a video's conditioning [1, 20, f, h, w]: four mask channels, which are 1 in the first latent frame and
    else 0, and the image latent."""
    return next(chunk_conditioning(image_latent, image_latent.shape[2]))


def chunk_conditioning(image: Tensor, chunk: int = CHUNK) -> Iterator[Tensor]:
    """Yield one conditioning, [1, 20, chunk, h, w], for each chunk, without end. It has 4 mask channels and 16 channels
    of `image`, a latent [1, 16, n, h, w]. After the n frames of `image`, the last one is repeated."""
    mask = torch.zeros_like(image[:, :4, :1])
    for first in count(0, chunk):
        indices = range(first, first + chunk)
        masks = torch.cat([mask + (index == 0) for index in indices], dim=2)
        frames = torch.stack([image[:, :, min(index, image.shape[2] - 1)] for index in indices], dim=2)
        yield torch.cat([masks, frames], dim=1)
