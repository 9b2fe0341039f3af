"""The options for making one video, with the command line's names, defaults and choices."""

import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from ..errors import InputError
from ..fields import check_text
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
"""The options that set the camera path. At most one of them may be set."""
STDOUT = "-"
"""The value of `output` for standard output."""
WEB_ADDRESS_ERROR = "an address; expected a path on this machine: download the files first (models: `hf download`)"
LORA = "[high=|low=]FILE[:STRENGTH]"
"""The syntax of a LoRA on the command line."""
POSE_FILES = ("poses.npy", "intrinsics.npy", "action.npy")
"""The files of a pose folder: poses, intrinsics, and optional W, A, S, D flags."""
PARTS = ("high", "low", "text_encoder", "tokenizer", "vae")
"""The options that replace parts of the model package."""
BASE_OPTIONS = ("negative", "sampling_steps", "boundary", "guide_scale", "solver", "reuse_threshold", "high", "low")
"""The base model's sampling options. Causal models refuse them, but causal-pretrain accepts GUIDED_OPTIONS."""
GUIDED_OPTIONS = ("negative", "sampling_steps", "guide_scale", "solver")
"""The base models' sampling options that a guided causal model (causal-pretrain) also takes. Causal models without
guidance refuse these options."""
UNGUIDED_ONLY = ("schedule",)
"""The options in CAUSAL_ONLY that only unguided causal models take. causal-pretrain, which is guided, refuses them."""
CAUSAL_ONLY = (
    *("release", "chunk", "window", "sink", "decoder_device", "schedule", "kv_cache"),
    *("save_state", "continue_from", "events"),
)
"""The options that only causal models take."""


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The options for making one video, named as in the official script.

    image: the first frame; an array is uint8 [H, W, 3].
    negative: the negative prompt; None selects the standard one.
    output: a video file, PNG folder, PNG names like f%04d.png, "-" for standard output, or None for memory.
    overwrite: whether an existing `output` or `save_state` is replaced.
    max_area: the maximum number of pixels of a frame with the image's aspect ratio.
    width, height: the exact size, in place of `max_area`.
    frame_num: the number of frames, 4n+1. A shorter camera path shortens the video.
    action_path: a folder with a camera path: poses.npy and intrinsics.npy.
    preset: in place of `action_path`, the name of a move in `camera.moves`.
    keys: in place of both, held keys with numbers of frames, such as "w-10,iw-15".
    ckpt_dir: the model package's folder.
    assets_dir: a folder with text encoder, tokenizer and VAE.
    high, low, text_encoder, tokenizer, vae: paths to use in place of the package's.
    release: a key of RELEASES, if the files do not show the release.
    seed: None draws a random seed.
    noise_device: "cpu" draws equal noise everywhere, "cuda" the official code's noise.
    shift: the shift of the noise schedule; None selects the model's.
    boundary: the noise level, 0 to 1, down to which the high-noise expert predicts.
    guide_scale: one guidance scale, or (low, high) for the two experts.
    reuse_threshold: steps are extrapolated up to this estimated relative error; 0 for none.
    device: None selects the GPU, or the CPU if there is no GPU.
    dtype: None selects bf16 on a GPU, fp32 on the CPU.
    vae_dtype: the VAE decoder's dtype; "auto" selects fp16 on suitable GPUs.
    residency: "one" or "both" experts stay on the GPU; "stream" copies blocks.
    camera_cache: whether camera layers' results stay on the GPU for later steps.
    shard: whether processes split an expert's weights. `residency` then has no effect.

    The following are only for causal models. Unset, `chunk`, `window` and `sink` come from the continued state or the
    release.

    chunk: the number of latent frames that are generated together, 1 to 4.
    window: the attention window in latent frames; 0 is the whole video.
    sink: the number of first latent frames that stay in the window.
    schedule: "v1", "v2" or the indices of the denoising steps.
    kv_cache: the place of keys and values: "gpu", "8bit" (GPU, in 8 bits), "host" memory, or "auto" for what fits.
    decoder_device: another CUDA GPU that decodes a chunk during the next one.
    save_state: a file for the state, from which another run can continue.
    continue_from: a saved state, or the folder of a live walk. The output has only new frames.
    events: a file of texts that extend the prompt from given seconds on.
    """

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
        """Raise InputError for an option of a wrong type, a prompt with invalid UTF-8, or a web address in place of a
        file. Convert NumPy numbers to Python's, which torch requires."""
        hints = get_type_hints(type(self))
        check_types(vars(self), hints)
        for name in ("prompt", "negative"):
            check_text(f"`{name}`", getattr(self, name) or "")
        for name, value in vars(self).items():
            if (name == "image" or Path in get_args(hints[name])) and isinstance(value, str) and is_address(value):
                raise InputError(f"`{name}` {value}: {WEB_ADDRESS_ERROR}")
        for name, value in list(vars(self).items()):
            if isinstance(value, Number) and hasattr(value, "item"):
                object.__setattr__(self, name, value.item())


CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind)
    for name, hint in get_type_hints(GenerateOptions).items()
    for kind in (hint, *get_args(hint))
    if get_origin(kind) is Literal
}
"""The allowed values of each option with a fixed set of values."""


def is_address(text: str) -> bool:
    """Return whether a text begins like a URL, with a scheme such as https:// or hf://."""
    return re.match(r"(https?|ftp|hf|s3|gs)://", text) is not None


def parse_lora(text: str) -> LoraFile:
    """Return the LoRA's file, strength and expert from an option's value, such as FILE, FILE:0.8 (strength 0.8) or
    high=FILE (high-noise expert). Raises ArgumentTypeError for an empty path or a web address."""
    expert = next((role for role in ("high", "low") if text.startswith(f"{role}=")), None)
    name = text.removeprefix(f"{expert}=")
    if not name:
        raise ArgumentTypeError(f"{text!r}: the path is empty, as of a shell's variable that is not set")
    if is_address(name):
        raise ArgumentTypeError(f"{name}: {WEB_ADDRESS_ERROR}")
    path, _, strength = name.rpartition(":")
    try:
        return LoraFile(Path(path or name).expanduser(), float(strength) if path else 1.0, expert)
    except ValueError:
        return LoraFile(Path(name).expanduser(), 1.0, expert)


def parse_size(text: str) -> tuple[int, int]:
    """Return both numbers of a text like 480x832 or 480*832, in the text's order. The option decides whether width or
    height is first. Raises ArgumentTypeError for other texts."""
    sides = text.lower().replace("x", "*").split("*")
    if len(sides) != 2 or not all(side.strip().isdecimal() and int(side) > 0 for side in sides):
        raise ArgumentTypeError(f"{text!r} is not like 480x832")
    return int(sides[0]), int(sides[1])
