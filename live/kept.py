"""The saved data of a walk: a folder that grows chunk by chunk, so that memory does not grow, and a killed process
loses nothing.

`walk.json` holds the settings of the walk. Next to it: `start.safetensors` (the first frame), `prompt.N.safetensors`
(an embedding), `before.state` (the video that the walk continues, if any), and three files that grow with each chunk:
`latent.f32`, `steps.f64` (the model's camera input, a pose per latent frame), `poses.f64` (a pose per video frame).
With seed, schedule, dtype and inputs (see inputs.py) the walk can be repeated."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..model.config import ModelConfig
from ..options import Window
from ..pipeline.state import Prompt, WorldState, load_state
from .controls import FRAMES_OF_ONE, Wishes
from .engine import Engine
from .inputs import InputLog

FORMAT = "lingbot-world walk 1"
HEAD, START, BEFORE = "walk.json", "start.safetensors", "before.state"
STATE, CAMERA = "walk.state", "camera"
CHANNELS = 16


class Kept:
    """The folder of a walk in progress. If the disk is full, `failure` holds the reason, the data so far stays, and the
    walk continues."""

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        picture: Mapping[str, Tensor],
        lens: np.ndarray,
        unit: float,
        before: WorldState | None,
        facts: Mapping[str, Any],
    ) -> None:
        """Create the folder. `picture`: the first `frame` and its latent, the `image`. `facts`: settings of the walk.
        Raises InputError if the folder cannot be written."""
        self.folder, self.failure = folder, ""
        self._engine, self.lens, self._unit = engine, lens, unit
        self._before, self.latent_frames, self._facts = before, 0, facts
        self._prompts: list[tuple[str, Tensor, int]] = []
        height, width = engine.cells
        self._rows = {"latent.f32": 4 * CHANNELS * height * width, "steps.f64": 128, "poses.f64": 128}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._files: dict[str, IO[bytes]] = {name: (folder / name).open("w+b", 0) for name in self._rows}
            self._inputs = InputLog(folder)
            _save(picture, folder / START)
            if before is not None:
                before.save(folder / BEFORE)
        except OSError as error:
            raise InputError(f"the walk cannot be kept in {folder}: {error.strerror}") from error

    @property
    def chunks(self) -> int:
        return self.latent_frames // self._engine.chunk

    def prompt(self, text: str, context: Tensor) -> None:
        """Set the prompt from the next chunk on; `context` [1, L, D] is its embedding. Raises InputError if the walk's
        first prompt cannot be written, because then nothing would be saved."""
        first = not self._prompts
        self._prompts = [*(part for part in self._prompts if part[2] < self.latent_frames)]
        self._prompts.append((text, context.cpu(), self.latent_frames))
        reason = self._try(self._write_head)
        if first and reason:
            raise InputError(f"the walk cannot be kept in {self.folder}: {reason}")

    def note(self, name: str, value: Any) -> None:
        """Add a setting of the walk to `walk.json`."""
        self._facts = {**self._facts, name: value}
        if not self.failure:
            self._try(lambda: self._write_facts({}))

    def append(self, latent: Tensor, steps: np.ndarray, poses: np.ndarray, wishes: Wishes) -> None:
        """Add a chunk: its latent float32 [1, 16, n, h, w], the model's camera input [n, 4, 4], the poses of the video
        frames, and the inputs."""
        rows = latent[0].transpose(0, 1).contiguous().numpy(), steps, poses
        if not self.failure:
            self._try(lambda: self._append(rows, latent.shape[2], wishes))

    def rebuilt(self, *, refresh: bool) -> None:
        """Record that keys and values were recomputed here, with another prompt if it was a `refresh`."""
        if not self.failure:
            self._try(lambda: self._inputs.add_rebuild(self.latent_frames, refresh=refresh))

    def _append(self, rows: tuple[np.ndarray, ...], latent_frames: int, wishes: Wishes) -> None:
        self._inputs.add_wishes(self.latent_frames, wishes)
        for file, row in zip(self._files.values(), rows, strict=True):
            left = memoryview(np.ascontiguousarray(row).tobytes())
            while left:  # an unbuffered file may accept a part first, and then report a full disk
                left = left[file.write(left) :]
        self.latent_frames += latent_frames

    def cut(self, chunks: int) -> None:
        """Remove all chunks after the first `chunks`."""
        self.latent_frames = min(self.latent_frames, chunks * self._engine.chunk)
        self._prompts = [part for part in self._prompts if part[2] < self.latent_frames] or self._prompts[:1]
        self._try(self._write_head)
        self._try(lambda: self._inputs.cut(self.latent_frames))
        self._cut_files()

    def _cut_files(self) -> None:
        lengths = self.latent_frames, self.latent_frames, _video_frames(self.latent_frames, self._before)
        for (name, file), length in zip(self._files.items(), lengths, strict=True):
            file.truncate(length * self._rows[name])
            file.seek(0, os.SEEK_END)

    def _try(self, write: Any) -> str:
        """Run `write`; return the reason of a failure, or an empty string."""
        try:
            write()
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.failure = f"the walk is no longer kept in {self.folder} ({reason}); what was made before stays there"
            self._cut_files()
            return reason
        return ""

    def latent(self, first: int, last: int) -> Tensor:
        """Return latent frames of this walk, float32 [1, 16, n, h, w]."""
        height, width = self._engine.cells
        return _latent(self.folder / "latent.f32", (height, width), first, last)

    def steps(self, first: int, last: int) -> np.ndarray:
        """Return the model's camera input for these latent frames, [n, 4, 4]."""
        return _poses(self.folder / "steps.f64", last)[first:]

    def context(self, latent_frame: int) -> Tensor:
        """Return the embedding of the prompt that a latent frame was made with."""
        return next(context for _, context, first in reversed(self._prompts) if first <= latent_frame)

    @property
    def last_prompt(self) -> tuple[str, Tensor]:
        return self._prompts[-1][:2]

    def poses(self) -> np.ndarray:
        """Return each video frame's pose, float64 [n, 4, 4]; if the walk continues a video, the last pose of that video
        comes first."""
        return _path(self.folder, self.latent_frames, self._before)

    def state(self) -> WorldState:
        """Return the walk as a state that any run can continue. Raises InputError if nothing was made."""
        return load_walk(self.folder)

    def _write_head(self) -> None:
        text, context, first = self._prompts[-1]
        _save({"context": context}, self.folder / f"prompt.{len(self._prompts) - 1}.safetensors")
        self._write_facts({})

    def _write_facts(self, more: dict[str, Any]) -> None:
        head = {
            "format": FORMAT,
            **engine_facts(self._engine),
            "lens": self.lens.tolist(),
            "unit": self._unit,
            "continued": self._before is not None,
            **self._facts,
            "prompts": [{"text": text, "first": first} for text, _, first in self._prompts],
            **more,
        }
        part = self.folder / (HEAD + ".part")
        part.write_text(json.dumps(head, indent=1) + "\n", encoding="utf-8")
        os.replace(part, self.folder / HEAD)

    def close(self) -> None:
        """Close the files and move the inputs into `walk.json`."""
        try:
            self._write_facts({"inputs": self._inputs.rows()})
            self._inputs.close(delete=True)
        except OSError:
            self._inputs.close(delete=False)
        for file in self._files.values():
            file.close()


