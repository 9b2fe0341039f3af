"""The walks of a session, one after the other, each in a folder of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from ..errors import InputError, LingBotError
from ..pipeline.state import WorldState
from .engine import Start
from .kept import save_whole
from .walk import Walk

Make = Callable[[Start | WorldState, Path], Walk]
"""make(begin, folder) -> a walk that is kept there."""
Tell = Callable[[str], None]
"""Told why what was walked could not be written."""


class Walks:
    """One walk at most is there at a time: `now`. What one leaves behind is written by a thread of its own while the
    next one is walked."""

    def __init__(self, make: Make, folder: str | Path | None, *, whole: bool) -> None:
        """In `folder`, or a temporary one if it is None. `whole`: of each walk that ends a state and a camera path are
        written too."""
        self._make, self.whole = make, whole
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
        walk, self.now = self.now, None
        if walk is None:
            return
        walk.close()
        if walk.engine.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.whole and walk.kept.chunks:
            self._writer.submit(_write, walk.kept.folder, tell)

    def close(self, tell: Tell) -> None:
        """There is no walk any more, and all is written."""
        self._end(tell)
        self._writer.shutdown()
        if self._temporary is not None:
            self._temporary.cleanup()


def _write(folder: Path, tell: Tell) -> None:
    try:
        save_whole(folder)
    except LingBotError as error:
        tell(str(error))
