"""The file of a saved state, from which another run continues a causal model's video."""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..camera import check_intrinsics, check_poses
from ..camera.poses import check_actions
from ..errors import CheckpointError, InputError
from ..model.config import ModelConfig
from ..options import CHUNK, CHUNKS, Window
from ..outputs import written_whole
from ..weights.tensors import MappedFile, TensorEntry, read_safetensors
from .geometry import PATCH

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
    """A prompt and the number of chunks generated with it.

    context: the embedding [1, L, D].
    negative: the negative prompt's embedding; None without guidance.
    """

    text: str
    context: Tensor
    chunks: int
    negative: Tensor | None = None


def prompts_of(starts: Sequence[tuple[int, str, Tensor]], negative: Tensor | None = None) -> list[Prompt]:
    """Return a run's prompts from tuples (first chunk, text, embedding [1, L, D]). The last prompt's `chunks` is 0,
    because its end is not known."""
    ends = [first for first, _, _ in starts[1:]] + [starts[-1][0]]
    return [
        Prompt(text, context, end - first, negative) for (first, text, context), end in zip(starts, ends, strict=True)
    ]


@dataclass(frozen=True)
class WorldState:
    """A video of f latent frames and the inputs that it was made from, on the CPU.

    latent: float32 [1, 16, f, h, w].
    frame: float32 [3, H, W], about -1 to 1, the video's first frame.
    poses: float64 [f, 4, 4], relative to the previous pose, scaled; the first is the identity.
    lens: float64 [f, 4], fx, fy, cx, cy in pixels of 832x480.
    last_pose: float64 [4, 4], camera-to-world, in the path's coordinates.
    scale: the divisor of translations; 0 until the camera has moved.
    release: the release that made the last frames, or "".
    flags: float64 [f, 4], an action model's W, A, S, D; else None.
    threads: torch's CPU threads, on which rounding depends; 0: not recorded.
    """

    latent: Tensor
    frame: Tensor
    poses: Tensor
    lens: Tensor
    last_pose: Tensor
    scale: float
    prompts: tuple[Prompt, ...]
    window: Window
    config: ModelConfig
    release: str = ""
    chunk: int = CHUNK
    flags: Tensor | None = None
    threads: int = 0

    @property
    def chunks(self) -> int:
        return self.latent.shape[2] // self.chunk

    @property
    def frames(self) -> int:
        """The number of video frames that the latent decodes to."""
        return 4 * self.latent.shape[2] - 3

    def check(self, config: ModelConfig, chunk: int | None, guided: bool) -> None:
        """Raise InputError if these settings cannot continue the saved video.

        config: the model's configuration.
        chunk: the requested number of latent frames per chunk; None: no request.
        guided: whether a negative prompt guides the new run.
        """
        made, given = dataclasses.asdict(self.config), dataclasses.asdict(config)
        sizes = ", ".join(f"{key} {made[key]}, not {given[key]}" for key in made if made[key] != given[key])
        if sizes:
            raise InputError(f"the state was made with another model: {sizes}; continue with the same model")
        if chunk not in (None, self.chunk):
            raise InputError(
                f"`chunk` {chunk}: the state was made in chunks of {self.chunk} latent frames, and continues in "
                "them, because its keys and values are computed again: leave `chunk` out"
            )
        if guided != (self.prompts[-1].negative is not None):
            raise InputError(
                "the state was made with guidance by a negative prompt, or without, and this run is not; "
                "continue with the same model, and the same side of a guidance scale of 1"
            )

    def notes(self, release: str, window: Window) -> tuple[str, ...]:
        """Return notes for the user if this run's `release` or `window` differs from the state's."""
        notes = []
        if self.release not in ("", release):
            notes.append(f"The video so far was made by {self.release}; {release} continues it.")
        if self.window != window:
            notes.append(
                f"The video so far was made with window {self.window.frames} and sink {self.window.sink}; it "
                f"continues with {window.frames} and {window.sink}."
            )
        return tuple(notes)

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file. Raises InputError if the file cannot be written."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        tensors = {name: getattr(self, name) for name in _TENSORS}
        for index, prompt in enumerate(self.prompts):
            tensors[f"prompt.{index}"] = prompt.context
            if prompt.negative is not None:
                tensors[f"negative.{index}"] = prompt.negative
        if self.flags is not None:
            tensors["flags"] = self.flags
        # Copies: runs with the same text share its embedding, and safetensors refuses tensors that share memory.
        tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
        metadata = {
            "format": FORMAT,
            "scale": self.scale,
            "window": self.window.frames,
            "sink": self.window.sink,
            "chunk": self.chunk,
            "config": dataclasses.asdict(self.config),
            "release": self.release,
            "threads": self.threads,
            "prompts": [{"text": prompt.text, "chunks": prompt.chunks} for prompt in self.prompts],
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as (part,):
                part.touch()  # newer versions of safetensors make a file that only its owner may read
                rights = part.stat().st_mode
                save_file(tensors, part, {"lingbot_world": json.dumps(metadata)})
                part.chmod(rights)
        except (OSError, SafetensorError) as error:  # SafetensorError if the disk is full
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"the state {path} cannot be written: {reason}") from error


