"""The prompts and world events of a session of walks (steered videos)."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import InputError
from ..fields import check_text
from ..options import FPS
from ..text.events import Events, read_events
from ..typed import check_types
from .controls import FRAMES_PER_LATENT, Controls, Input
from .engine import Engine
from .folder.replay import Replay
from .making import ChunkMaker
from .pace import Pace

log = logging.getLogger(__name__)
FRAMES_AFTER_PROMPT = 16
"""After a new prompt a session makes at least this many latent frames, even without input."""


class PromptedChunkMaker(ChunkMaker):
    """The base class of Session, with methods to change the prompt and world events, such as rain, while chunks are
    made.

    events: the session's world events, with a record of the active ones.
    """

    def __init__(self, engine: Engine, controls: Controls, pace: Pace, *, moving: bool, events: Any) -> None:
        super().__init__(engine, controls, pace, moving=moving)
        self.events = Events(read_events(events))
        self._encoder_thread = ThreadPoolExecutor(1)  # encodes prompts next to the walk

    def prompt(self, text: str, *, refresh: bool = False, event: int | None = None) -> None:
        """Change the prompt of the next chunks, as soon as the text is encoded.

        refresh: whether past keys and values are recomputed, so that the video changes immediately.
        event: the sender's id of this input, returned with the first frames that it affects.

        Raises InputError for an empty prompt, and after `stop` or `close`.
        """
        if not isinstance(text, str):
            raise InputError(f"the prompt is {text!r:.40}; expected a text that describes the world")
        if not text.strip():
            raise InputError("the prompt is empty; describe the world")
        check_text("the prompt", text)
        self._change_prompt(self.events.set_base_prompt(text), refresh, Input("prompt", event, time.monotonic()))

    def event(self, name: str, on: bool | None = None, *, refresh: bool = False, event: int | None = None) -> None:
        """Switch a world event, such as rain. While the world event is on, its sentence extends the prompt.

        name: the world event's name or keyboard key.
        on: None toggles the world event.
        refresh: whether past keys and values are recomputed, so that the video changes immediately.
        event: no world event, but the sender's id of this input, returned with the first frames that it affects.

        Raises InputError for an unknown name, and after `stop` or `close`.
        """
        check_types({"on": on, "refresh": refresh}, {"on": bool | None, "refresh": bool})
        self._change_prompt(self.events.switch(name, on), refresh, Input("event", event, time.monotonic()))

    def _change_prompt(self, text: str, refresh: bool, cause: Input) -> None:
        if self._closing:
            raise InputError("the walk has ended: no prompt changes it any more")
        if self._watch is not None:
            self._queue_command(lambda: self._encode_prompt(text, refresh, cause))
            return
        ready = self._encoder_thread.submit(self._encode_prompt, text, refresh, cause)
        if self._on_request:
            ready.result()

    def _encode_prompt(self, text: str, refresh: bool, cause: Input) -> None:
        try:
            context = self.engine.encode_prompt(text)
        except Exception as error:  # nothing waits for this thread, and the walk continues with its old prompt
            self.events.set_full_prompt(self.walk.store.last_prompt[0], keep_started=True)
            if self._on_request:
                raise
            log.warning("The prompt could not be encoded: %s", error)
            self._notify("failed", {"what": "prompt", "reason": str(error), "ended": False})
            return

        def change() -> None:
            self.walk.prompt(text, context, refresh=refresh, cause=cause)
            if refresh:
                self.pace.reset()
            self._frames_due = FRAMES_AFTER_PROMPT
            self._notify("prompt", {"text": text, "events": sorted(self.events.active)})

        self._queue_command(change)

    def _load_events(self) -> None:
        self.update_events()
        if self.events.all:
            self.walk.store.add_setting("events", self.events.as_dicts())

    def update_events(self) -> None:
        """Mark a world event as active if its sentence is among those that end the walk's last prompt. Report the
        active ones to the session's callback `tell`."""
        self.events.set_full_prompt(self.walk.store.last_prompt[0])
        if self.events.all:
            self._notify("events", {"events": sorted(self.events.active)})

    def _begin_and_end_events(self) -> None:
        if self._walks.current is None or isinstance(self.controls, Replay):
            return
        text = self.events.advance(self.walk.chunks * self.engine.chunk * FRAMES_PER_LATENT / FPS)
        if text is not None:
            cause = Input("time", None, time.monotonic())
            self._commands.append(lambda: self._encode_prompt(text, False, cause))
