"""The walks of a session, one after the other, each in a folder of its own."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from ..errors import InputError, LingBotError
from ..model.host_memory import give_back_memory
from ..pipeline.state import WorldState
from .engine import Start, WalkVideo
from .kept import save_whole
from .walk import Walk

log = logging.getLogger(__name__)

Make = Callable[[Start | WorldState, Path], Walk]
"""make(begin, folder) -> a walk that is kept there."""
Tell = Callable[[str], None]
"""Told why what was walked could not be written."""


VIDEO, PREVIEW = "walk.mp4", "walk.preview.mp4"
"""A walk's video; while its frames are a preview by the tiny decoder, these are kept under the other name."""


class Walks:
    """One walk at most is there at a time: `now`, with its `video` where one is made. What one leaves behind is written
    by a thread of its own while the next one is walked."""

    def __init__(self, make: Make, folder: str | Path | None, *, whole: bool, fps: float, tell_video: Tell) -> None:
        """In `folder`, or a temporary one if it is None, without a video. `whole`: of each walk that ends a state and a
        camera path are written too. `fps`: of the videos, which log what they
        tell."""
        self._make, self.whole, self._fps, self._tell_video = make, whole, fps, tell_video
        self.video: WalkVideo | None = None
        self._temporary = tempfile.TemporaryDirectory(prefix="lingbot-live-") if folder is None else None
        self._folder = Path(self._temporary.name if self._temporary else str(folder))
        self._writer = ThreadPoolExecutor(1, "lingbot-keeping")
        self._number = 0
        self.now: Walk | None = None

    def begin(self, start: Start | WorldState, tell: Tell) -> Walk:
        """Another walk in place of that of now. Raises InputError; then there is none."""
        self._end(tell)
        folder = self._own_folder()
        try:
            self.now = self._make(start, folder)
        except BaseException:
            with suppress(OSError):  # it is not empty
                folder.rmdir()
            raise
        give_back_memory()  # that of a large picture
        self.video = None if self._temporary else _new_video(self.now, self._fps, self._tell_video)
        return self.now

    def _own_folder(self) -> Path:
        """A folder that nobody else has: another process may begin a walk at the same time."""
        while True:
            self._number += 1
            folder = self._folder / f"walk-{self._number}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise InputError(f"the walk cannot be kept in {folder}: {error.strerror}") from error
            return folder

    def _end(self, tell: Tell) -> None:
        """Its memory is given back before what was walked is written, and before there is a new world."""
        walk, video, self.now, self.video = self.now, self.video, None, None
        if walk is None:
            return
        walk.close()
        if walk.engine.device.type == "cuda":
            torch.cuda.empty_cache()
        self._writer.submit(_write, walk, video, self.whole, self._fps, tell)

    def close(self, tell: Tell) -> None:
        """There is no walk any more, and all is written."""
        self._end(tell)
        self._writer.shutdown()
        if self._temporary is not None:
            self._temporary.cleanup()


def _new_video(walk: Walk, fps: float, tell: Tell, *, preview: bool = True) -> WalkVideo | None:
    """A video of the frames that come, or (not `preview`) of those that the VAE decodes later."""
    engine = walk.engine
    name = PREVIEW if preview and engine.new_preview is not None else VIDEO
    return None if engine.record is None else engine.record(walk.kept.folder / name, fps, walk.frames, tell)


def _write(walk: Walk, video: WalkVideo | None, whole: bool, fps: float, tell: Tell) -> None:
    """Write what a walk leaves beside what was kept while it was made."""
    try:
        if video is not None:
            video.close()
        if whole and walk.kept.chunks:
            save_whole(walk.kept.folder)
        if video is not None and walk.engine.new_preview is not None and walk.kept.chunks:
            _decode_again(walk, fps, tell)
    except LingBotError as error:
        tell(str(error))


def _decode_again(walk: Walk, fps: float, tell: Tell) -> None:
    """Write the video of a walk by the VAE in place of the preview by the tiny decoder."""
    log.info("The VAE decodes the walk in %s.", walk.kept.folder)
    for exact in (False, True):
        walk.frames = walk.frames_before
        video = _new_video(walk, fps, tell, preview=False)
        assert video is not None  # there was one of the preview
        try:
            for frames in walk.decode_again(exact=exact):
                video.add(frames, wait=True)
        except OverflowError as error:
            log.warning("The walk is decoded again in fp32: %s.", error)
        else:
            (walk.kept.folder / PREVIEW).unlink(missing_ok=True)
            return
        finally:
            video.close()
