"""Reading of a saved walk's folder, and writing of the walk's state and camera path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import CheckpointError, InputError
from ...model.config import ModelConfig
from ...options import Window
from ...pipeline.state import Prompt, WorldState, load_state
from ..controls import FRAMES_PER_LATENT
from .settings import CAMERA, STATE, read_settings, wrap_read_errors

START, BEFORE = "start.safetensors", "before.state"
CHANNELS = 16


def load_walk(folder: str | Path) -> WorldState:
    """Return the state after the last complete chunk of a saved walk. Raises InputError without a complete chunk."""
    return _load(Path(folder))[0]


def write_state_and_camera(folder: str | Path) -> None:
    """Write `walk.state` and the files of the camera path into a saved walk's folder. Raises InputError without a
    complete chunk, and if writing fails."""
    folder = Path(folder)
    state, poses = _load(folder)
    state.save(folder / STATE)
    camera, lens = folder / CAMERA, state.lens[-1].numpy()
    try:
        camera.mkdir(exist_ok=True)
        np.save(camera / "poses.npy", poses)
        np.save(camera / "intrinsics.npy", np.tile(lens, (len(poses), 1)))
    except OSError as error:
        raise InputError(f"the camera path cannot be written to {camera}: {error.strerror}") from error


def _load(folder: Path) -> tuple[WorldState, np.ndarray]:
    settings = read_settings(folder)
    with wrap_read_errors(folder):
        before = load_state(folder / BEFORE) if settings["continued"] else None
        state = _state(folder, settings, before)
        made = state.latent.shape[2] - (0 if before is None else before.latent.shape[2])
        return state, path_rows(folder, made, before)


def _state(folder: Path, settings: dict[str, Any], state: WorldState | None) -> WorldState:
    before = None if state is None else state.last_pose.numpy()
    sides = *settings["cells"], settings["chunk"]
    if not all(type(side) is int and side > 0 for side in sides):
        raise ValueError(f"its cells and chunk are {sides!r:.60}, expected whole numbers")
    size = 4 * CHANNELS * settings["cells"][0] * settings["cells"][1]
    counts = {"latent.f32": size, "steps.f64": 128, "poses.f64": 128 * FRAMES_PER_LATENT}
    made = (
        min(
            -(-(folder / name).stat().st_size // row) if "poses" in name else (folder / name).stat().st_size // row
            for name, row in counts.items()
        )
        // settings["chunk"]
        * settings["chunk"]
    )
    if not made:
        raise ValueError("no chunk of it is whole")
    lens, frame = np.array(settings["lens"]), load_tensors(folder / START)["frame"]
    steps = pose_rows(folder / "steps.f64", made)
    world = pose_rows(folder / "poses.f64", video_frames(made, state))[
        3 if before is not None else 0 :: FRAMES_PER_LATENT
    ]
    parts: dict[str, Any] = {
        "latent": latent_rows(folder / "latent.f32", tuple(settings["cells"]), 0, made),
        "poses": torch.from_numpy(steps),
        "lens": torch.from_numpy(np.tile(lens, (made, 1))),
    }
    if state is not None:
        parts = {
            name: torch.cat([getattr(state, name), part], dim=2 * (name == "latent")) for name, part in parts.items()
        }
    prompts = [
        Prompt(text, load_tensors(folder / f"prompt.{index}.safetensors")["context"], frames // settings["chunk"])
        for index, text, frames in _used_prompts(settings["prompts"], made)
    ]
    return WorldState(
        **parts,
        frame=frame,
        last_pose=torch.from_numpy(world[made - 1].copy()),
        scale=settings["unit"],
        prompts=(*(() if state is None else state.prompts), *prompts),
        window=Window(settings["window"], settings["sink"]),
        config=ModelConfig(**settings["config"]),
        release=settings["release"],
        chunk=settings["chunk"],
    )


def _used_prompts(prompts: list[dict[str, Any]], made: int) -> Iterator[tuple[int, str, int]]:
    """Yield (index, text, number of latent frames) for each prompt used in the first `made` latent frames."""
    for index, (prompt, after) in enumerate(zip(prompts, [*prompts[1:], {"first": made}], strict=True)):
        frames = min(made, after["first"]) - prompt["first"]
        if frames > 0:
            yield index, prompt["text"], frames


def video_frames(latent_frames: int, before: WorldState | None) -> int:
    """Return the number of video frames of a walk: four per latent frame. If `before` is None, the first latent frame
    has only one."""
    return max(0, FRAMES_PER_LATENT * latent_frames - (3 if before is None else 0))


def path_rows(folder: Path, latent_frames: int, before: WorldState | None) -> np.ndarray:
    """Return the camera poses, float64 [n, 4, 4], of the video frames decoded from a saved walk's first `latent_frames`
    latent frames. `before` is the state of the video that the walk continues, or None. The last pose of that video
    becomes the first row."""
    walked = pose_rows(folder / "poses.f64", video_frames(latent_frames, before))
    return walked if before is None else np.concatenate([before.last_pose.numpy()[None], walked])


def latent_rows(path: Path, cells: tuple[int, int], first: int, last: int) -> Tensor:
    """Return n = `last` - `first` latent frames from index `first` of a file, float32 [1, 16, n, h, w]. `cells` is the
    latent's (height, width)."""
    size = CHANNELS * cells[0] * cells[1]
    rows = np.fromfile(path, np.float32, size * (last - first), offset=4 * size * first)
    latent = torch.from_numpy(rows.reshape(last - first, CHANNELS, *cells))
    return latent.transpose(0, 1)[None].contiguous()


def pose_rows(path: Path, count: int) -> np.ndarray:
    """Return the first `count` camera-to-world poses in a file, float64 [count, 4, 4]."""
    return np.fromfile(path, np.float64, 16 * count).reshape(count, 4, 4)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors into a safetensors file. Raises InputError or OSError if writing fails."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # the disk is full
        raise InputError(f"{path} cannot be written: {error}") from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return copies of the tensors in a safetensors file. Raises CheckpointError for a broken file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        # a mapped tensor would change when the file is rewritten
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise CheckpointError(f"{path}: truncated or corrupt ({error}); expected a file that a walk wrote") from error
