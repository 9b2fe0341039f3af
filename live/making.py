"""The base class of a session, which makes the chunks of a walk (a steered video)."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Condition, Thread, current_thread
from typing import Any

import torch

from ..errors import InputError, LingBotError
from ..model.host_memory import give_back_memory
from ..options import FPS
from .controls import FRAMES_PER_LATENT, Controls, ControlsMixin
from .engine import Engine, WalkVideo
from .folder.replay import Replay
from .pace import Pace
from .shown.decoding import DecodingThread
from .shown.frames import Frames
from .walk import Walk
from .walks import Walks
from .worlds import stuck
from .worlds.drift import HINT, DriftWatch

log = logging.getLogger(__name__)
WATCH_SECONDS = 0.2
"""`Session.run` calls the callback `watch` at least once in this many seconds while waiting for a chunk."""
CHUNKS_PER_RELEASE = 64
"""The interval, in chunks, at which freed memory is returned to the operating system on a CPU."""
QUIET_SECONDS = 10.0
"""The seconds without input after which a session makes chunks at half the playback rate. This requires `moving`:
chunks are made while the camera rests."""
Deliver = Callable[[Frames], None]
EventCallback = Callable[[str, dict[str, Any]], None]
"""A callback tell(kind, facts) for the events of a session. These are the kinds, with the entries of the dict `facts`:

