"""What the camera layers of each block make of a camera, kept between steps on GPUs with room for it."""

import torch
from torch import Tensor

Affine = tuple[Tensor, Tensor]

PATIENCE = 2
"""A cache that was filled this often for nothing stays empty."""


class CameraCache:
    """Scale and shift ([rows, tokens, dim] each) of every block, for the camera they were made from.

    They depend on neither timestep, latent nor prompt. Give one cache per expert, as `options["camera_cache"]`; the
    model fills it in the first step. Another camera empties it; where cameras take turns, so that nothing is ever read
    again, it gives up (`useful`). Once `limit_bytes` of scales and shifts are held, further blocks are computed in
    every step as without a cache. At 480x832x81 an expert needs 26.8 GB (`memory.camera_cache_bytes`)."""

    def __init__(self, limit_bytes: float | None = None):
        self.limit_bytes, self._wasted = limit_bytes, 0
        self._forget()

    @property
    def useful(self) -> bool:
        """Whether there is any point in filling it."""
        return self._wasted < PATIENCE

    def attach(self, camera: Tensor) -> bool:
        """Keep what is held if it was made from this camera, by value; else forget it. Returns whether the cache is
        to be used."""
        if self._camera is not None and _same(self._camera, camera):
            return True
        self.clear()
        if self.useful:
            self._camera = camera.clone()
        return self.useful

    def clear(self) -> int:
        """Free everything held; returns how many bytes of scales and shifts that were."""
        freed = self.nbytes
        if freed and not self._read:
            self._wasted += 1
        self._forget()
        return freed

    def give_up(self) -> bool:
        """Free everything and stay empty from now on; returns whether that changed anything."""
        changed = self._camera is not None
        self._forget()
        self._wasted = PATIENCE
        return changed

    def get(self, block: int) -> Affine | None:
        """Scale and shift of a block, if they are held."""
        kept = self._blocks.get(block)
        self._read |= kept is not None
        return kept

    def has_room(self, tokens: Tensor) -> bool:
        """Whether scale and shift of one more block, each the size of `tokens`, stay within the limit. A cache that
        was emptied in the middle of a step has none before the next one."""
        if self._camera is None:
            return False
        return self.limit_bytes is None or self.nbytes + 2 * tokens.nbytes <= self.limit_bytes

    def put(self, block: int, affine: Affine) -> None:
        """Hold a block's scale and shift."""
        self._blocks[block] = affine
        self.nbytes += sum(tensor.nbytes for tensor in affine)

    def _forget(self) -> None:
        self._camera: Tensor | None = None
        self.tokens: Tensor | None = None  # the camera's, [rows, tokens, dim]; put here by the model
        self._blocks: dict[int, Affine] = {}
        self._read, self.nbytes = False, 0


def _same(left: Tensor, right: Tensor) -> bool:
    alike = left.shape == right.shape and left.dtype == right.dtype and left.device == right.device
    return alike and torch.equal(left, right)
