"""The checks of a run's options before weights are loaded, and Plan, the base class of a checked run."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..camera.path import MOST_FRAMES
from ..camera.pose_folder import PoseFolder
from ..errors import InputError
from ..loaders.release import role_of
from ..model.choice.card import multiplies_half
from ..model.ops.linear_8bit import suited_arithmetic
from ..options import SHIFT, Precision, torch_dtype
from ..pipeline.geometry import Geometry, explicit_geometry, output_geometry
from ..pipeline.memory import MemoryWishes
from ..sampling import StepReuse, flow_timesteps, guide_scales
from ..text import Tokenizer
from ..text.weights import UMT5Weights
from ..weights.files import WEIGHT_SUFFIXES
from .files.target import Target
from .options import CHOICES, GenerateOptions
from .prompt_cache import EmbeddingCache

MAX_FPS = 1000
"""The maximum value of the option `fps`."""


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """A run's options and its opened input files. The transformer's files are not included. Weights are memory-mapped.

    tokenizer: only its path if `prompt_cache` has the prompt's embedding, else the open tokenizer.
    """

    options: GenerateOptions
    tokenizer: Tokenizer | Path
    prompt_cache: EmbeddingCache
    text_encoder: UMT5Weights
    vae: Mapping[str, Tensor]
    target: Target
    device: torch.device
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class Plan(RunInputs):
    """A run with checked options, open inputs and a writable output.

    frame: the first frame, float32 [3, H, W], from -1 to 1.
    notes: messages for the user.
    """

    frame: Tensor
    geometry: Geometry
    notes: tuple[str, ...]

    @property
    def frames_before(self) -> int:
        """The number of frames of the video that this run continues; 0 for a new video."""
        return 0

    @property
    def prompts_by_chunk(self) -> tuple[tuple[int, str], ...]:
        """The prompts of the video as pairs (index of the first chunk with the prompt, the prompt's text)."""
        return ((0, self.options.prompt),)

    def precision(self, processes: int = 1) -> Precision:
        """Return a forward's Precision (dtype, arithmetic, attention) if `processes` processes share the forward."""
        arithmetic = suited_arithmetic(self.options.arithmetic, self.device)
        return Precision(self.dtype, arithmetic, self.options.attention, processes)

    @property
    def memory_options(self) -> MemoryWishes:
        return MemoryWishes(**{field.name: getattr(self.options, field.name) for field in fields(MemoryWishes)})

    @property
    def cells(self) -> tuple[int, int]:
        """The height and width of the latent."""
        return self.geometry.lat_h, self.geometry.lat_w

    @property
    def decoding_device(self) -> torch.device:
        return self.device

    @property
    def half(self) -> torch.dtype | None:
        """The VAE decoder's 16-bit dtype, or None for fp32. The option `vae_dtype` "auto" selects fp16 on GPUs with
        fp16 matrix instructions, else fp32. A decoder split over several processes always runs in fp32."""
        if self.options.vae_dtype == "auto":
            return torch.float16 if multiplies_half(self.decoding_device) else None
        dtype = torch_dtype(self.options.vae_dtype)
        return None if dtype == torch.float32 else dtype


def pluralize(count: int, thing: str) -> str:
    """Return text such as "1 step" or "2 steps". `thing`: the singular noun."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def refuse_options(options: GenerateOptions, names: Sequence[str], reason: str) -> None:
    """Raise InputError if one of the options `names` differs from its default. The message contains `reason`, a text
    that says why the model ignores the option."""
    defaults = {field.name: field.default for field in fields(GenerateOptions)}
    given = [name for name in names if getattr(options, name) != defaults[name]]
    if given:
        raise InputError(f"`{given[0]}` has no effect: {reason}; leave it out")


def check_settings(options: GenerateOptions) -> None:
    """Raise InputError if an option is outside its choices or range, or does not suit other options or this machine."""
    for name, choices in CHOICES.items():
        found = getattr(options, name)
        if found not in choices and not (found is None and name == "dtype"):
            raise InputError(f"`{name}` {found}: expected one of {', '.join(choices)}")
    flow_timesteps(options.sampling_steps, SHIFT if options.shift is None else options.shift, options.solver)
    guide_scales(options.guide_scale)
    StepReuse(options.reuse_threshold)
    if not 0 <= options.boundary <= 1:
        raise InputError(f"`boundary` {options.boundary}: a share of the noise range from 0 to 1 is expected")
    if (options.width is None) != (options.height is None):
        raise InputError("`width` and `height` go together; name both or neither")
    for lora in options.lora:
        if not lora.path.exists():
            raise InputError(f"`lora` {lora.path} does not exist")
        if lora.path.is_dir() and not any(file.suffix in WEIGHT_SUFFIXES for file in lora.path.iterdir()):
            raise InputError(f"`lora` {lora.path} is a folder without weights; name the LoRA's file")
        if not math.isfinite(lora.strength):
            raise InputError(f"`lora` {lora.path}: its strength is {lora.strength}, expected a finite number")
    if not 1 <= options.frame_num <= MOST_FRAMES:
        expected = "at least 1 frame" if options.frame_num < 1 else f"at most {MOST_FRAMES:,} frames at a time"
        raise InputError(f"`frame_num` {options.frame_num}: expected {expected}")
    if options.seed is not None and not 0 <= options.seed < 2**63:
        raise InputError(f"`seed` {options.seed}: expected 0 to 2**63 - 1")
    if not 1 <= options.fps <= MAX_FPS:
        raise InputError(f"`fps` {options.fps}: expected 1 to {MAX_FPS} frames a second")
    if options.noise_device == "cuda" and not torch.cuda.is_available():
        raise InputError("`noise_device` cuda: torch sees no CUDA GPU here; use cpu")


def geometry_of(options: GenerateOptions, image: np.ndarray, n_poses: int | None, chunk: int = 1) -> Geometry:
    """Return the geometry of a video that begins with `image`, [H, W, 3]. `n_poses`: the camera path's length or None.
    The number of latent frames is a multiple of `chunk`."""
    if options.width is not None and options.height is not None:
        return explicit_geometry(options.width, options.height, options.frame_num, n_poses, chunk=chunk)
    height, width = image.shape[:2]
    return output_geometry(width, height, options.max_area, options.frame_num, n_poses, chunk=chunk)


def lora_notes(options: GenerateOptions, two_experts: bool = False) -> tuple[str, ...]:
    """Return a note on each LoRA. With `two_experts`, also warn of a LoRA that is named for one expert but applies to
    both."""
    where = {"high": ", on the high-noise expert", "low": ", on the low-noise expert"}
    lines = [
        f"LoRA {lora.path.name}, strength {lora.strength:g}{where.get(lora.expert or '', '')}" for lora in options.lora
    ]
    notes = [
        line if lines.count(line) == 1 else f"{line}, given {lines.count(line)} times: it counts as often"
        for line in dict.fromkeys(lines)
    ]
    for lora in options.lora if two_experts else ():
        role = role_of(lora.path, [other.path for other in options.lora])
        if role not in (None, lora.expert):
            notes.append(
                f"LoRA {lora.path.name} is for the {role}-noise expert by its name: write `{role}=` before it to apply "
                "it to that expert only."
            )
    return tuple(notes)


def text_dtype(options: GenerateOptions) -> torch.dtype:
    return torch.float32 if options.dtype == "fp32" else torch.bfloat16


def text_notes(options: GenerateOptions, guided: bool) -> tuple[str, ...]:
    """Return warnings about doubtful prompts and useless guidance. `guided`: whether the model uses the negative
    prompt."""
    notes = [] if options.prompt.strip() else ["The prompt is empty."]
    if re.fullmatch(r"@?\S+\.(txt|md)|@\S+", options.prompt.strip()):
        notes.append(f"The prompt is the text {options.prompt!r}, not a file's content; `prompt_file` reads a file.")
    if options.negative is not None and not guided:
        notes.append("Guidance is 1: the negative prompt has no effect.")
    elif options.negative == options.prompt:
        notes.append("The prompt and the negative prompt are the same text: guidance changes nothing.")
    if guided and not any(guide_scales(options.guide_scale)):
        notes.append("Guidance is 0: only the negative prompt has an effect, and the prompt has none.")
    return tuple(notes)


def length_notes(options: GenerateOptions, geometry: Geometry, camera: PoseFolder | None) -> tuple[str, ...]:
    """Return notes from reading the camera path, and one if the video has fewer frames than `frame_num`."""
    notes = () if camera is None else camera.notes
    wanted, frames = options.frame_num, geometry.frames
    if frames >= wanted:
        return notes
    reason = "Frames come in 4n+1"
    if camera is not None and len(camera.c2w) < wanted:
        reason = f"{options.action_path or 'The camera path'} holds {len(camera.c2w)} poses"
    return (*notes, f"{reason}: the video has {frames} frames, not {wanted}.")