prompt: `text`, the new prompt, and `events`, the active world events.
events: `events`, the active world events.
paused, resumed, ended: no entries.
restarted: `folder`, the folder of the new walk.
still: `still`, whether the session waits for an input.
drift, stuck: `reason`, a message.
kept: despite its name, a file could not be saved; `reason` says why.
found: `seconds`, the video's length when the camera reached the crate on the world's map.
back: `chunk`, the number of chunks that remain after a return to an earlier chunk.
failed: `what` (walk, command or prompt), `reason`, and `ended`, whether the walk has ended.
"""


class ChunkMaker(ControlsMixin):
    """The base class of sessions, which make walks (steered videos) chunk by chunk. A subclass must set `_walks`, the
    Walks object that begins and ends them.

    moving: whether chunks are made even while the camera rests without input.
    restart_on_drift: whether a new walk begins when the video degrades.
    stop_when_stuck: whether held walking keys are ignored while the camera is stuck.
    failure: the error that has ended the walk, or an empty string.
    """

    _walks: Walks

    def __init__(self, engine: Engine, controls: Controls, pace: Pace, *, moving: bool) -> None:
        self.engine, self.controls, self.pace = engine, controls, pace
        self.drift, self.restart_on_drift, self.stop_when_stuck = DriftWatch(engine.chunk), False, False
        self._stuck = stuck.StuckWatch(engine.chunk)
        self.moving, self._still, self._frames_due = moving, False, 0
        self._notify: EventCallback = lambda _kind, _facts: None
        self._changed, self._commands = Condition(), deque[Callable[[], None]]()
        self._paused = self._closing = False
        self._thread: Thread | None = None
        self._decoding: DecodingThread | None = None
        self._on_request = True  # a program requests each chunk, and receives errors as exceptions
        self._watch: Callable[[], None] | None = None  # set if the caller's thread makes the chunks
        self.failure = ""
        self.controls.changed = self._wake

    @abstractmethod
    def restart(self) -> None:
        """End the current walk and begin a new one."""

    @abstractmethod
    def _begin_and_end_events(self) -> None:
        """Queue a change of the prompt if a world event starts or ends now."""

    @property
    def walk(self) -> Walk:
        """The current walk. Raises InputError if the walk has ended."""
        if self._walks.current is None:
            raise InputError(self.failure or "the walk has ended")
        return self._walks.current

    @property
    def video(self) -> WalkVideo | None:
        return self._walks.video

    @property
    def running(self) -> bool:
        """Whether the thread that `start` creates is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def still(self) -> bool:
        """Whether the session makes no chunk until the next input. The camera then rests, and `moving`, which makes
        chunks nevertheless, is false."""
        walk = self.walk
        return walk.chunks > 0 and not self._frames_due and walk.camera_rests and not self.moving

    @property
    def _ended(self) -> bool:
        return self.walk.ended or (isinstance(self.controls, Replay) and self.controls.is_over(self.walk))

    def stop(self) -> None:
        """Stop making chunks, and wait until the session's thread has ended. The callback `deliver` may call this too;
        the call then returns immediately."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None and not self._is_delivering:
            self._thread.join()

    @property
    def _is_delivering(self) -> bool:
        """Whether the current thread is the session's running thread or its decoding thread, as in the callback
        `deliver`."""
        mine = current_thread() is self._thread or (self._decoding is not None and self._decoding.is_current)
        return self.running and mine

    def _make(self, deliver: Deliver) -> None:
        device = self.engine.device
        replays = isinstance(self.controls, Replay)  # a replay uses as many cores as the walk did
        self._decoding = None if replays else DecodingThread.create_if_faster(device)
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # it is set per thread
                while self._wait_for_turn():
                    self._next_chunk(deliver)
                if self._decoding is not None:
                    self._decoding.wait()
            if not self._closing:
                self._notify("ended", {})
        except Exception as error:
            self.failure = str(error).split("\n", 1)[0] or type(error).__name__
            log.log(
                logging.WARNING if isinstance(error, LingBotError) else logging.ERROR,
                "The walk ended: %s",
                self.failure,
                exc_info=not isinstance(error, LingBotError),
            )
            self._notify("failed", {"what": "walk", "reason": self.failure, "ended": True})
        finally:
            if self._decoding is not None:
                self._decoding.close()

    def _wait_for_turn(self) -> bool:
        """Run commands until the next chunk is due. Return False if the walk or the session has ended."""
        while True:
            if self._watch is not None:
                self._watch()
            with self._changed:
                if self._closing:
                    return False
                if not self._commands:
                    if self._ended:
                        return False
                    seconds = None if self._paused or self._update_still() else self.pace.seconds_to_wait()
                    if seconds == 0:
                        return True
                    self._changed.wait(seconds if self._watch is None else min(seconds or WATCH_SECONDS, WATCH_SECONDS))
            self._run_commands()

    def _update_still(self) -> bool:
        still = self.still
        if still != self._still:
            self._still = still
            self.pace.reset()
            self._notify("still", {"still": still})
        self.pace.half_rate = self.moving and time.monotonic() - self.controls.last_input > QUIET_SECONDS
        return still

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _queue_command(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def _run_commands(self) -> None:
        self._begin_and_end_events()
        while self._commands:
            if self._decoding is not None:
                self._decoding.wait()
            command = self._commands.popleft()
            try:
                command()
            except LingBotError as error:
                if self._on_request or self._walks.current is None:
                    raise
                self._notify("failed", {"what": "command", "reason": str(error), "ended": False})

    def _next_chunk(self, deliver: Deliver) -> None:
        if self._decoding is None:
            for frames in self._chunk():
                deliver(frames)
            return
        self._run_commands()
        with self._around_chunk():
            frames_ahead = self.walk.chunk_ahead()
            self.pace.record_undecoded(FRAMES_PER_LATENT * self.engine.chunk)
            self._decoding.start_delivery(self._record(frames_ahead), deliver)
            self.walk.update_cache()

    def _chunk(self) -> Iterator[Frames]:
        self._run_commands()
        with self._around_chunk():
            yield from self._record(self.walk.chunk())

    def _record(self, chunk: Iterator[Frames]) -> Iterator[Frames]:
        video = self.video
        for frames in self.pace.track(chunk):
            if video is not None:
                video.add(frames)
            yield frames
            if frames.last:
                self._watch_drift(frames)
                self._watch_stuck(frames)
                if self.walk.detect_crate():
                    self._notify("found", {"seconds": self.walk.frames / FPS})

    def _watch_drift(self, frames: Frames) -> None:
        store, size = self.walk.store, self.engine.chunk
        if store.chunks <= frames.chunk:  # the disk is full, or the user went back
            return
        latent = store.latent(frames.chunk * size, (frames.chunk + 1) * size)
        if self.drift.add_chunk(latent, frames.pixels[-1]):
            log.warning("The video is degrading.")
            self._notify("drift", {"reason": HINT})
            if self.restart_on_drift:
                self.restart()

    def _watch_stuck(self, frames: Frames) -> None:
        if frames.poses is None or isinstance(self.controls, Replay):
            return
        pose = frames.poses[-1]
        if self._stuck.add_chunk(frames.pixels[-1], pose[:3, 3] / self.walk.camera.unit, pose[:3, :3]):
            self._notify("stuck", {"reason": stuck.HINT})
            if self.stop_when_stuck:
                self.walk.ignore_walking_keys()

    @contextmanager
    def _around_chunk(self) -> Iterator[None]:
        failed_before, began, cores = self.walk.store.failure, time.perf_counter(), torch.get_num_threads()
        if isinstance(self.controls, Replay):
            self.controls.prepare(self.walk)
        try:
            yield
        finally:
            if isinstance(self.controls, Replay):
                torch.set_num_threads(cores)
        self._frames_due = max(0, self._frames_due - self.engine.chunk)
        if self.engine.device.type == "cpu" and self.walk.chunks % CHUNKS_PER_RELEASE == 0:
            give_back_memory()
        self.pace.record_work(time.perf_counter() - began, FRAMES_PER_LATENT * self.engine.chunk)
        if self.walk.store.failure != failed_before:
            self._warn_unsaved(self.walk.store.failure)

    def _warn_unsaved(self, reason: str) -> None:
        log.warning("%s", reason)
        self._notify_unsaved(reason)

    def _notify_unsaved(self, reason: str) -> None:
        self._notify("kept", {"reason": reason})