def kept_walks(folder: Path) -> list[Path]:
    """Return the folders of the walks saved in a folder, the oldest first."""
    found = [walk for walk in folder.glob("walk-*") if (walk / HEAD).is_file()]
    return sorted(found, key=lambda walk: (walk / HEAD).stat().st_mtime)


def load_walk(folder: str | Path) -> WorldState:
    """Return the state of a walk saved in a folder, up to its last complete chunk. Raises InputError."""
    return _loaded(Path(folder))[0]


def save_whole(folder: str | Path) -> None:
    """Write the files that other commands read into a walk's folder, up to its last complete chunk: walk.state, and
    camera/ with poses.npy and intrinsics.npy. Raises InputError."""
    folder = Path(folder)
    state, poses = _loaded(folder)
    state.save(folder / STATE)
    camera, lens = folder / CAMERA, state.lens[-1].numpy()
    try:
        camera.mkdir(exist_ok=True)
        np.save(camera / "poses.npy", poses)
        np.save(camera / "intrinsics.npy", np.tile(lens, (len(poses), 1)))
    except OSError as error:
        raise InputError(f"the camera path cannot be written to {camera}: {error.strerror}") from error


def whole_state(folder: Path) -> Path:
    """Return the path of a walk's state. If the state or the camera path is missing, the process was killed, so both
    are written now. Raises InputError."""
    state = folder / STATE
    ended = (folder / CAMERA / "poses.npy").is_file() or not (folder / HEAD).is_file()
    if not (ended and state.is_file()):
        save_whole(folder)
    return state


def engine_facts(engine: Engine) -> dict[str, Any]:
    """Return the engine's settings that determine a walk's frames, in the form of `walk.json`."""
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


