"""The folder of a walk (a steered video) in progress, to which each chunk is appended."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from ..errors import InputError
from ..outputs import written_whole
from ..pipeline.state import WorldState
from .controls import FrameInputs
from .engine import Engine
from .folder.inputs import InputLog
from .folder.reading import (
    BEFORE,
    CHANNELS,
    START,
    latent_rows,
    load_walk,
    path_rows,
    pose_rows,
    save_tensors,
    video_frames,
)
from .folder.settings import FORMAT, SETTINGS_FILE


class WalkStore:
    """The folder to which a walk in progress saves each chunk. After a failed write nothing more is saved.

    failure: the reason of the failed write, or an empty string.
    """

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        picture: Mapping[str, Tensor],
        lens: np.ndarray,
        unit: float,
        before: WorldState | None,
        settings: Mapping[str, Any],
    ) -> None:
        """Create the walk's folder and write the walk's start. Raises InputError if writing fails.

        picture: the start image as the tensor "frame", and its VAE latent as the tensor "image".
        lens: fx, fy, cx, cy at 832x480.
        unit: the divisor of translations in the model's camera input.
        before: the state of the video that the walk continues, or None.
        settings: further entries for `walk.json`.
        """
        self.folder, self.failure = folder, ""
        self._engine, self.lens, self._unit = engine, lens, unit
        self._before, self.latent_frames, self._settings = before, 0, settings
        self._prompts: list[tuple[str, Tensor, int]] = []
        height, width = engine.cells
        self._rows = {"latent.f32": 4 * CHANNELS * height * width, "steps.f64": 128, "poses.f64": 128}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._files: dict[str, IO[bytes]] = {name: (folder / name).open("w+b", 0) for name in self._rows}
            self._inputs = InputLog(folder)
            save_tensors(picture, folder / START)
            if before is not None:
                before.save(folder / BEFORE)
        except OSError as error:
            raise InputError(f"the walk cannot be kept in {folder}: {error.strerror}") from error

    @property
    def chunks(self) -> int:
        return self.latent_frames // self._engine.chunk

    def add_prompt(self, text: str, context: Tensor) -> None:
        """Save the prompt of the next chunks and its embedding `context` [1, L, D]. If writing fails, raise InputError
        for the walk's first prompt; for a later prompt, set the attribute `failure`."""
        first = not self._prompts
        self._prompts = [*(part for part in self._prompts if part[2] < self.latent_frames)]
        self._prompts.append((text, context.cpu(), self.latent_frames))
        reason = self._try(self._write_prompt)
        if first and reason:
            raise InputError(f"the walk cannot be kept in {self.folder}: {reason}")

    def add_setting(self, name: str, value: Any) -> None:
        self._settings = {**self._settings, name: value}
        if not self.failure:
            self._try(lambda: self._write_settings({}))

    def append(self, latent: Tensor, relative_poses: np.ndarray, poses: np.ndarray, inputs: FrameInputs) -> None:
        """Save a chunk: `latent` float32 [1, 16, n, h, w], `relative_poses` [n, 4, 4], and `poses` [m, 4, 4] of the
        video frames. Do nothing after a failed write."""
        rows = latent[0].transpose(0, 1).contiguous().numpy(), relative_poses, poses
        if not self.failure:
            self._try(lambda: self._append(rows, latent.shape[2], inputs))

    def record_rebuild(self, *, new_prompt: bool) -> None:
        if not self.failure:
            self._try(lambda: self._inputs.add_rebuild(self.latent_frames, new_prompt=new_prompt))

    def _append(self, rows: tuple[np.ndarray, ...], latent_frames: int, inputs: FrameInputs) -> None:
        self._inputs.add_inputs(self.latent_frames, inputs)
        for file, row in zip(self._files.values(), rows, strict=True):
            left = memoryview(np.ascontiguousarray(row).tobytes())
            while left:  # an unbuffered file may accept a part first, and then report a full disk
                left = left[file.write(left) :]
        self.latent_frames += latent_frames

    def cut(self, chunks: int) -> None:
        """Remove all saved chunks except the first `chunks`."""
        self.latent_frames = min(self.latent_frames, chunks * self._engine.chunk)
        self._prompts = [part for part in self._prompts if part[2] < self.latent_frames] or self._prompts[:1]
        self._try(self._write_prompt)
        self._try(lambda: self._inputs.cut(self.latent_frames))
        self._cut_files()

    def _cut_files(self) -> None:
        lengths = self.latent_frames, self.latent_frames, video_frames(self.latent_frames, self._before)
        for (name, file), length in zip(self._files.items(), lengths, strict=True):
            file.truncate(length * self._rows[name])
            file.seek(0, os.SEEK_END)

    def _try(self, write: Any) -> str:
        """Call `write()`. Return an empty string, or the reason if it fails."""
        try:
            write()
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.failure = f"the walk is no longer kept in {self.folder} ({reason}); the earlier frames stay there"
            self._cut_files()
            return reason
        return ""

    def latent(self, first: int, last: int) -> Tensor:
        """Return the saved latent frames with the indices `first` to `last - 1`, float32 [1, 16, n, h, w]."""
        height, width = self._engine.cells
        return latent_rows(self.folder / "latent.f32", (height, width), first, last)

    def relative_poses(self, first: int, last: int) -> np.ndarray:
        """Return the model's camera input, float64 [n, 4, 4], of latent frames `first` to `last` (excluded)."""
        return pose_rows(self.folder / "steps.f64", last)[first:]

    def context(self, latent_frame: int) -> Tensor:
        """Return the embedding [1, L, D] of the prompt for the latent frame number `latent_frame`."""
        return next(context for _, context, first in reversed(self._prompts) if first <= latent_frame)

    @property
    def last_prompt(self) -> tuple[str, Tensor]:
        """The text and the embedding [1, L, D] of the last prompt."""
        return self._prompts[-1][:2]

    def poses(self) -> np.ndarray:
        """Return the camera poses of the walk's video frames, float64 [n, 4, 4]. If the walk continues an earlier
        video, that video's last pose is added as the first row."""
        return path_rows(self.folder, self.latent_frames, self._before)

    def state(self) -> WorldState:
        """Return the state after the last saved chunk. Raises InputError before the first chunk."""
        return load_walk(self.folder)

    def _write_prompt(self) -> None:
        text, context, first = self._prompts[-1]
        save_tensors({"context": context}, self.folder / f"prompt.{len(self._prompts) - 1}.safetensors")
        self._write_settings({})

    def _write_settings(self, more: dict[str, Any]) -> None:
        settings = {
            "format": FORMAT,
            **engine_settings(self._engine),
            "lens": self.lens.tolist(),
            "unit": self._unit,
            "continued": self._before is not None,
            **self._settings,
            "prompts": [{"text": text, "first": first} for text, _, first in self._prompts],
            **more,
        }
        with written_whole(self.folder / SETTINGS_FILE) as (part,):
            part.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Close all files, and move the recorded inputs into `walk.json` if it can be written."""
        try:
            self._write_settings({"inputs": self._inputs.rows()})
            self._inputs.close(delete=True)
        except (OSError, InputError):
            self._inputs.close(delete=False)
        for file in self._files.values():
            file.close()


def engine_settings(engine: Engine) -> dict[str, Any]:
    """Return the settings of the engine that affect a walk's frames, as entries for `walk.json`."""
    schedule = dataclasses.asdict(engine.schedule)
    return {
        "cells": [*engine.cells],
        "chunk": engine.chunk,
        "window": engine.window.frames,
        "sink": engine.window.sink,
        "release": engine.release,
        "config": dataclasses.asdict(engine.config),
        "dtype": engine.dtype,
        "schedule": {name: [*values] for name, values in schedule.items() if isinstance(values, tuple)},
    }
