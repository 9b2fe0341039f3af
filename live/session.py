"""A walk that a user steers: a program requests its frames, or a thread makes them at playback speed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from ..errors import InputError
from ..options import FPS
from ..pipeline.state import WorldState
from .camera import WALKING_SPEED
from .controls import FRAMES_OF_ONE, Controls, Heard
from .drift import DriftWatch
from .engine import Engine, Start
from .making import ChunkMaker, Deliver, Tell
from .pace import Pace
from .replay import Replay
from .shown.frames import Frames
from .walk import Walk
from .walks import Walks
from .worlds.events import Events, read_events

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from typing_extensions import Unpack

AWAKE = 16
"""The number of latent frames made after a new prompt without other input: four seconds, in which the change shows."""


class WalkOptions(TypedDict, total=False):
    """The options of a session's walks. `speed`: W's speed as a fraction of the longest step, 0.5 by default; Shift
    doubles it. `walls`: the walls of a known map stop the camera (default: true). `path`: poses c2w [n, 4, 4], one per
    video frame. `seed` is as in `Walk`."""

    speed: float
    walls: bool
    path: np.ndarray | None
    seed: int | None


class Session(ChunkMaker):
    """A world and its user. A program requests frames; each chunk is made on request, with the keys held at that time.

        with Session(engine, Start(frame, "a quiet street")) as session:
            session.press("w")
            for frames in session:
                ...

    `start(deliver)` makes them in a thread at `fps` instead. Each walk has its own folder in `folder` (None: a
    temporary one). Any thread may call the methods; their effect comes with the next chunk.

    With a `path` inputs are ignored: the path is walked from its first pose to its last full chunk, and then the walk
    ends."""

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
        """Begin the first walk. `walk`: the options of each walk. `whole`: a state and a camera path are also saved
        for each finished walk (None: if there is a folder). `moving`: the threads of `start` and `run` make chunks also
        without input, because things move by themselves. `controls` replaces new ones. `events`: a value that
        `read_events` accepts. If `restart_on_drift` is set, a dissolving world restarts. Raises InputError."""
        super().__init__(
            engine, controls or Controls(), Pace(fps, of_chunk=FRAMES_OF_ONE * engine.chunk), moving=moving
        )
        self.speed = walk.setdefault("speed", WALKING_SPEED)
        self._begin, self.events = begin, Events(read_events(events))
        make = partial(Walk, engine, **walk)
        keeps = folder is not None if whole is None else whole
        self._walks = Walks(
            lambda start, own: make(start, controls=self.controls, folder=own),
            folder,
            whole=keeps,
            fps=fps or FPS,
            tell_video=self._tell_kept,
        )
        self._under_way: Iterator[Frames] | None = None  # the chunk that a program is requesting
        self._texts = ThreadPoolExecutor(1)  # encodes prompts next to the walk
        self._working = RLock()  # held while a program's chunk is made
        self._walks.begin(begin, self._not_kept)
        self._take_up_events()

    @classmethod
    def replay(cls, engine: Engine, walk: str | Path, **options: Any) -> Session:
        """Return a session that replays the walk of a folder, to the same bits, and then ends. `options` are those of a
        session. Raises InputError for a folder without a walk, and for an engine with other settings."""
        replay = Replay(walk)
        replay.check(engine)
        given = {"events": replay.head.get("events"), **options}
        return cls(engine, replay.start, controls=replay, speed=replay.speed, walls=replay.walls, **given)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prompt(self, text: str, *, refresh: bool = False, event: int | None = None) -> None:
        """Change the prompt from one of the next chunks on; the text is encoded in the background. `refresh` is as in
        `Walk.prompt`, `event` as in Controls. Raises InputError for an empty prompt."""
        if not isinstance(text, str):
            raise InputError(f"the prompt is {text!r:.40}; expected a text that describes the world")
        if not text.strip():
            raise InputError("the prompt is empty; describe the world")
        self._say(self.events.say(text), refresh, Heard("prompt", event, time.monotonic()))

    def event(self, name: str, on: bool | None = None, *, refresh: bool = False, event: int | None = None) -> None:
        """Switch an event on or off, by its name or key: its sentence extends the prompt. `on` None toggles it.
        `refresh` and `event` are as in `prompt`. Raises InputError for an unknown event."""
        self._say(self.events.switch(name, on), refresh, Heard("event", event, time.monotonic()))

    def _say(self, text: str, refresh: bool, heard: Heard) -> None:
        if self._closing:
            raise InputError("the walk has ended: no prompt changes it any more")
        if self._watch is not None:
            self._ask(lambda: self._encoded(text, refresh, heard))
            return
        ready = self._texts.submit(self._encoded, text, refresh, heard)
        if self._asked_for:
            ready.result()

    def _encoded(self, text: str, refresh: bool, heard: Heard) -> None:
        try:
            context = self.engine.encode_prompt(text)
        except Exception as error:  # nothing waits for this thread, and the walk continues with its old prompt
            self.events.stand(self.walk.kept.last_prompt[0], later=True)
            if self._asked_for:
                raise
            log.warning("The prompt could not be encoded: %s", error)
            self._tell("failed", {"what": "prompt", "reason": str(error), "ended": False})
            return

        def change() -> None:
            self.walk.prompt(text, context, refresh=refresh, heard=heard)
            if refresh:
                self.pace.rest()
            self._awake = AWAKE
            self._tell("prompt", {"text": text, "events": sorted(self.events.active)})

        self._ask(change)

    def _take_up_events(self) -> None:
        """Derive the active events from the walk's prompt, and save all events with the walk."""
        self._stand_in_events()
        if self.events.all:
            self.walk.kept.note("events", self.events.facts())

    def _stand_in_events(self) -> None:
        self.events.stand(self.walk.kept.last_prompt[0])
        if self.events.all:
            self._tell("events", {"events": sorted(self.events.active)})

    def _begin_and_end_events(self) -> None:
        """Request the prompt for events that start or end at the next chunk's time."""
        if self._walks.now is None or isinstance(self.controls, Replay):
            return
        text = self.events.at(self.walk.chunks * self.engine.chunk * FRAMES_OF_ONE / FPS)
        if text is not None:
            heard = Heard("time", None, time.monotonic())
            self._commands.append(lambda: self._encoded(text, False, heard))

    def pause(self) -> None:
        """Pause the thread of `start` until `resume`. A program pauses by not requesting frames."""
        with self._changed:
            self._paused = True
        self._tell("paused", {})

    def resume(self) -> None:
        """Record that the user is active, and continue to make chunks."""
        self.controls.hear()
        with self._changed:
            if not self._paused:
                return
            self._paused = False
            self.pace.rest()
            self._changed.notify_all()
        self._tell("resumed", {})

    @property
    def paused(self) -> bool:
        return self._paused

    def back(self, chunk: int, event: int | None = None) -> None:
        """Go back to the point after `chunk` chunks. `event` is as in Controls."""
        heard = Heard("back", event, time.monotonic())

        def go() -> None:
            self.walk.back(chunk, heard)
            self._stand_in_events()
            self._cut_video()
            self.pace.rest()
            self._awake = max(self._awake, self.engine.chunk)
            self._tell("back", {"chunk": chunk})

        self._ask(go)

    def restart(self, begin: Start | WorldState | None = None) -> None:
        """Begin a new walk, from the same start or another."""
        self._ask(lambda: self._go_to(begin or self._begin))

    def __iter__(self) -> Iterator[Frames]:
        return self

    def __next__(self) -> Frames:
        """Return the next frames; the iteration ends only with `close`. A chunk is made when its first frames are
        requested. Raises the errors of the walk and of earlier requests. An interrupted chunk is made again, with all
        its frames."""
        if self.running:
            raise InputError("since `start` a thread makes the chunks of this session and passes them to `deliver`")
        with self._working:
            while not self._closing:
                if self._under_way is None:
                    self._do_what_is_asked()
                    if self._ended:
                        break
                    self._under_way = self._chunk()
                try:
                    return next(self._under_way)
                except BaseException as error:
                    self._under_way = None
                    if not isinstance(error, StopIteration):
                        self._commands.appendleft(self._stand_where_it_is_kept)
                        raise
        raise StopIteration

    def _stand_where_it_is_kept(self) -> None:
        """Restore the walk after an interrupted chunk, which has already taken keys and moved the camera."""
        self.walk.back(self.walk.kept.chunks)
        self._stand_in_events()
        self._cut_video()
        self.pace.rest()

    def _cut_video(self) -> None:
        if self.video is not None:
            self.video.cut(self.walk.frames)

    def start(self, deliver: Deliver, tell: Tell | None = None) -> None:
        """Start a thread that makes the chunks. It calls `deliver(frames)` and `tell`, which must not block. Raises
        InputError if the session was already started or closed."""
        if self._thread is not None or self._closing:
            raise InputError("the session was started, or closed, before; begin another one")
        self._tell, self._asked_for = tell or self._tell, False
        self._thread = Thread(target=self._make, args=(deliver,), name="lingbot-live", daemon=True)
        self._thread.start()

    def run(self, deliver: Deliver, tell: Tell, watch: Callable[[], None]) -> None:
        """Make the chunks in this thread, including prompts, until `stop`. `watch` is called before each chunk and a
        few times a second; its errors end the walk and are raised, like the walk's own."""
        self._tell, self._asked_for, self._watch = tell, False, watch
        while self._time_has_come():
            self._next_chunk(deliver)

    def state(self) -> WorldState:
        """Return the walk so far as a state that can be saved and continued. Raises InputError if nothing was made
        yet."""
        return self.walk.kept.state()

    def close(self, *, whole: bool = False) -> None:
        """End the walk. Its folder stays, unless it is temporary. `whole`: also save a state and a camera path, even if
        this session does not save them for its other walks. A call from within `deliver` only stops the walk: the
        creator of the session closes it."""
        self.stop()
        if self._is_delivering:
            return
        self._texts.shutdown(cancel_futures=True)
        with self._working:
            self._walks.whole, self._under_way = self._walks.whole or whole, None
            self._walks.close(self._not_kept)

    def _go_to(self, begin: Start | WorldState) -> None:
        Start.of(begin).check(self.engine)  # before the current walk ends
        if isinstance(self.controls, Replay) and begin is not self._begin:
            self.controls = Controls()  # the user continues with a new walk
            self._attend()
        walk, self._begin = self._walks.begin(begin, self._not_kept), begin
        self._take_up_events()
        self.pace.rest()
        self.drift = DriftWatch(self.engine.chunk)
        self._tell("restarted", {"folder": str(walk.kept.folder)})
