"""A world that goes on: what a causal model's video so far has to leave behind for another run to continue it.

Neither keys and values nor the VAE's state are kept: they would come to 27 GB at 480x832. Both are made again from the
latents, bit for bit: the keys and values by one forward a chunk, the VAE's state by decoding the last frames.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .camera import CameraTrack, continue_track
from .errors import InputError
from .geometry import CHUNK
from .loaders.tensors import read_safetensors
from .model.config import ModelConfig

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
    """A prompt, its embedding [1, L, D], and for how many chunks it was in force."""

    text: str
    context: Tensor
    chunks: int


@dataclass(frozen=True)
class WorldState:
    """A video of f latent frames and what it was made from; all tensors on the CPU.

    latent [1, 16, f, h, w] float32. frame [3, H, W] float32: the first frame as the VAE was given it. poses [f, 4, 4]
    and lens [f, 4] float64: the camera as the model was given it (`camera.model_poses`). last_pose [4, 4]: of the last
    latent frame, in the world of the path; scale: the length that translations were divided by. window and sink: latent
    frames, as in `pipeline.rollout`."""

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

    @property
    def chunks(self) -> int:
        return self.latent.shape[2] // CHUNK

    def contexts(self) -> list[Tensor]:
        """The prompt's embedding of each chunk."""
        return [prompt.context for prompt in self.prompts for _ in range(prompt.chunks)]

    def check(self, config: ModelConfig, window: int | None = None, sink: int | None = None) -> None:
        """Raises InputError unless this model, window and sink can go on with it."""
        for name, mine, theirs in (("model", self.config, config), ("window", self.window, window),
                                   ("sink", self.sink, sink)):  # fmt: skip
            if theirs is not None and mine != theirs:
                raise InputError(
                    f"the state was made with another {name}: {_difference(mine, theirs)}; go on with the same"
                )

    def continue_track(self, c2w: np.ndarray | None, lens: np.ndarray | None, frames: int) -> CameraTrack:
        """A path's first `frames` poses over the latent frames that come next; without a path the camera stands still,
        without a `lens` it keeps the last one. Raises CameraError."""
        lens = self.lens[-1].numpy() if lens is None else lens
        return continue_track(c2w, lens, frames, CHUNK, before=self.last_pose.numpy(), scale=self.scale)

    def save(self, path: str | Path) -> None:
        """Writes a safetensors file beside `path` and renames it when complete. Raises InputError."""
        from safetensors.torch import save_file

        path = Path(path)
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        tensors |= {f"prompt.{index}": prompt.context.contiguous() for index, prompt in enumerate(self.prompts)}
        told = {
            "format": FORMAT, "scale": self.scale, "window": self.window, "sink": self.sink,
            "config": dataclasses.asdict(self.config),
            "prompts": [{"text": prompt.text, "chunks": prompt.chunks} for prompt in self.prompts],
        }  # fmt: skip
        part = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, part, {"lingbot_world": json.dumps(told)})
            os.replace(part, path)
        except OSError as error:
            raise InputError(f"the state {path} cannot be written: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)


def load_state(path: str | Path) -> WorldState:
    """Reads what `WorldState.save` wrote. Raises InputError for any other file, CheckpointError for a damaged one."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"the state {path} does not exist")
    tensors = {name: entry.view().clone() for name, entry in read_safetensors(path).items()}
    told = _told(path)
    for name, (dtype, dimensions) in _TENSORS.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != dtype or tensor.ndim != dimensions or not tensor.isfinite().all():
            raise InputError(f"{path.name}: {name} is missing or not what a state holds; write the state again")
    try:
        prompts = tuple(
            Prompt(str(prompt["text"]), tensors[f"prompt.{index}"], int(prompt["chunks"]))
            for index, prompt in enumerate(told["prompts"])
        )
        state = WorldState(
            **{name: tensors[name] for name in _TENSORS}, scale=float(told["scale"]), prompts=prompts,
            window=int(told["window"]), sink=int(told["sink"]), config=ModelConfig(**told["config"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path.name}: not a state that can be continued ({error}); write it again") from error
    _check_sizes(path.name, state)
    return state


def _told(path: Path) -> dict:
    """The metadata of the file; its header was checked before."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    try:
        told = json.loads(header["__metadata__"]["lingbot_world"])
    except (KeyError, TypeError, ValueError):
        told = None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise InputError(f"{path.name}: not a state of LingBot-World; expected a file that --save_state wrote")
    return told


def _check_sizes(name: str, state: WorldState) -> None:
    frames, (height, width) = state.latent.shape[2], state.latent.shape[3:]
    expected = {
        "latent": (1, 16, frames, height, width),
        "frame": (3, 8 * height, 8 * width),
        "poses": (frames, 4, 4),
        "lens": (frames, 4),
        "last_pose": (4, 4),
    }
    wrong = [key for key, shape in expected.items() if tuple(getattr(state, key).shape) != shape]
    if wrong or not frames or frames % CHUNK or sum(prompt.chunks for prompt in state.prompts) != state.chunks:
        raise InputError(f"{name}: its parts do not fit together ({', '.join(wrong) or 'chunks'}); write it again")


def _difference(mine: object, theirs: object) -> str:
    if not isinstance(mine, ModelConfig):
        return f"{mine}, not {theirs}"
    told, found = dataclasses.asdict(mine), dataclasses.asdict(theirs)
    return ", ".join(f"{key} {told[key]}, not {found[key]}" for key in told if told[key] != found[key])


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
    )  # fmt: skip
