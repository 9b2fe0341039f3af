"""The frames of a walk (a steered video) for the node's output."""

from __future__ import annotations

import logging

import comfy.model_management as management
import torch
from torch import Tensor

from ...errors import InputError
from ...live import Frames, Session
from ...live.store import WalkStore
from ..prompt.notice import show_warning


class Album:
    """A collection of a walk's frames. If the user goes back in the video, the later frames are removed."""

    def __init__(self) -> None:
        self._parts: list[Frames] = []

    @property
    def frames(self) -> int:
        return sum(len(part.pixels) for part in self._parts)

    def add(self, frames: Frames) -> None:
        self._parts.append(frames)

    def cut(self, chunks: int) -> None:
        self._parts = [part for part in self._parts if part.chunk < chunks]

    def images(self) -> Tensor:
        """Return all frames as an IMAGE, float32 [n, H, W, 3], values 0 to 1."""
        images, first = torch.empty(self.frames, *self._parts[0].pixels.shape[1:]), 0
        for part in self._parts:
            images[first : first + len(part.pixels)] = torch.from_numpy(part.pixels)
            first += len(part.pixels)
        return images.div_(255)


def decode_with_vae(session: Session) -> Album:
    """Decode all frames of the walk with the VAE, because the frames shown so far came from a tiny decoder."""
    for exact in (False, True):
        album = Album()
        try:
            for frames in session.walk.decode_again(exact=exact):
                management.throw_exception_if_processing_interrupted()
                album.add(frames)
        except OverflowError as error:
            logging.warning("The walk is decoded again in fp32: %s.", error)
        else:
            break
    return album


def cut_to_saved(album: Album, store: WalkStore) -> None:
    """Remove the frames that could not be saved, with a warning. Raise InputError if none was saved."""
    made = album.frames
    album.cut(store.chunks)
    if not album.frames:
        raise InputError(f"there is nothing to hand out: {store.failure}")
    show_warning(f"Of {made} frames the first {album.frames} are output: {store.failure}.")
