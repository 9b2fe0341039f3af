"""A session of walks (steered videos): a program iterates over the frames, or a thread makes them at playback speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..options import FPS
from ..pipeline.state import WorldState
from ..typed import check_types
from .camera import WALKING_SPEED
from .controls import FRAMES_PER_LATENT, Controls, Input
from .engine import Engine, Start, check_seed
from .folder.replay import Replay
from .making import Deliver, EventCallback
from .pace import Pace
from .prompting import PromptedChunkMaker
from .shown.frames import Frames
from .walk import Walk, WalkOptions
from .walks import Walks
from .worlds.drift import DriftWatch
from .worlds.stuck import StuckWatch

if TYPE_CHECKING:
    from typing_extensions import Unpack

OPTIONS: dict[str, Any] = {
    "fps": float,
    "folder": str | Path | None,
    "whole": bool | None,
    "moving": bool,
    "controls": Controls | None,
    "events": Any,
    "speed": float,
    "walls": bool,
    "path": Any,
    "seed": int | None,
}
"""The types of the options of a Session, and of its walks, by name."""


def check_options(**options: Any) -> None:
    """Raise InputError for an option of a Session that is unknown, has a wrong type, or is out of range."""
    unknown = next((name for name in options if name not in OPTIONS), None)
    if unknown is not None:
        raise InputError(f"a session has no option {unknown!r:.40}; expected {', '.join(OPTIONS)}")
    check_types(options, OPTIONS)
    check_seed(options.get("seed") or 0)
    if not 0 <= options.get("fps", 0) < math.inf:
        raise InputError(f"`fps` {options['fps']}: expected frames per second, or 0 for chunks that do not wait")
    if not 0 < options.get("speed", 1) < math.inf:
        raise InputError(f"`speed` {options['speed']}: expected more than 0, as a fraction of the longest step")


class Session(PromptedChunkMaker):
    """A sequence of walks (videos that a user steers): each restart ends the current walk and begins the next.

    A program iterates over the frames, or `start` makes them in a thread for playback. Any thread may call the methods,
    which take effect with the next chunk.
    """

    def __init__(
        self,
        engine: Engine,
        begin: Start | WorldState,
        *,
        folder: str | Path | None = None,
        fps: float = FPS,
        whole: bool | None = None,
        moving: bool = False,
        controls: Controls | None = None,
        events: Any = None,
        **walk: Unpack[WalkOptions],
    ) -> None:
        """Begin the first walk.

        begin: the Start of the walk, or the state of a video to continue.
        folder: the folder in which each walk gets a subfolder; None creates a temporary folder.
        fps: the playback rate; with 0, chunks do not wait for playback.
        whole: whether to save a state and a camera path for each walk too; None: only if `folder` is set.
        moving: whether to make chunks even while there is no input and the camera rests.
        controls: the source of the inputs; None creates new Controls.
        events: world events, in a form that `read_events` accepts.
        walk: the options of each walk; see WalkOptions.

        Raises InputError for an invalid option or start, CameraError for invalid poses in the option `path`.
        """
        check_options(fps=fps, folder=folder, whole=whole, moving=moving, controls=controls, **walk)
        pace = Pace(fps, chunk_frames=FRAMES_PER_LATENT * engine.chunk)
        super().__init__(engine, controls or Controls(), pace, moving=moving, events=events)
        self.speed = walk.setdefault("speed", WALKING_SPEED)
        self._begin = begin
        self._walks = Walks(
            lambda start, own: Walk(engine, start, self.controls, own, **walk),
            folder,
            whole=folder is not None if whole is None else whole,
            fps=fps or FPS,
            report_video=self._notify_unsaved,
        )
        self._current_chunk: Iterator[Frames] | None = None  # the chunk that a program is requesting
        self._chunk_lock = RLock()  # held while a program's chunk is made
        self._walks.begin(begin, self._warn_unsaved)
        self._load_events()

    @classmethod
    def replay(cls, engine: Engine, walk: str | Path, **options: Any) -> Session:
        """Return a session that repeats the saved walk `walk` bit for bit. Raises InputError if the engine's settings
        differ from that walk's."""
        replay = Replay(walk)
        replay.check(engine)
        given = {"events": replay.settings.get("events"), **options}
        return cls(engine, replay.start, controls=replay, speed=replay.speed, walls=replay.walls, **given)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pause(self) -> None:
        """Stop making chunks in `start` or `run` until `resume` is called."""
        with self._changed:
            self._paused = True
        self._notify("paused", {})

    def resume(self) -> None:
        """End a pause, if any, and restart the count of seconds since the last input."""
        self.controls.record_activity()
        with self._changed:
            if not self._paused:
                return
            self._paused = False
            self.pace.reset()
            self._changed.notify_all()
        self._notify("resumed", {})

    @property
    def paused(self) -> bool:
        return self._paused

    def back(self, chunk: int, event: int | None = None) -> None:
        """Queue a command that keeps the walk's first `chunk` chunks and discards the later ones. `event`: the sender's
        id of this input, returned with the first frames that it affects. Errors are raised by the next iteration. After
        `start` or `run` they go to the callback `tell` instead."""
        check_types({"chunk": chunk}, {"chunk": int})
        cause = Input("back", event, time.monotonic())

        def go() -> None:
            self._go_back(chunk, cause)
            self._frames_due = max(self._frames_due, self.engine.chunk)
            self._notify("back", {"chunk": chunk})

        self._queue_command(go)

    def restart(self, begin: Start | WorldState | None = None) -> None:
        """Queue a command that begins a new walk at `begin`, by default where the current walk began. The current walk
        goes on if `begin` is invalid."""
        self._queue_command(lambda: self._begin_again(begin or self._begin))

    def __iter__(self) -> Iterator[Frames]:
        return self

    def __next__(self) -> Frames:
        """Return the next frames, from a new chunk if needed. Raises InputError while the thread of `start` runs."""
        if self.running:
            raise InputError("since `start` a thread makes the chunks of this session and passes them to `deliver`")
        with self._chunk_lock:
            while not self._closing:
                if self._current_chunk is None:
                    self._run_commands()
                    if self._ended:
                        break
                    self._current_chunk = self._chunk()
                try:
                    return next(self._current_chunk)
                except BaseException as error:
                    self._current_chunk = None
                    if not isinstance(error, StopIteration):
                        # The interrupted chunk has already taken keys and moved the camera.
                        self._commands.appendleft(lambda: self._go_back(self.walk.store.chunks))
                        raise
        raise StopIteration

    def _go_back(self, chunk: int, cause: Input | None = None) -> None:
        self.walk.back(chunk, cause)
        self.update_events()
        if self.video is not None:
            self.video.cut(self.walk.frames)
        self.pace.reset()

    def start(self, deliver: Deliver, tell: EventCallback | None = None) -> None:
        """Start a thread that makes the chunks. Raises InputError if the session was started or closed before.

        deliver: called with the Frames of each part of a chunk.
        tell: called as tell(kind, facts) for events, see `making.EventCallback`.
        """
        if self._thread is not None or self._closing:
            raise InputError("the session was started, or closed, before; begin another one")
        self._notify, self._on_request = tell or self._notify, False
        self._thread = Thread(target=self._make, args=(deliver,), name="lingbot-live", daemon=True)
        self._thread.start()

    def run(self, deliver: Deliver, tell: EventCallback, watch: Callable[[], None]) -> None:
        """Make the chunks in the calling thread, until `stop` is called or the walk ends. Pass Frames to `deliver`, and
        events to `tell(kind, facts)`. Call `watch` before each chunk and while waiting."""
        self._notify, self._on_request, self._watch = tell, False, watch
        while self._wait_for_turn():
            self._next_chunk(deliver)

    def state(self) -> WorldState:
        """Return the state after the last chunk. Raises InputError before the first chunk."""
        return self.walk.store.state()

    def close(self, *, whole: bool = False) -> None:
        """End the session and its walk. If `whole`, also save the walk's state and camera path. If the callback
        `deliver` of `start` calls this, only the making of chunks ends; another thread must then call this again."""
        self.stop()
        if self._is_delivering:
            return
        self._encoder_thread.shutdown(cancel_futures=True)
        with self._chunk_lock:
            self._walks.whole, self._current_chunk = self._walks.whole or whole, None
            self._walks.close(self._warn_unsaved)

    def _begin_again(self, begin: Start | WorldState) -> None:
        Start.of(begin).check(self.engine)  # before the current walk ends
        if isinstance(self.controls, Replay) and begin is not self._begin:
            self.controls = Controls()  # the user continues with a new walk
            self.controls.changed = self._wake
        walk, self._begin = self._walks.begin(begin, self._warn_unsaved), begin
        self._load_events()
        self.pace.reset()
        self.drift, self._stuck = DriftWatch(self.engine.chunk), StuckWatch(self.engine.chunk)
        self._notify("restarted", {"folder": str(walk.store.folder)})
