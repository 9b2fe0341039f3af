"""What the camera layers of each block make of a camera, kept between steps on GPUs with room for it."""

import torch
from torch import Tensor

Affine = tuple[Tensor, Tensor]


class CameraCache:
    """Scale and shift ([rows, tokens, dim] each) of every block, for the camera they were made from.

    They depend on neither timestep, latent nor prompt. Give one cache per expert, as `options["camera_cache"]`; the
    model fills it in the first step. Another camera empties it. Once `limit_bytes` are held, further blocks are
    computed in every step as without a cache. At 480x832x81 an expert needs 26.8 GB (`memory.camera_cache_bytes`)."""

    def __init__(self, limit_bytes: int | None = None):
        self.limit_bytes = limit_bytes
        self.clear()

    def attach(self, camera: Tensor) -> None:
        """Keep what is held if it was made from this camera, by value; else forget it."""
        if self._camera is None or not _same(self._camera, camera):
            self.clear()
            self._camera = camera.clone()

    def clear(self) -> None:
        """Free everything held."""
        self._camera: Tensor | None = None
        self._blocks: dict[int, Affine] = {}
        self.nbytes = 0

    def get(self, block: int) -> Affine | None:
        """Scale and shift of a block, if they are held."""
        return self._blocks.get(block)

    def has_room(self, tokens: Tensor) -> bool:
        """Whether scale and shift of one more block, each the size of `tokens`, stay within the limit."""
        return self.limit_bytes is None or self.nbytes + 2 * tokens.nbytes <= self.limit_bytes

    def put(self, block: int, affine: Affine) -> None:
        """Hold a block's scale and shift."""
        self._blocks[block] = affine
        self.nbytes += sum(tensor.nbytes for tensor in affine)

    def holds(self, blocks: int) -> bool:
        """Whether the first `blocks` blocks are all here, so that the camera's tokens are not needed any more."""
        return all(index in self._blocks for index in range(blocks))


def _same(left: Tensor, right: Tensor) -> bool:
    alike = left.shape == right.shape and left.dtype == right.dtype and left.device == right.device
    return alike and torch.equal(left, right)
