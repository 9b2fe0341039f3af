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
"""The names of the options that set the camera path. At most one of them may be set; the others are None."""
STDOUT = "-"
"""The value of `output` for standard output."""
AN_ADDRESS = "an address; expected a path on this machine: download the files first (models: `hf download`)"
"""The second half of the error message for a web address in place of a path, after the option's name and value."""
LORA = "[high=|low=]FILE[:STRENGTH]"
"""The syntax of a LoRA on the command line (see `parse_lora`)."""
POSE_FILES = ("poses.npy", "intrinsics.npy", "action.npy")
"""The names of the files in a pose folder: poses, intrinsics, and W, A, S, D flags (optional)."""
PARTS = ("high", "low", "text_encoder", "tokenizer", "vae")
"""The options that name files or folders in place of parts of the model package."""
BASE_ONLY = ("negative", "sampling_steps", "boundary", "guide_scale", "solver", "reuse_threshold", "high", "low")
"""The options that only the base model uses. One exception: causal-pretrain, a causal model, uses those in GUIDED."""
GUIDED = ("negative", "sampling_steps", "guide_scale", "solver")
"""The options in BASE_ONLY that the model causal-pretrain uses too, because it is a causal model with guidance."""
FEW_STEPS_ONLY = ("schedule",)
"""The options in CAUSAL_ONLY that causal-pretrain does not use, because it takes many guided steps per chunk."""
CAUSAL_ONLY = (
    *("release", "chunk", "window", "sink", "decoder_device", "schedule", "kv_cache"),
    *("save_state", "continue_from", "events"),
)
"""The names of the options that only causal models take. Setting one of them for the base model is an error."""


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The options for making one video, named as in the official script and its community forks.

    Input and output:

    image: a file, a Pillow image, or an array uint8 [H, W, 3]: the first frame.
    prompt, negative: the prompt and the negative prompt; `negative` None is the standard negative prompt.
    output: a video file, a folder or pattern for PNG files, or "-" for standard output. With None, the result contains
        the frames and no file is written.
    overwrite: whether an existing `output` or `save_state` is replaced; otherwise it raises an error.
    max_area: the video has the image's aspect ratio and at most this many pixels.
    width, height: the exact size in pixels, in place of `max_area`. Both must be set together.
    frame_num: the number of frames, 4n+1. A shorter camera path shortens the video.
    fps: the frame rate of the file.

    Camera: at most one of these may be set. Without a path, the base model moves the camera freely, and a causal
    model's camera stands still.

    action_path: a folder with poses.npy and intrinsics.npy.
    preset: the name of a move in `camera.moves`.
    keys: keyboard keys, and for each the number of frames for which it is held, such as "w-10,iw-15".

    Model files:

    ckpt_dir: the package, which is the folder with the models.
    assets_dir: a folder with text encoder, tokenizer and VAE.
    high, low, text_encoder, tokenizer, vae: files or folders that replace parts of the package.
    lora: LoRA files, which are added to the weights at run time.
    release: the model's release, a key of RELEASES, if the files do not show it.

    Sampling:

    seed: the seed of the noise; None is a random seed.
    noise_device: "cpu" draws the same noise on every machine. "cuda" draws the noise of the official code.
    sampling_steps: the number of steps of both experts together.
    shift: the shift of the noise schedule. None is 5 for the base model, and the shift of the release for a causal
        model.
    boundary: a noise level, 0 to 1. The high-noise expert predicts the steps at or above it, the low-noise expert the
        others.
    solver: the solver of the steps, "unipc" or "dpmpp".
    guide_scale: the guidance scale, one number or (low, high) for the two experts.
    reuse_threshold: a step is extrapolated from earlier steps, without the model, if the estimated relative error is at
        most this number. 0 computes every step.

    Device and memory:

    device: None is the GPU, or the CPU without a GPU.
    dtype: the compute dtype; None is bf16 on a GPU and fp32 on the CPU.
    arithmetic, attention, vae_dtype: other number formats, see Arithmetic, AttentionMode and VaeDtype.
    residency: "one" or "both" experts stay in GPU memory. "stream" copies blocks to the GPU in each step. "auto"
        selects what fits.
    camera_cache: "gpu" keeps the camera layers' results on the GPU for later steps. "off" keeps none, and "auto" keeps
        as many as fit.
    vae_tiling: whether the VAE works in tiles, with less memory but more time.
    shard: whether several processes split an expert's weights. `residency` then has no effect.

    Causal models only (LingBot-World Fast and 2.0; CAUSAL_ONLY lists these options). Causal models do not use the
    options in BASE_ONLY, but causal-pretrain uses those in GUIDED.

    chunk: the number of latent frames that are generated together, 1 to 4.
    window: the attention window in latent frames; 0 is the whole video.
    sink: the number of latent frames at the start of the video that always stay in the window.
    schedule: "v1", "v2" or the indices of the denoising steps. None is the schedule of the release.
    kv_cache: the storage of attention keys and values: on the "gpu", in "host" memory, or "8bit" (in 8 bits, on the GPU
        if they fit). "auto" selects what fits.
    decoder_device: another CUDA GPU, such as "cuda:1", that decodes a chunk while `device` makes the next one.
    save_state: a file for the state, from which another run can continue the video.
    continue_from: a file that `save_state` wrote, or the folder of a walk (a steered video).
    events: a file of sentences, each of which is added to the prompt from a given second of this video on (see
        `text.events.read_events`).

    If `chunk`, `window` or `sink` is None, the value of the continued state is used, or that of the release.

    A run with `continue_from` needs no `image`, and an empty `prompt` means the state's last prompt. The new video has
    only the new frames. PNG files are numbered as if the continued video came first.

    The camera path of such a run begins at the state's last pose. The translations of the new and the earlier path are
    divided by the same scale. The unit of length is therefore that of the first path that moved the camera.
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
        """Raise InputError for a value of the wrong type, for text that is not valid UTF-8, and for a web address in
        place of a path. NumPy numbers become Python numbers, because torch requires these."""
        hints = get_type_hints(type(self))
        check_types(vars(self), hints)
        for name in ("prompt", "negative"):
            check_text(f"`{name}`", getattr(self, name) or "")
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
"""The allowed values of each option that has a fixed set of values, by the option's name."""


def is_address(text: str) -> bool:
    """Return whether a text is a URL: it begins with http://, https://, ftp://, hf://, s3:// or gs://."""
    return re.match(r"(https?|ftp|hf|s3|gs)://", text) is not None


def parse_lora(text: str) -> LoraFile:
    """Return the LoRA in a text such as FILE, FILE:0.8 or high=FILE:0.8.

    The number is the strength, by default 1. The prefix "high=" or "low=" restricts the LoRA to one expert. A colon
    that is not followed by a number belongs to the file's name. Raises ArgumentTypeError for an empty name and for a
    web address.
    """
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


def parse_size(text: str) -> tuple[int, int]:
    """Return the two numbers in a text such as 480x832 or 480*832, here (480, 832). Raises ArgumentTypeError for any
    other text."""
    sides = text.lower().replace("x", "*").split("*")
    if len(sides) != 2 or not all(side.strip().isdecimal() and int(side) > 0 for side in sides):
        raise ArgumentTypeError(f"{text!r} is not like 480x832")
    return int(sides[0]), int(sides[1])
