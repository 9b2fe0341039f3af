"""The file from which another run continues a causal model's video.

Neither keys and values nor the VAE's state are saved: they would take 27 GB at 480x832. Both are computed again from
the latents, to the same bits: the keys and values by one forward a chunk, the VAE's state by decoding the last frames.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..camera import CameraTrack, check_intrinsics, check_poses, continue_track
from ..errors import CheckpointError, InputError
from ..loaders.tensors import read_safetensors
from ..model.config import ModelConfig
from ..options import CHUNK
from .geometry import PATCH
from .world import check_window

FORMAT = "lingbot-world state 1"
_TENSORS = {
    "latent": (torch.float32, 5),
    "frame": (torch.float32, 3),
    "poses": (torch.float64, 3),
    "lens": (torch.float64, 2),
    "last_pose": (torch.float64, 2),
}


@dataclass(frozen=True)
class Prompt:
    """A prompt, its embedding [1, L, D], and how many chunks were made with it."""

    text: str
    context: Tensor
    chunks: int


@dataclass(frozen=True)
class WorldState:
    """A video of f latent frames and what it was made from; all tensors are on the CPU.

    latent [1, 16, f, h, w] float32. frame [3, H, W] float32: the VAE's input for the first frame. poses [f, 4, 4] and
    lens [f, 4] float64: the camera in the form that the model gets (`camera.model_poses`). last_pose [4, 4]: the last
    latent frame's pose in the world of the path. scale: the length by which translations were divided, 0 as long as
    the camera has not moved. window and sink: latent frames, as in `pipeline.rollout`. release: the name of the one
    that made the last frames (see `release_of`), empty in files that do not tell it."""

    latent: Tensor
    frame: Tensor
    poses: Tensor
    lens: Tensor
    last_pose: Tensor
    scale: float
    prompts: tuple[Prompt, ...]
    window: int
    sink: int
    config: ModelConfig
    release: str = ""

    @property
    def chunks(self) -> int:
        return self.latent.shape[2] // CHUNK

    @property
    def frames(self) -> int:
        """Frames that the latent decodes to."""
        return 4 * self.latent.shape[2] - 3

    def contexts(self) -> list[Tensor]:
        """The prompt's embedding of each chunk."""
        return [prompt.context for prompt in self.prompts for _ in range(prompt.chunks)]

    def check(self, config: ModelConfig) -> None:
        """Raises InputError unless the video can be continued with this model."""
        made, given = dataclasses.asdict(self.config), dataclasses.asdict(config)
        sizes = ", ".join(f"{key} {made[key]}, not {given[key]}" for key in made if made[key] != given[key])
        if sizes:
            raise InputError(f"the state was made with another model: {sizes}; go on with the same")

    def notes(self, release: str, window: int, sink: int) -> tuple[str, ...]:
        """What the user is told where this `release` goes on with the video, with this window and sink. The models are
        alike in size, and a video may well go on with the other one; so it may with a smaller window."""
        notes = []
        if self.release not in ("", release):
            notes.append(f"The video so far was made by {self.release}; {release} goes on.")
        if (self.window, self.sink) != (window, sink):
            notes.append(f"The video so far was made with window {self.window} and sink {self.sink}; it goes on with "
                         f"{window} and {sink}.")  # fmt: skip
        return tuple(notes)

    def continue_track(self, c2w: np.ndarray | None, lens: np.ndarray | None, frames: int) -> CameraTrack:
        """A path's first `frames` poses over the latent frames that come next; without a path the camera stands still,
        without a `lens` it keeps the last one. Raises CameraError."""
        lens = self.lens[-1].numpy() if lens is None else lens
        return continue_track(c2w, lens, frames, CHUNK, before=self.last_pose.numpy(), scale=self.scale)

    def save(self, path: str | Path) -> None:
        """Writes a safetensors file beside `path` and renames it when complete. Raises InputError."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        tensors |= {f"prompt.{index}": prompt.context.contiguous() for index, prompt in enumerate(self.prompts)}
        metadata = {
            "format": FORMAT, "scale": self.scale, "window": self.window, "sink": self.sink,
            "config": dataclasses.asdict(self.config), "release": self.release,
            "prompts": [{"text": prompt.text, "chunks": prompt.chunks} for prompt in self.prompts],
        }  # fmt: skip
        part = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, part, {"lingbot_world": json.dumps(metadata)})
            os.replace(part, path)
        except (OSError, SafetensorError) as error:  # the second where the disk is full
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"the state {path} cannot be written: {reason}") from error
        finally:
            part.unlink(missing_ok=True)


def load_state(path: str | Path) -> WorldState:
    """Reads what `WorldState.save` wrote. Raises InputError for any other file, CheckpointError for a damaged one."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"the state {path} {'is a folder' if path.is_dir() else 'does not exist'}")
    try:
        tensors = {name: entry.view().clone() for name, entry in read_safetensors(path).items()}
    except CheckpointError as error:
        hint = "expected a whole file that --save_state wrote"
        raise CheckpointError(str(error).replace("download it again", hint)) from error
    metadata = _metadata(path)
    for name, (dtype, dimensions) in _TENSORS.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != dtype or tensor.ndim != dimensions or not tensor.isfinite().all():
            raise InputError(f"{path.name}: {name} is missing or not what a state holds; write the state again")
    try:
        prompts = tuple(
            Prompt(str(prompt["text"]), tensors[f"prompt.{index}"], _whole("chunks", prompt["chunks"]))
            for index, prompt in enumerate(metadata["prompts"])
        )
        state = WorldState(
            **{name: tensors[name] for name in _TENSORS}, scale=float(metadata["scale"]), prompts=prompts,
            window=_whole("window", metadata["window"]), sink=_whole("sink", metadata["sink"]),
            config=ModelConfig(**metadata["config"]), release=str(metadata.get("release", "")),
        )  # fmt: skip
        _check_sizes(state)
        _check_camera(state)
        for index, prompt in enumerate(prompts):
            _check_prompt(f"prompt.{index}", prompt.context, state.config)
        check_window(state.window, state.sink)
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # LingBotErrors too, which do not name the file
        raise InputError(f"{path.name}: not a state that can be continued ({error}); write it again") from error
    return state