def read_head(folder: Path) -> dict[str, Any]:
    """Return the content of `walk.json`. Raises OSError or ValueError."""
    head: dict[str, Any] = json.loads((folder / HEAD).read_text(encoding="utf-8"))
    if head.get("format") != FORMAT:
        raise ValueError(f"not a walk: its format is {head.get('format')}")
    return head


def _loaded(folder: Path) -> tuple[WorldState, np.ndarray]:
    """Return a walk's state, and its poses in the form of `Kept.poses`."""
    try:
        head = read_head(folder)
        before = load_state(folder / BEFORE) if head["continued"] else None
        state = _state(folder, head, before)
        made = state.latent.shape[2] - (0 if before is None else before.latent.shape[2])
        return state, _path(folder, made, before)
    except (OSError, KeyError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{folder}: not a walk that was kept ({reason}); expected a folder with {HEAD}") from error


def _state(folder: Path, head: dict[str, Any], state: WorldState | None) -> WorldState:
    before = None if state is None else state.last_pose.numpy()
    size = 4 * CHANNELS * head["cells"][0] * head["cells"][1]
    counts = {"latent.f32": size, "steps.f64": 128, "poses.f64": 128 * FRAMES_OF_ONE}
    made = (
        min(
            -(-(folder / name).stat().st_size // row) if "poses" in name else (folder / name).stat().st_size // row
            for name, row in counts.items()
        )
        // head["chunk"]
        * head["chunk"]
    )
    if not made:
        raise ValueError("no chunk of it is whole")
    lens, frame = np.array(head["lens"]), load_tensors(folder / START)["frame"]
    steps = _poses(folder / "steps.f64", made)
    world = _poses(folder / "poses.f64", _video_frames(made, state))[3 if before is not None else 0 :: FRAMES_OF_ONE]
    parts = {
        "latent": _latent(folder / "latent.f32", tuple(head["cells"]), 0, made),
        "poses": torch.from_numpy(steps),
        "lens": torch.from_numpy(np.tile(lens, (made, 1))),
    }
    if state is not None:
        parts = {
            name: torch.cat([getattr(state, name), part], dim=2 * (name == "latent")) for name, part in parts.items()
        }
    prompts = [
        Prompt(text, load_tensors(folder / f"prompt.{index}.safetensors")["context"], frames // head["chunk"])
        for index, text, frames in _parts(head["prompts"], made)
    ]
    return WorldState(
        **parts,
        frame=frame,
        last_pose=torch.from_numpy(world[made - 1].copy()),
        scale=head["unit"],
        prompts=(*(() if state is None else state.prompts), *prompts),
        window=Window(head["window"], head["sink"]),
        config=ModelConfig(**head["config"]),
        release=head["release"],
        chunk=head["chunk"],
    )


def _parts(prompts: list[dict[str, Any]], made: int) -> Iterator[tuple[int, str, int]]:
    """Yield the index of each prompt that latent frames were made with, its text, and the number of these frames."""
    for index, (prompt, after) in enumerate(zip(prompts, [*prompts[1:], {"first": made}], strict=True)):
        frames = min(made, after["first"]) - prompt["first"]
        if frames > 0:
            yield index, prompt["text"], frames


def _video_frames(latent_frames: int, before: WorldState | None) -> int:
    return max(0, FRAMES_OF_ONE * latent_frames - (3 if before is None else 0))


def _path(folder: Path, latent_frames: int, before: WorldState | None) -> np.ndarray:
    """Return each video frame's pose, after the last one of a video `before`."""
    walked = _poses(folder / "poses.f64", _video_frames(latent_frames, before))
    return walked if before is None else np.concatenate([before.last_pose.numpy()[None], walked])


def _latent(path: Path, cells: tuple[int, int], first: int, last: int) -> Tensor:
    size = CHANNELS * cells[0] * cells[1]
    rows = np.fromfile(path, np.float32, size * (last - first), offset=4 * size * first)
    latent = torch.from_numpy(rows.reshape(last - first, CHANNELS, *cells))
    return latent.transpose(0, 1)[None].contiguous()


def _poses(path: Path, count: int) -> np.ndarray:
    return np.fromfile(path, np.float64, 16 * count).reshape(count, 4, 4)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # the disk is full
        raise InputError(f"{path} cannot be written: {error}") from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return copies of the tensors, because memory-mapped ones would change if the file is rewritten."""
    from safetensors.torch import load_file

    return {name: tensor.clone() for name, tensor in load_file(path).items()}
