"""The options of a run. The command builds its flags from their names, defaults and choices."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from ..errors import InputError
from ..options import (
    BOUNDARY,
    FPS,
    FRAMES,
    GUIDE_SCALE,
    SIZE,
    STEPS,
    Arithmetic,
    AttentionMode,
    CameraCacheMode,
    DtypeName,
    KeyValueMode,
    LoraFile,
    NoiseDevice,
    ResidencyMode,
    SolverName,
    VaeDtype,
)
from ..typed import check_types

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    ImageInput = str | Path | Image.Image | np.ndarray
else:
    ImageInput = object  # checked by `read_image`, which imports the libraries for the check

CAMERAS = ("action_path", "preset", "keys")
"""The options that define a camera; at most one of them may be set."""
STDOUT = "-"
"""The value of `output` for standard output."""
AN_ADDRESS = "an address; expected a path on this machine: download the files first (models: `hf download`)"
"""The error message for a web address in place of a path."""
LORA = "[high=|low=]FILE[:STRENGTH]"
"""The command's syntax of a LoRA (see `lora_of`)."""
POSE_FILES = ("poses.npy", "intrinsics.npy", "action.npy")
"""The files of a pose folder."""
PARTS = ("high", "low", "text_encoder", "tokenizer", "vae")
"""The options that name a part of the package that is stored elsewhere."""
BASE_ONLY = ("negative", "sampling_steps", "boundary", "guide_scale", "solver", "reuse_threshold", "high", "low")
"""The options that a causal model does not use."""
GUIDED = ("negative", "sampling_steps", "guide_scale", "solver")
"""The options of BASE_ONLY that causal-pretrain does use."""
FEW_STEPS_ONLY = ("schedule",)
"""The options that causal-pretrain does not use."""
CAUSAL_ONLY = (
    "release",
    "chunk",
    "window",
    "sink",
    "decoder_device",
    "schedule",
    "kv_cache",
    "save_state",
    "continue_from",
    "events",
)
"""The options that the base model's two experts do not use."""


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The options of one run, named as in the official script and in the community's.

    The video has at most `max_area` pixels in the image's aspect ratio, or exactly `width` times `height`, which must
    be set together. `guide_scale` is one number or (low, high). None means: a random `seed`; the default `negative`
    prompt; as `device` the GPU if there is one; as `dtype` bf16 on a GPU and fp32 on the CPU; as `high`, `low`,
    `text_encoder`, `tokenizer` and `vae` the package's own parts; and as `shift` 5 for the base model, the release's
    default for a causal one. `assets_dir` names a folder with text encoder, tokenizer and VAE. `lora` files are added
    to the weights in use; stored weights do not change.

    The camera path comes from the folder `action_path`, from a `preset` of `camera.moves` at its defaults, or from held
    `keys`, such as "w-10,iw-15". Without one the base model moves the camera freely, and a causal model's camera stands
    still.

    `image` is a file, a Pillow image, or an array uint8 [H, W, 3]. An existing `output` or `save_state` raises an error
    unless `overwrite` is set. If `output` is None nothing is written, and the result contains the frames. With `shard`
    several processes split the weights of an expert, whatever `residency` is.

    Causal models (LingBot-World Fast and 2.0) use none of BASE_ONLY, causal-pretrain only GUIDED, and the base model
    none of CAUSAL_ONLY. `release` names one of RELEASES if the model's files are ambiguous. `chunk` is the number of
    latent frames made at a time, 1 to 4. `schedule` is "v1", "v2" or the indices of the steps. `window` and `sink`
    count latent frames; a window of 0 is the whole video. None means the values that the checkpoint was trained for.
    `decoder_device` is another CUDA GPU than `device`, such as "cuda:1", which decodes a chunk while the next one is
    made.

    `continue_from` names a file that `save_state` wrote, or the folder of a walk. The video then contains the frames
    after the state's, and the numbering of PNG files continues. `image` is not needed, and an empty `prompt` means the
    state's last one. The path's first pose is placed where the camera stood, in the units of the first path that moved.
    `events` names a file of sentences that extend the prompt from a second of this video on
    (`live.worlds.events.read_events`)."""

    ckpt_dir: str | Path
    prompt: str
    output: str | Path | None
    image: ImageInput | None = None
    overwrite: bool = False
    negative: str | None = None
    action_path: str | Path | None = None
    preset: str | None = None
    keys: str | None = None
    max_area: int = SIZE[0] * SIZE[1]
    width: int | None = None
    height: int | None = None
    frame_num: int = FRAMES
    sampling_steps: int = STEPS
    shift: float | None = None
    boundary: float = BOUNDARY
    guide_scale: float | tuple[float, float] = GUIDE_SCALE
    solver: SolverName = "unipc"
    reuse_threshold: float = 0.0
    seed: int | None = None
    noise_device: NoiseDevice = "cpu"
    device: str | None = None
    dtype: DtypeName | None = None
    arithmetic: Arithmetic = "auto"
    attention: AttentionMode = "auto"
    residency: ResidencyMode = "auto"
    camera_cache: CameraCacheMode = "auto"
    vae_tiling: bool = False
    vae_dtype: VaeDtype = "auto"
    lora: tuple[LoraFile, ...] = ()
    shard: bool = False
    release: str | None = None
    chunk: int | None = None
    window: int | None = None
    sink: int | None = None
    schedule: str | tuple[int, ...] | None = None
    kv_cache: KeyValueMode = "auto"
    decoder_device: str | None = None
    save_state: str | Path | None = None
    continue_from: str | Path | None = None
    events: str | Path | None = None
    fps: int = FPS
    assets_dir: str | Path | None = None
    high: str | Path | None = None
    low: str | Path | None = None
    text_encoder: str | Path | None = None
    tokenizer: str | Path | None = None
    vae: str | Path | None = None

    def __post_init__(self) -> None:
        """Raise InputError for a value of a wrong type, and for a web address in place of a path. NumPy numbers are
        converted to Python numbers, which torch requires."""
        hints = get_type_hints(type(self))
        check_types(vars(self), hints)
        for name, value in vars(self).items():
            if (name == "image" or Path in get_args(hints[name])) and isinstance(value, str) and is_address(value):
                raise InputError(f"`{name}` {value}: {AN_ADDRESS}")
        for name, value in list(vars(self).items()):
            if isinstance(value, Number) and hasattr(value, "item"):
                object.__setattr__(self, name, value.item())


CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind)
    for name, hint in get_type_hints(GenerateOptions).items()
    for kind in (hint, *get_args(hint))
    if get_origin(kind) is Literal
}
"""The options with a fixed set of values, and those values."""


def is_address(text: str) -> bool:
    """Return whether a text is an address of the web or of a storage service."""
    return re.match(r"(https?|ftp|hf|s3|gs)://", text) is not None


def lora_of(text: str) -> LoraFile:
    """Return the LoRA for a text such as FILE, FILE:0.8 or high=FILE:0.8. A colon without a number after it is part of
    the file's name. Raises ArgumentTypeError for an empty name and for an address."""
    expert = next((role for role in ("high", "low") if text.startswith(f"{role}=")), None)
    name = text.removeprefix(f"{expert}=")
    if not name:
        raise ArgumentTypeError(f"{text!r}: the path is empty, as of a shell's variable that is not set")
    if is_address(name):
        raise ArgumentTypeError(f"{name}: {AN_ADDRESS}")
    path, _, strength = name.rpartition(":")
    try:
        return LoraFile(Path(path or name).expanduser(), float(strength) if path else 1.0, expert)
    except ValueError:
        return LoraFile(Path(name).expanduser(), 1.0, expert)


def two_sides(text: str) -> tuple[int, int]:
    """Return the two numbers of a text such as 480*832 or 480x832. Raises ArgumentTypeError."""
    sides = text.lower().replace("x", "*").split("*")
    if len(sides) != 2 or not all(side.strip().isdecimal() and int(side) > 0 for side in sides):
        raise ArgumentTypeError(f"{text!r} is not like 480*832")
    return int(sides[0]), int(sides[1])