def last_prompt(path: str | Path) -> str:
    """Return the text of the last prompt in a saved state's file. Raises InputError or CheckpointError for an invalid
    file."""
    metadata, _ = _read(Path(path))
    try:
        return str(metadata["prompts"][-1]["text"])
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"{path}: not a state that can be continued ({error})") from error


def load_state(path: str | Path) -> WorldState:
    """Return the state in a file that `WorldState.save` wrote. Raises InputError if the file is not a saved state,
    CheckpointError if it is damaged."""
    path = Path(path)
    metadata, entries = _read(path)
    tensors = {name: entry.view().clone() for name, entry in entries.items()}
    for name, (dtype, dimensions) in _TENSORS.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != dtype or tensor.ndim != dimensions or not tensor.isfinite().all():
            raise InputError(f"{path.name}: {name} is missing or invalid; write the state again")
    try:
        prompts = tuple(
            Prompt(
                str(prompt["text"]),
                tensors[f"prompt.{index}"],
                _whole("chunks", prompt["chunks"]),
                tensors.get(f"negative.{index}"),
            )
            for index, prompt in enumerate(metadata["prompts"])
        )
        state = WorldState(
            **{name: tensors[name] for name in _TENSORS},
            scale=float(metadata["scale"]),
            prompts=prompts,
            window=Window(_whole("window", metadata["window"]), _whole("sink", metadata["sink"])),
            config=ModelConfig(**metadata["config"]),
            release=str(metadata.get("release", "")),
            chunk=_whole("chunk", metadata.get("chunk", CHUNK)),
            flags=tensors.get("flags"),
            threads=_whole("threads", metadata.get("threads", 0)),
        )
        _check_sizes(state)
        _check_camera(state)
        for index, prompt in enumerate(prompts):
            _check_prompt(f"prompt.{index}", prompt.context, state.config)
            if prompt.negative is not None:
                _check_prompt(f"negative.{index}", prompt.negative, state.config)
        state.window.check(state.chunk)
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # LingBotErrors too, which do not name the file
        raise InputError(f"{path.name}: not a state that can be continued ({error}); write it again") from error
    return state


def _read(path: Path) -> tuple[dict, dict[str, TensorEntry]]:
    if not path.is_file():
        found = "is a folder; name the file, such as a walk's walk.state" if path.is_dir() else "does not exist"
        raise InputError(f"the state {path} {found}")
    try:
        entries = read_safetensors(path)
    except CheckpointError as error:
        hint = "expected a whole file that --save_state wrote"
        raise CheckpointError(str(error).replace("download it again", hint)) from error
    source = next((entry.source for entry in entries.values()), None)
    try:
        metadata = json.loads(source.metadata["lingbot_world"]) if isinstance(source, MappedFile) else None
    except (KeyError, TypeError, ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise InputError(f"{path.name}: not a state of LingBot-World; expected a file that --save_state wrote")
    return metadata, entries


def _whole(name: str, number: object) -> int:
    if type(number) is not int:
        raise InputError(f"{name} is {number!r}, expected a whole number")
    return number


def _check_sizes(state: WorldState) -> None:
    if state.chunk not in CHUNKS:
        raise InputError(f"chunk is {state.chunk}, expected one of {', '.join(map(str, CHUNKS))}")
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
    if wrong or not frames or frames % state.chunk or min(chunks, default=0) < 1 or sum(chunks) != state.chunks:
        raise InputError(f"its parts do not fit together: {', '.join(wrong) or 'chunks'}")


def _check_camera(state: WorldState) -> None:
    check_poses(state.poses.numpy(), "poses")
    check_poses(state.last_pose.numpy()[None], "last_pose")
    check_intrinsics(state.lens.numpy(), "lens")
    if (state.flags is not None) != (state.config.control == 7):
        raise InputError("flags go with an action model, and with no other")
    if state.flags is not None and len(check_actions(state.flags.numpy(), "flags")) != len(state.poses):
        raise InputError(f"flags has {len(state.flags)} rows for {len(state.poses)} poses")
    if not 0 <= state.scale < math.inf:
        raise InputError(f"scale is {state.scale}, expected 0 or a length above it")


def _check_prompt(name: str, context: Tensor, config: ModelConfig) -> None:
    tokens = context.shape[1] if context.ndim == 3 else 0
    if tuple(context.shape) != (1, tokens, config.text_dim) or not 0 < tokens <= config.text_len:
        raise InputError(
            f"{name}: shape {list(context.shape)}, expected 1 to {config.text_len} tokens of "
            f"{config.text_dim} values, [1, tokens, {config.text_dim}]"
        )
    if context.dtype not in (torch.float32, torch.bfloat16, torch.float16) or not context.isfinite().all():
        raise InputError(f"{name}: expected finite floating-point numbers")
