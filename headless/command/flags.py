"""GenerateOptions as flags of the command. This imports no torch."""

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from ...options import FRAMES, RELEASES, SIZE
from ..options import CHOICES, LORA, PARTS, GenerateOptions, lora_of, two_sides


class Parser(argparse.ArgumentParser):
    """Says what is wrong with words that it cannot read in one line, as the command says everything else."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"lingbot-world: {message}; `{self.prog} --help` says what there is\n")


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Says the defaults, where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, False, (), []) else action.help


def add_settings(parser: argparse.ArgumentParser) -> argparse._ActionsContainer:
    """Options of `generate` that may hold for many videos; returns the group of those for causal models."""
    add = adder(parser)
    add("ckpt_dir", "the package's folder, as `hf download` leaves it; or a causal model's file")
    add("negative", "negative prompt; left out: a list of usual flaws, in Chinese")
    add("action_path", "folder with poses.npy and intrinsics.npy; left out: no camera control")
    add_size(parser, "pixels in all, height*width; the image's aspect ratio shapes them")
    add("overwrite", "replace a video or state that is there already", action="store_true")
    add("sampling_steps", "steps of both experts together")
    add(
        "shift",
        "of the noise schedule: higher spends more steps on the layout; left out: what the model was made for",
        type=float,
    )
    add("boundary", "share of the noise above which the high-noise expert works")
    add("guide_scale", "1 leaves the negative prompt out", type=_scales, metavar="LOW[,HIGH]")
    add("solver", "what makes a step out of the model's prediction")
    add(
        "reuse_threshold",
        "such as 0.02: makes a step without the model where the steps before predict it to within this share; 0: never",
    )
    add("noise_device", "cuda gives the official code's noise")
    add("fps", "frames a second of the file")
    add("device", "left out: the GPU if there is one")
    add("dtype", "left out: bf16 on a GPU, fp32 on the CPU")
    add(
        "arithmetic",
        "numbers that the linear layers multiply; fp8 and int8 are less exact, and faster where the GPU "
        "can multiply them",
    )
    add("attention", "8bit is less exact, and faster where a kernel for it is installed")
    add("residency", "experts in GPU memory at a time; stream keeps as little of one there as possible")
    add(
        "camera_cache",
        "keep what the camera layers compute for the next step: auto where memory is free, off never, gpu always",
    )
    add("vae_tiling", "less memory, more time; comes by itself when memory runs out", action="store_true")
    add("vae_dtype", "of decoding; auto: fp16 on a GPU, and fp32 again where a number is too large; several GPUs: fp32")
    add(
        "lora",
        "added to the weights whenever they are used, 4-bit ones too; for one expert or both; strength 1 if "
        "none is named",
        type=lora_of,
        nargs="+",
        metavar=LORA,
    )
    add(
        "assets_dir",
        "folder with T5, tokenizer and VAE, such as the 14B's for the 1.3B; left out: looked for in the "
        "model's folder and beside it",
        metavar="PATH",
    )
    for name in PARTS:
        add(name, "in place of the package's own", metavar="PATH")
    causal = parser.add_argument_group("causal models (Fast, 2.0)", "left out: what the model was made for")
    add = adder(causal)
    add("release", "which one it is, where its files leave a doubt", choices=tuple(RELEASES))
    add("chunk", "latent frames, of four frames each, made at a time: more cost less a frame", type=int)
    add("window", "latent frames that a chunk looks back on, itself included; 0: the whole video", type=int)
    add("sink", "of these, latent frames from the video's beginning, which are never dropped", type=int)
    add("schedule", "v1, v2, or the indices of the steps, such as 0,250,500,750")
    add(
        "kv_cache",
        "where keys and values are kept: on the GPU, there in 8 bits, or in host memory; auto: by what is free",
    )
    add("decoder_device", "another GPU, such as cuda:1, that decodes a chunk's frames while the next is made")
    return causal


def adder(parser: argparse._ActionsContainer) -> Callable[..., None]:
    """`add(name, help)` adds the flag of a GenerateOptions field, whose default and choices argparse takes over. One
    that takes several values can be given again."""
    defaults = {field.name: field.default for field in fields(GenerateOptions)}
    hints = get_type_hints(GenerateOptions)

    def add(name: str, help: str | None = None, **settings: Any) -> None:
        default = defaults[name]
        settings |= {"required": True} if default is MISSING else {"default": default}
        if default == ():
            settings |= {"default": [], "action": "extend"}
        if type(default) in (int, float):
            settings.setdefault("type", type(default))
        if name == "image" or Path in get_args(hints[name]):
            settings.setdefault("type", some_path)
        if name in CHOICES:
            settings["choices"] = CHOICES[name]
        parser.add_argument(f"--{name}", help=help, **settings)

    return add


def add_size(parser: argparse.ArgumentParser, meaning: str, frames: bool = True) -> None:
    """The flags of a video's size; `meaning` is what --size says. `frames`: it has an end."""
    size = "{}*{}".format(*SIZE)
    parser.add_argument("--size", type=two_sides, default=size, metavar=size, help=meaning)
    parser.add_argument("--width", type=int, help="exact, a multiple of 16; with --height, in place of --size")
    parser.add_argument("--height", type=int, help="exact, a multiple of 16")
    if frames:
        about = "4n+1; a shorter pose file shortens the video"
        parser.add_argument("--frame_num", type=int, default=FRAMES, help=about)


def add_measuring(
    commands: Any, name: str, help: str, description: str, run: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """A command that looks at a video; its `description` is printed as it is."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=help, description=description, formatter_class=shape)
    parser.set_defaults(run=run)
    parser.add_argument("video", type=some_path, help="a video file, or a folder of PNG files")
    return parser


def add_drawing(parser: argparse.ArgumentParser, about: str) -> None:
    """The flags of a drawing that is made beside what is printed."""
    parser.add_argument("--drawing", type=some_path, metavar="PNG", help=about)
    add_overwrite(parser)


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace an output that is there already")


def seed(text: str) -> int:
    """A whole number that random numbers begin from. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 0 to {2**32 - 1}")
    return int(text)


def count(text: str) -> int:
    """A whole number of at least 1. Raises ArgumentTypeError, whose words argparse shows."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def some_path(text: str) -> str:
    """A path, whose ~ shells expand only where it begins a word; an empty one would be the folder that one is in.
    Raises ArgumentTypeError."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty, as of a shell's variable that is not set")
    return os.path.expanduser(text)


def seconds(text: str) -> float:
    """From a tenth to a day. Raises ArgumentTypeError."""
    with suppress(ValueError):
        if 0.1 <= float(text) <= 86_400:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0.1 to 86400")


def _scales(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 5 or 4,6 (low, high)") from None


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those of the arguments that are fields of GenerateOptions."""
    height, width = arguments.size
    names = {field.name for field in fields(GenerateOptions)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    return given | {"max_area": height * width, "lora": tuple(arguments.lora)}