def _metadata(path: Path) -> dict:
    """What `WorldState.save` wrote beside the tensors; `read_safetensors` has checked the header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    try:
        metadata = json.loads(header["__metadata__"]["lingbot_world"])
    except (KeyError, TypeError, ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise InputError(f"{path.name}: not a state of LingBot-World; expected a file that --save_state wrote")
    return metadata


def _whole(name: str, number: object) -> int:
    if type(number) is not int:
        raise InputError(f"{name} is {number!r}, expected a whole number")
    return number


def _check_sizes(state: WorldState) -> None:
    frames, (height, width) = state.latent.shape[2], state.latent.shape[3:]
    expected = {
        "latent": (1, 16, frames, height, width),
        "frame": (3, 8 * height, 8 * width),
        "poses": (frames, 4, 4),
        "lens": (frames, 4),
        "last_pose": (4, 4),
    }
    wrong = [key for key, shape in expected.items() if tuple(getattr(state, key).shape) != shape]
    if min(height, width) < PATCH or height % PATCH or width % PATCH:
        wrong.append("latent")
    chunks = [prompt.chunks for prompt in state.prompts]
    if wrong or not frames or frames % CHUNK or min(chunks, default=0) < 1 or sum(chunks) != state.chunks:
        raise InputError(f"its parts do not fit together: {', '.join(wrong) or 'chunks'}")


def _check_camera(state: WorldState) -> None:
    check_poses(state.poses.numpy(), "poses")
    check_poses(state.last_pose.numpy()[None], "last_pose")
    check_intrinsics(state.lens.numpy(), "lens")
    if not 0 <= state.scale < math.inf:
        raise InputError(f"scale is {state.scale}, expected 0 or a length above it")


def _check_prompt(name: str, context: Tensor, config: ModelConfig) -> None:
    """Raises InputError for what is no embedding [1, L, D] that the model reads."""
    tokens = context.shape[1] if context.ndim == 3 else 0
    if tuple(context.shape) != (1, tokens, config.text_dim) or not 0 < tokens <= config.text_len:
        raise InputError(f"{name}: shape {list(context.shape)}, expected 1 to {config.text_len} tokens of "
                         f"{config.text_dim} values, [1, tokens, {config.text_dim}]")  # fmt: skip
    if context.dtype not in (torch.float32, torch.bfloat16, torch.float16) or not context.isfinite().all():
        raise InputError(f"{name}: expected finite floating-point numbers")


def grow(
    state: WorldState | None,
    latent: Tensor,
    track: CameraTrack,
    prompt: str,
    context: Tensor,
    *,
    frame: Tensor,
    window: int,
    sink: int,
    config: ModelConfig,
    release: str,
) -> WorldState:
    """The state after the latent frames [1, 16, f, h, w] that went on from `state`, or began a video (None).

    `track` may be longer than they are; `context` is the embedding of `prompt`, which was in force for all of them."""
    done = latent.shape[2]
    parts = {
        "latent": latent,
        "poses": torch.from_numpy(track.poses[:done].copy()),
        "lens": torch.from_numpy(np.tile(track.lens, (done, 1))),
    }
    if state is not None:
        parts = {name: torch.cat([getattr(state, name), new], dim=2 if name == "latent" else 0)
                 for name, new in parts.items()}  # fmt: skip
    prompts = () if state is None else state.prompts
    return WorldState(
        **parts, frame=frame, last_pose=torch.from_numpy(track.world[done - 1].copy()), scale=track.scale,
        prompts=(*prompts, Prompt(prompt, context.cpu(), done // CHUNK)), window=window, sink=sink, config=config,
        release=release,
    )  # fmt: skip
