"""A walk that somebody steers: by a program that asks for frames, or by a thread that makes them as they are played."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Condition, RLock, Thread, current_thread
from typing import Any

import numpy as np
import torch

from ..errors import InputError, LingBotError
from ..model.host_memory import give_back_memory
from ..options import FPS
from ..pipeline.state import WorldState
from .camera import WALKING_SPEED
from .controls import FRAMES_OF_ONE, Controls, Steered
from .decoding import DecodingThread
from .drift import HINT, DriftWatch
from .engine import Engine, Start, WalkVideo
from .pace import Pace
from .replay import Replay
from .walk import Frames, Walk
from .walks import Walks
from .worlds.events import Events, read_events

log = logging.getLogger(__name__)

WATCH = 0.2
"""Seconds from one look of `run` to the next, while it waits."""

AWAKE = 16
"""Latent frames that are made after a new prompt where nothing else is asked for: four seconds, in which it is seen."""
GIVE_BACK = 64
"""Chunks on a CPU after which memory that was freed is given back: else an hour of a walk keeps 2.6 GB of it."""
QUIET = 10.0
"""Seconds without an input after which a world that moves by itself is made at half the speed."""

Deliver = Callable[[Frames], None]
Tell = Callable[[str, dict[str, Any]], None]
"""tell(kind, facts): prompt, paused, resumed, still, drift, back, restarted, kept (no longer),
failed."""


def _nobody(_kind: str, _facts: dict[str, Any]) -> None:
    """Is told nothing."""


class Session(Steered):
    """A world and somebody in it. A program asks for the frames: the next chunk is made, with the keys of then, when it
    wants more.

        with Session(engine, Start(frame, "a quiet street")) as session:
            session.press("w")
            for frames in session:
                ...

    `start(deliver)` has a thread make them at `fps` instead. Each walk has a folder of its own in `folder` (None: a
    temporary one). Any thread may call the methods; what they ask for comes with the next chunk.

    With a `path` nobody steers: it is walked from its first pose to its last whole chunk, and that is the end."""

    def __init__(
        self,
        engine: Engine,
        begin: Start | WorldState,
        *,
        folder: str | Path | None = None,
        fps: float = FPS,
        speed: float = WALKING_SPEED,
        path: np.ndarray | None = None,
        seed: int | None = None,
        whole: bool | None = None,
        moving: bool = False,
        controls: Controls | None = None,
        events: Any = None,
    ) -> None:
        """`speed`: the share of the longest step that W walks by; with Shift it is twice as much. `path`: poses c2w
        [n, 4, 4], one a video frame. `seed` as in `Walk`. `whole`: of each walk that ends a state and a camera path are
        kept too (None: where there is a folder). `moving`: the threads of `start` and `run` make chunks also where
        nothing is asked for, since things move by themselves. `controls`: in place of new ones. Where
        `restart_on_drift` is set, a world that dissolves begins anew. `events`: as `read_events` reads them. Raises
        InputError."""
        self.engine, self.controls = engine, controls or Controls()
        self.pace = Pace(fps, of_chunk=FRAMES_OF_ONE * engine.chunk)
        self.controls.changed = self._wake
        self.drift, self.restart_on_drift = DriftWatch(engine.chunk), False
        self.moving, self.speed, self._still, self._awake = moving, speed, False, 0
        self._begin, self.events = begin, Events(read_events(events))
        self._tell: Tell = _nobody
        make = partial(Walk, engine, speed=speed, path=path, seed=seed)
        keeps = folder is not None if whole is None else whole
        self._walks = Walks(
            lambda start, own: make(start, controls=self.controls, folder=own),
            folder,
            whole=keeps,
            fps=fps or FPS,
            tell_video=self._tell_kept,
        )
        self._changed, self._commands = Condition(), deque[Callable[[], None]]()
        self._paused = self._closing = False
        self._thread: Thread | None = None
        self._decoding: DecodingThread | None = None
        self._asked_for = True  # each chunk by a program, which is told what goes wrong by an exception
        self._watch: Callable[[], None] | None = None  # of the thread that makes the chunks, where that is the caller's
        self._under_way: Iterator[Frames] | None = None  # a chunk that a program asks for
        self._texts = ThreadPoolExecutor(1)  # encodes prompts beside the walk
        self._working = RLock()  # held while a program's chunk is made
        self.failure = ""
        self._walks.begin(begin, self._not_kept)
        self._take_up_events()

    @classmethod
    def replay(cls, engine: Engine, walk: str | Path, **options: Any) -> Session:
        """Return a session that makes the walk of a folder again, to the same bits, and then ends. `options` are those
        of a session. Raises InputError for a folder without a walk, and for an engine that was opened otherwise."""
        replay = Replay(walk)
        replay.check(engine)
        given = {"events": replay.head.get("events"), **options}
        return cls(engine, replay.start, controls=replay, speed=replay.speed, **given)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prompt(self, text: str, *, refresh: bool = False) -> None:
        """What the world shows from one of the next chunks on: text is encoded meanwhile. `refresh` as in
        `Walk.prompt`. Raises InputError for one that is empty."""
        if not isinstance(text, str):
            raise InputError(f"the prompt is {text!r:.40}; expected text that says what the world shows")
        if not text.strip():
            raise InputError("the prompt is empty; say what the world shows")
        self._say(self.events.say(text), refresh)

    def event(self, name: str, on: bool | None = None, *, refresh: bool = False) -> None:
        """Begin or end an event, by its name or key: its sentence extends the prompt. `on` None: begin an event
        that does not hold, end one that does. `refresh` as in `Walk.prompt`. Raises InputError for
        an event that the session has not."""
        self._say(self.events.switch(name, on), refresh)

    def _say(self, text: str, refresh: bool) -> None:
        if self._closing:
            raise InputError("the walk has ended: no prompt changes it any more")
        if self._watch is not None:
            self._ask(lambda: self._encoded(text, refresh))
            return
        ready = self._texts.submit(self._encoded, text, refresh)
        if self._asked_for:
            ready.result()

    def _encoded(self, text: str, refresh: bool) -> None:
        try:
            context = self.engine.encode_prompt(text)
        except Exception as error:  # nobody waits for this thread, and the walk goes on with the prompt that it has
            self.events.stand(self.walk.kept.last_prompt[0], later=True)
            if self._asked_for:
                raise
            log.warning("The prompt could not be encoded: %s", error)
            self._tell("failed", {"what": "prompt", "reason": str(error), "ended": False})
            return

        def change() -> None:
            self.walk.prompt(text, context, refresh=refresh)
            if refresh:
                self.pace.rest()
            self._awake = AWAKE
            self._tell("prompt", {"text": text, "events": sorted(self.events.active)})

        self._ask(change)

    def _take_up_events(self) -> None:
        """Have the events that hold be those of the walk's prompt, and keep all of them with the walk."""
        self._stand_in_events()
        if self.events.all:
            self.walk.kept.note("events", self.events.facts())

    def _stand_in_events(self) -> None:
        self.events.stand(self.walk.kept.last_prompt[0])
        if self.events.all:
            self._tell("events", {"events": sorted(self.events.active)})

    def _begin_and_end_events(self) -> None:
        """Ask for the prompt of the events that the next chunk's time begins and ends."""
        if self._walks.now is None or isinstance(self.controls, Replay):
            return
        text = self.events.at(self.walk.chunks * self.engine.chunk * FRAMES_OF_ONE / FPS)
        if text is not None:
            self._commands.append(lambda: self._encoded(text, False))

    def pause(self) -> None:
        """The thread of `start` begins no chunk until `resume`. A program pauses by not asking for frames."""
        with self._changed:
            self._paused = True
        self._tell("paused", {})

    def resume(self) -> None:
        """Somebody is there, and chunks are made."""
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

    def back(self, chunk: int) -> None:
        """Go back to where so many chunks were made."""

        def go() -> None:
            self.walk.back(chunk)
            self._stand_in_events()
            self._cut_video()
            self.pace.rest()
            self._awake = max(self._awake, self.engine.chunk)
            self._tell("back", {"chunk": chunk})

        self._ask(go)

    def restart(self, begin: Start | WorldState | None = None) -> None:
        """A new walk, from the same start or another."""
        self._ask(lambda: self._go_to(begin or self._begin))

    def __iter__(self) -> Iterator[Frames]:
        return self

    def __next__(self) -> Frames:
        """The next frames; there is no end before `close`. A chunk is made when it is asked for. Raises what the walk
        meets, and what was asked of it in vain. A chunk that was broken off is made anew, its frames too."""
        if self.running:
            raise InputError("a thread makes the chunks of this session since `start`, and gives them to `deliver`")
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
        """Keys were taken and the camera moved for a chunk that is not there."""
        self.walk.back(self.walk.kept.chunks)
        self._stand_in_events()
        self._cut_video()
        self.pace.rest()

    def _cut_video(self) -> None:
        if self.video is not None:
            self.video.cut(self.walk.frames)

    def start(self, deliver: Deliver, tell: Tell | None = None) -> None:
        """Have a thread make the chunks. It calls `deliver(frames)` and `tell`, which must not wait for anything.
        Raises InputError where there is one already."""
        if self._thread is not None or self._closing:
            raise InputError("the session was started, or closed, before; begin another one")
        self._tell, self._asked_for = tell or self._tell, False
        self._thread = Thread(target=self._make, args=(deliver,), name="lingbot-live", daemon=True)
        self._thread.start()

    def run(self, deliver: Deliver, tell: Tell, watch: Callable[[], None]) -> None:
        """Make the chunks in this thread, prompts too, until `stop`. `watch` is called before each chunk and a few
        times a second; what it raises ends the walk and is raised, as what the walk meets is."""
        self._tell, self._asked_for, self._watch = tell, False, watch
        while self._time_has_come():
            self._next_chunk(deliver)

    @property
    def walk(self) -> Walk:
        if self._walks.now is None:
            raise InputError(self.failure or "the walk has ended")
        return self._walks.now

    def state(self) -> WorldState:
        """What was walked, to be saved and gone on with. Raises InputError where there is nothing yet."""
        return self.walk.kept.state()

    @property
    def _ended(self) -> bool:
        """Whether the path, or the walk that is replayed, has no whole chunk left."""
        return self.walk.ended or (isinstance(self.controls, Replay) and self.controls.ends(self.walk))

    @property
    def still(self) -> bool:
        """Whether another chunk would show what is seen already: nothing is asked for, the camera stands, and nothing
        moves by itself. A world that makes up a still picture over and over loses it within seconds."""
        walk = self.walk
        rests = walk.chunks > 0 and not (self._awake > 0 or self.controls.asks or walk.camera.moves)
        return rests and not self.moving

    def _wake(self) -> None:
        """An input came."""
        with self._changed:
            self._changed.notify_all()

    @property
    def running(self) -> bool:
        """Whether a thread makes the chunks."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """No further chunk is made. What was walked can still be saved."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None and not self._is_delivering:
            self._thread.join()

    @property
    def _is_delivering(self) -> bool:
        """Whether this is a thread that calls `deliver`."""
        mine = current_thread() is self._thread or (self._decoding is not None and self._decoding.here)
        return self.running and mine

    def close(self, *, whole: bool = False) -> None:
        """Ends the walk. What was walked stays in its folder, unless that is temporary; `whole`: a state and a camera
        path too, also where this session keeps none of its other walks. From `deliver` it is `stop`: who began the
        session closes it."""
        self.stop()
        if self._is_delivering:
            return
        self._texts.shutdown(cancel_futures=True)
        with self._working:
            self._walks.whole, self._under_way = self._walks.whole or whole, None
            self._walks.close(self._not_kept)

    def _make(self, deliver: Deliver) -> None:
        device = self.engine.device
        replays = isinstance(self.controls, Replay)  # its thread has the cores that the walk's had
        self._decoding = None if replays else DecodingThread.where_it_gains(device)
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # each thread has its own
                while self._time_has_come():
                    self._next_chunk(deliver)
                if self._decoding is not None:
                    self._decoding.wait()
        except Exception as error:
            self.failure = str(error).split("\n", 1)[0] or type(error).__name__
            log.log(
                logging.WARNING if isinstance(error, LingBotError) else logging.ERROR,
                "The walk ended: %s",
                self.failure,
                exc_info=not isinstance(error, LingBotError),
            )
            self._tell("failed", {"what": "walk", "reason": self.failure, "ended": True})
        finally:
            if self._decoding is not None:
                self._decoding.close()

    def _time_has_come(self) -> bool:
        """Waits until a chunk is to begin; False at the end. What is asked for is done meanwhile."""
        while True:
            if self._watch is not None:
                self._watch()
            with self._changed:
                if self._closing:
                    return False
                if not self._commands:
                    if self._ended:
                        return False
                    seconds = None if self._paused or self._stands() else self.pace.wait()
                    if seconds == 0:
                        return True
                    self._changed.wait(seconds if self._watch is None else min(seconds or WATCH, WATCH))
            self._do_what_is_asked()

    def _stands(self) -> bool:
        """Whether the world waits for an input; tells when that begins and ends."""
        still = self.still
        if still != self._still:
            self._still = still
            self.pace.rest()
            self._tell("still", {"still": still})
        self.pace.leisurely = self.moving and time.monotonic() - self.controls.heard > QUIET
        return still

    def _ask(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def _do_what_is_asked(self) -> None:
        self._begin_and_end_events()
        while self._commands:
            if self._decoding is not None:
                self._decoding.wait()
            command = self._commands.popleft()
            try:
                command()
            except LingBotError as error:
                if self._asked_for or self._walks.now is None:
                    raise
                self._tell("failed", {"what": "command", "reason": str(error), "ended": False})

    def _next_chunk(self, deliver: Deliver) -> None:
        """Make it, and hand its frames out; with a thread for decoding, while the one after it is made."""
        if self._decoding is None:
            for frames in self._chunk():
                deliver(frames)
            return
        self._do_what_is_asked()
        with self._work():
            frames_ahead = self.walk.chunk_ahead()
            self.pace.on_the_way(FRAMES_OF_ONE * self.engine.chunk)
            self._decoding.hand_out(self._shown(frames_ahead), deliver)
            self.walk.remember()

    def _chunk(self) -> Iterator[Frames]:
        self._do_what_is_asked()
        with self._work():
            yield from self._shown(self.walk.chunk())

    def _shown(self, chunk: Iterator[Frames]) -> Iterator[Frames]:
        """A chunk's frames, which are counted and recorded."""
        video = self.video
        for frames in self.pace.counted(chunk):
            if video is not None:
                video.add(frames)
            yield frames
            if frames.last:
                self._watch_drift(frames)

    def _watch_drift(self, frames: Frames) -> None:
        kept, size = self.walk.kept, self.engine.chunk
        if kept.chunks <= frames.chunk:  # the disk is full, or somebody went back
            return
        latent = kept.latent(frames.chunk * size, (frames.chunk + 1) * size)
        if self.drift.see(latent, frames.pixels[-1]):
            log.warning("The world is dissolving.")
            self._tell("drift", {"reason": HINT})
            if self.restart_on_drift:
                self.restart()

    @property
    def video(self) -> WalkVideo | None:
        """The video of the walk, where one is made."""
        return self._walks.video

    @contextmanager
    def _work(self) -> Iterator[None]:
        """A chunk is made meanwhile."""
        failed_before, began, cores = self.walk.kept.failure, time.perf_counter(), torch.get_num_threads()
        if isinstance(self.controls, Replay):
            self.controls.prepare(self.walk)
        try:
            yield
        finally:
            if isinstance(self.controls, Replay):
                torch.set_num_threads(cores)
        self._awake = max(0, self._awake - self.engine.chunk)
        if self.engine.device.type == "cpu" and self.walk.chunks % GIVE_BACK == 0:
            give_back_memory()
        self.pace.worked(time.perf_counter() - began, FRAMES_OF_ONE * self.engine.chunk)
        if self.walk.kept.failure != failed_before:
            self._not_kept(self.walk.kept.failure)

    def _not_kept(self, reason: str) -> None:
        log.warning("%s", reason)
        self._tell_kept(reason)

    def _tell_kept(self, reason: str) -> None:
        self._tell("kept", {"reason": reason})

    def _go_to(self, begin: Start | WorldState) -> None:
        Start.of(begin).check(self.engine)  # before the walk of now ends
        if isinstance(self.controls, Replay) and begin is not self._begin:
            self.controls = Controls()  # somebody walks on
            self.controls.changed = self._wake
        walk, self._begin = self._walks.begin(begin, self._not_kept), begin
        self._take_up_events()
        self.pace.rest()
        self.drift = DriftWatch(self.engine.chunk)
        self._tell("restarted", {"folder": str(walk.kept.folder)})
