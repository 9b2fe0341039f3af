"""The size of a video in pixels and in latent pixels, and the conversion of an image to the video's first frame."""

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
        """The number of tokens of the video in the transformer: one for each 2x2 latent pixels of a frame."""
        return self.lat_f * self.lat_h * self.lat_w // PATCH**2


def output_geometry(
    image_width: int, image_height: int, max_area: int, frames: int, n_poses: int | None = None, *, chunk: int = 1
) -> Geometry:
    """Return a video's size by the official rule: the image's aspect ratio on at most `max_area` pixels.

    Sides are rounded down to multiples of 16. An image of 832x480 with a `max_area` of 480*832 gives a height of 464,
    as in the official code, because the computed height is 479.99999999999994.

    The video has 4n+1 frames: at most `frames`, and at most `n_poses`, the number of camera poses (None: no limit). Its
    n+1 latent frames are a multiple of `chunk`.

    Raises InputError if a side is too small or too large. Raises CameraError for fewer than five poses, and if the
    frames do not fill a chunk.
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
    """Return a video's size with the given `width` and `height`, both multiples of 16.

    `frames`, `n_poses` and `chunk` are as in `output_geometry`. Raises InputError for a side that is too small, too
    large or not a multiple of 16. Raises CameraError for fewer than five poses, and if the frames do not fill a chunk.
    """
    for name, side in (("width", width), ("height", height)):
        if side % STEP or not STEP <= side <= LARGEST_SIDE:
            nearest = min(max(round(side / STEP), 1) * STEP, LARGEST_SIDE)
            raise InputError(f"{name} {side} is not a multiple of {STEP} from {STEP} to {LARGEST_SIDE}; try {nearest}")
    return Geometry(height, width, frame_count(frames, n_poses, chunk))


def first_frame(image: np.ndarray, geometry: Geometry) -> Tensor:
    """Return an image, uint8 [H, W, 3], stretched to the video's size: float32 [3, height, width], about -1 to 1. The
    resize is bicubic (a = -0.75) without antialiasing, as in the official code. Values are not clamped, so some may lie
    slightly outside of -1 to 1."""
    own = np.require(image, requirements=["C_CONTIGUOUS", "WRITEABLE"])  # torch warns about memory that is not writable
    pixels = torch.from_numpy(own).permute(2, 0, 1)[None].float()
    size = geometry.height, geometry.width
    return F.interpolate(pixels / 255 * 2 - 1, size=size, mode="bicubic", align_corners=False)[0]


def image_conditioning(image_latent: Tensor) -> Tensor:
    """Return the conditioning `y` [1, 20, f, h, w] of a whole video: four mask channels, then the image latent
    [1, 16, f, h, w]. The mask is 1 in the first latent frame and 0 in all others."""
    return next(chunk_conditioning(image_latent, image_latent.shape[2]))


def chunk_conditioning(image: Tensor, chunk: int = CHUNK) -> Iterator[Tensor]:
    """Yield the conditioning `y` [1, 20, chunk, h, w] of each chunk (see `image_conditioning`). The iterator has no
    end.

    `image` [1, 16, n, h, w] is the latent of the start image followed by grey frames. If the video is longer than n
    latent frames, the last one of `image` is repeated.
    """
    mask = torch.zeros_like(image[:, :4, :1])
    for first in count(0, chunk):
        indices = range(first, first + chunk)
        masks = torch.cat([mask + (index == 0) for index in indices], dim=2)
        frames = torch.stack([image[:, :, min(index, image.shape[2] - 1)] for index in indices], dim=2)
        yield torch.cat([masks, frames], dim=1)
