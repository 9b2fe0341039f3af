"""The replay of a saved walk (a steered video), bit for bit with the same model and device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...errors import InputError
from ...pipeline.state import WorldState, load_state
from ...sampling import FewStepSchedule
from ...sampling.noise import StepNoise
from ..controls import Controls, FrameInputs
from ..engine import Engine, Start
from ..store import engine_settings
from .inputs import inputs_from_rows, read_inputs
from .reading import BEFORE, START, load_tensors, load_walk
from .settings import SETTINGS_FILE, read_settings

if TYPE_CHECKING:
    from ..walk import Walk


class Replay(Controls):
    """Controls that return a saved walk's inputs and ignore the user's."""

    def __init__(self, folder: str | Path) -> None:
        """Read a walk from `folder`. Raises InputError for a folder without a walk, or without recorded inputs."""
        super().__init__()
        self.folder = Path(folder)
        self.state: WorldState = load_walk(self.folder)
        try:
            self.settings = read_settings(self.folder)
            self._by_frame = read_inputs(self.folder, self.settings)
            if self.settings.get("noise") != StepNoise.order:
                raise ValueError("no inputs are kept of it: it followed a path, or an earlier version made it")
            before = load_state(self.folder / BEFORE) if self.settings["continued"] else None
            picture, prompt = load_tensors(self.folder / START), self.settings["prompts"][0]["text"]
            lens, seed = np.array(self.settings["lens"]), int(self.settings["seed"])
            threads = self.settings.setdefault("threads", torch.get_num_threads())
            if type(threads) is not int or threads < 1:
                raise ValueError(f"`threads` is {threads!r:.40}; expected a number from 1")
            self.speed = float(self.settings["speed"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self.folder / SETTINGS_FILE}: the walk cannot be replayed ({reason})") from error
        self.start = Start(picture["frame"], prompt, lens, seed, before, picture["image"])
        self.walls = self.settings.get("walls", False)
        self.frames = self.state.latent.shape[2] - (0 if before is None else before.latent.shape[2])
        self._at = 0  # the first latent frame of the next chunk

    def schedule(self) -> FewStepSchedule:
        return FewStepSchedule(**{name: tuple(values) for name, values in self.settings["schedule"].items()})

    def check(self, engine: Engine) -> None:
        """Raise InputError if a setting of the engine, such as the window, differs from the saved walk's."""
        for name, expected in engine_settings(engine).items():
            found = self.settings.get(name)
            if found != expected:
                raise InputError(
                    f"{self.folder / SETTINGS_FILE}: `{name}` is {str(found)[:80]}, and the model was opened with "
                    f"{str(expected)[:80]}; open it as the walk was made"
                )

    def is_over(self, walk: Walk) -> bool:
        """Return whether `walk` is as long as the saved walk."""
        return walk.chunks * walk.engine.chunk >= self.frames

    @property
    def has_input(self) -> bool:
        """Always True, so that a replay never waits for an input."""
        return True

    has_changed = has_input

    def prepare(self, walk: Walk) -> None:
        """Prepare `walk` for the next chunk as in the saved walk: set torch's number of threads, then apply a change of
        the prompt or recompute the KV cache, if the saved walk did so before this chunk."""
        torch.set_num_threads(self.settings["threads"])
        self._at = walk.chunks * walk.engine.chunk
        rebuilds = [row["refresh"] for row in self._by_frame.get(self._at, ()) if row.get("rebuild")]
        if False in rebuilds:
            walk.back(walk.chunks)
        for index, prompt in enumerate(self.settings["prompts"]):
            if prompt["first"] == self._at:
                context = load_tensors(self.folder / f"prompt.{index}.safetensors")["context"]
                walk.prompt(prompt["text"], context, refresh=True in rebuilds)

    def take(self, frames: int) -> FrameInputs:
        """Return the saved walk's inputs for the chunk that `prepare` selected, or zeros if that chunk had none.
        `frames`: the chunk's number of video frames."""
        return inputs_from_rows(self._by_frame.get(self._at, ()), frames)
