"""The walks (steered videos) of a session, one after the other, each in its own folder."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from ..errors import InputError, LingBotError
from ..model.host_memory import give_back_memory
from ..outputs import lock_output
from ..pipeline.state import WorldState
from .engine import Start, WalkVideo
from .folder.reading import write_state_and_camera
from .folder.settings import SETTINGS_FILE
from .walk import Walk

log = logging.getLogger(__name__)
MakeWalk = Callable[[Start | WorldState, Path], Walk]
"""The type of a function make(begin, folder) that returns a new Walk, saved in `folder`."""
ReportUnsaved = Callable[[str], None]
"""A callback report(reason) for a walk (a steered video) that could not be saved completely."""
VIDEO, PREVIEW = "walk.mp4", "walk.preview.mp4"
"""The names of a walk's video from the VAE, and of its temporary video from a tiny decoder."""


class Walks:
    """The walks (steered videos) of a session, one after the other.

    current: the current walk, or None.
    video: the video file of the current walk, or None.
    """

    def __init__(
        self, make: MakeWalk, folder: str | Path | None, *, whole: bool, fps: float, report_video: ReportUnsaved
    ) -> None:
        """Prepare to save walks in `folder` or, if None, in a temporary folder without videos.

        make: creates each Walk, from its start and its folder.
        whole: whether each walk's folder also gets a state and a camera path.
        fps: the frame rate of the video files.
        report_video: called with the reason if a video file is incomplete.
        """
        self._make, self.whole, self._fps, self._report_video = make, whole, fps, report_video
        self.video: WalkVideo | None = None
        self._temporary = tempfile.TemporaryDirectory(prefix="lingbot-live-") if folder is None else None
        self._folder = Path(self._temporary.name if self._temporary else str(folder))
        self._writer = ThreadPoolExecutor(1, "lingbot-keeping")
        self._number = 0
        self.current: Walk | None = None
        self._lock = ExitStack()  # the current walk's lock: `--keep` deletes no locked walk

    def begin(self, start: Start | WorldState, report: ReportUnsaved) -> Walk:
        """End the current walk, begin another at `start`, and return the new walk. `report` is called with the reason
        if a file of the ended walk cannot be written."""
        self._end(report)
        folder = self._own_folder()
        try:
            with suppress(InputError, NotImplementedError):  # a drive without locks
                self._lock.enter_context(lock_output(folder / SETTINGS_FILE))
            self.current = self._make(start, folder)
        except BaseException:
            self._lock.close()
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()
            raise
        give_back_memory()  # frees the memory of a large image
        name = VIDEO if self.current.engine.new_tiny_decoder is None else PREVIEW
        self.video = None if self._temporary else _open_video(self.current, name, self._fps, self._report_video)
        return self.current

    def _own_folder(self) -> Path:
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

    def _end(self, report: ReportUnsaved) -> None:
        walk, video, self.current, self.video = self.current, self.video, None, None
        if walk is None:
            return
        walk.close()
        if walk.engine.device.type == "cuda":
            torch.cuda.empty_cache()
        self._writer.submit(_write, walk, video, self.whole, self._fps, report, self._lock)
        self._lock = ExitStack()

    def close(self, report: ReportUnsaved) -> None:
        """End the current walk, and wait for the files of all walks. `report` is called with the reason of a failed
        write."""
        self._end(report)
        self._writer.shutdown()
        if self._temporary is not None:
            self._temporary.cleanup()


def _open_video(walk: Walk, name: str, fps: float, report: ReportUnsaved) -> WalkVideo | None:
    record = walk.engine.record
    return None if record is None else record(walk.store.folder / name, fps, walk.frames, report)


def _write(
    walk: Walk, video: WalkVideo | None, whole: bool, fps: float, report: ReportUnsaved, lock: ExitStack
) -> None:
    try:
        if video is not None:
            video.close()
        if whole and walk.store.chunks:
            write_state_and_camera(walk.store.folder)
        if video is not None and walk.engine.new_tiny_decoder is not None and walk.store.chunks:
            _decode_again(walk, fps, report)
    except LingBotError as error:
        report(str(error))
    finally:
        lock.close()


def _decode_again(walk: Walk, fps: float, report: ReportUnsaved) -> None:
    log.info("The VAE decodes the walk in %s.", walk.store.folder)
    for exact in (False, True):
        walk.frames = walk.frames_before
        video = _open_video(walk, VIDEO, fps, report)
        assert video is not None  # the preview exists, so videos are on
        try:
            for frames in walk.decode_again(exact=exact):
                video.add(frames, wait=True)
        except OverflowError as error:
            log.warning("The walk is decoded again in fp32: %s.", error)
        else:
            (walk.store.folder / PREVIEW).unlink(missing_ok=True)
            return
        finally:
            video.close()
