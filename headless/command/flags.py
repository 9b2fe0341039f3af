"""The fields of GenerateOptions as options of the command line. The module imports no torch."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from ...errors import InputError
from ...fields import text_of
from ...options import FRAMES, RELEASES, SIZE
from ..options import CHOICES, LORA, PARTS, WEB_ADDRESS_ERROR, GenerateOptions, is_address, parse_lora, parse_size


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts dashes for underscores in option names, and prints errors in one line."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = sys.argv[1:] if args is None else list(args)
        end = words.index("--") if "--" in words else len(words)
        for at, word in enumerate(words[:end]):
            if word.startswith("--"):  # --ckpt-dir=a-b becomes --ckpt_dir=a-b
                name, equals, value = word[2:].partition("=")
                words[at] = f"--{name.replace('-', '_')}{equals}{value}"
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:  # here, because the parser of the whole command would name its own --help
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"lingbot-world: {message}; `{self.prog} --help` lists the choices\n")


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """A help formatter that shows an option's default, unless it is None, False or empty."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, False, "", (), []) else action.help


def add_prompt(parser: argparse._ActionsContainer, about: str) -> None:
    parser.add_argument("--prompt", metavar="TEXT", help=about)
    of_file = "a UTF-8 text file with the prompt, in place of --prompt"
    parser.add_argument("--prompt_file", type=parse_path, metavar="FILE", help=of_file)


def read_prompt(arguments: argparse.Namespace) -> str | None:
    """Return the prompt of --prompt or --prompt_file, or None. Raises InputError if both are set."""
    if arguments.prompt_file is None:
        return arguments.prompt
    if arguments.prompt is not None:
        raise InputError("`prompt` and `prompt_file` exclude each other: a video has one prompt")
    return text_of(Path(arguments.prompt_file), f"`prompt_file` {arguments.prompt_file}").strip()


def add_settings(parser: argparse.ArgumentParser) -> argparse._ActionsContainer:
    """Add the options that `generate` and `batch` share. Return the group for further options of causal models."""
    add = adder(parser)
    add("ckpt_dir", "the package's folder, as `hf download` leaves it, or a causal model's file", metavar="FOLDER")
    add("negative", "what the video should not show; left out: a list of usual flaws, in Chinese", metavar="TEXT")
    add("action_path", "camera path: a folder with poses.npy and intrinsics.npy; left out: none", metavar="FOLDER")
    add_size(parser, "height*width, as an area: the image's aspect ratio gives the sides")
    add("overwrite", "replace a video or state that is already there", action="store_true")
    add("fps", "frames per second of the file")
    add("noise_device", "cuda draws the noise of the official code; cpu draws the same on every machine")
    _add_base(adder(parser.add_argument_group("base model (two experts, many steps)")))
    _add_memory(adder(parser.add_argument_group("memory, speed and precision", "see docs/memory.md")))
    _add_parts(adder(parser.add_argument_group("other files")))
    causal = parser.add_argument_group("causal models (Fast, 2.0)", "left out: the values the model was trained with")
    _add_causal(adder(causal))
    return causal


def _add_base(add: Callable[..., None]) -> None:
    add("sampling_steps", "steps of both experts together")
    add("shift", "noise schedule: higher spends more steps on the layout; left out: the model's")
    add("boundary", "noise level, 0 to 1, above which the high-noise expert works")
    add("guide_scale", "guidance; 1 drops the negative prompt, half the time", type=_scales, metavar="LOW[,HIGH]")
    add("solver", "how a step is computed from the model's prediction")
    about = "such as 0.02: skip the model in a step that earlier steps predict to within this share; 0: never"
    add("reuse_threshold", about)


def _add_memory(add: Callable[..., None]) -> None:
    add("device", "cpu, cuda or cuda:1; left out: the GPU if there is one", metavar="NAME")
    add("dtype", "left out: bf16 on a GPU, fp32 on the CPU")
    add("arithmetic", "linear layers; 8bit uses fp8 or int8, as suits the GPU: faster, and less exact")
    add("attention", "8bit is faster where a kernel for it is installed, and less exact")
    add("residency", "experts in GPU memory at a time; stream keeps as little there as possible")
    add("camera_cache", "keep the camera layers' results for the next step: where memory is free, never, always")
    add("vae_tiling", "decode in tiles: less memory, more time; automatic when memory runs out", action="store_true")
    add("vae_dtype", "decoding; auto: fp16 on a GPU, fp32 where a number overflows and with several GPUs")


def _add_parts(add: Callable[..., None]) -> None:
    about = "LoRAs for one expert or all of the model, on 4-bit weights too; the strength is 1 if none is given"
    add("lora", about, type=parse_lora, nargs="+", metavar=LORA)
    about = "folder with T5, tokenizer and VAE; left out: the model's folder and the folders next to it are searched"
    add("assets_dir", about, metavar="FOLDER")
    for name in PARTS:
        add(name, "use this one instead of the package's", metavar="PATH")


def _add_causal(add: Callable[..., None]) -> None:
    add("release", "the model's release, if its files do not show it", choices=tuple(RELEASES))
    add("chunk", "latent frames per chunk, 1 to 4; each makes four frames")
    add("window", "latent frames that a chunk attends to, itself included; 0: all")
    add("sink", "first latent frames of the video, which always stay in the window")
    add("schedule", "v1, v2, or the indices of the steps, such as 0,250,500,750", metavar="STEPS")
    add("kv_cache", "keep keys and values on the GPU, there in 8 bits, or in host memory; auto: what fits")
    add("decoder_device", "another GPU, such as cuda:1, that decodes while the next chunk is made", metavar="NAME")


def adder(parser: argparse._ActionsContainer) -> Callable[..., None]:
    """Return a function `add(name, help, **settings)`, which adds an option for a field of GenerateOptions. The option
    has the field's default, type and choices, unless `settings` replace them."""
    defaults = {field.name: field.default for field in fields(GenerateOptions)}
    hints = _hints()

    def add(name: str, help: str | None = None, **settings: Any) -> None:
        default = defaults[name]
        settings |= {"required": True} if default is MISSING else {"default": default}
        if default == ():
            settings |= {"default": [], "action": "extend"}
        for kind, letter in ((int, "N"), (float, "X")):
            if kind in (hints[name], *get_args(hints[name])):
                settings = {"type": kind, "metavar": letter} | settings
        if name == "image" or Path in get_args(hints[name]):
            settings.setdefault("type", parse_path)
        if name in CHOICES:
            settings["choices"] = CHOICES[name]
        parser.add_argument(f"--{name}", help=help, **settings)

    return add


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(GenerateOptions)


def add_size(parser: argparse.ArgumentParser, meaning: str, frames: bool = True) -> None:
    size = "{}x{}".format(*SIZE)
    parser.add_argument("--size", type=parse_size, default=size, metavar=size, help=meaning)
    exact = "exact, a multiple of 16; with --height, in place of --size"
    parser.add_argument("--width", type=int, metavar="PIXELS", help=exact)
    parser.add_argument("--height", type=int, metavar="PIXELS", help="exact, a multiple of 16")
    if frames:
        about = "frames of the video, 4n+1; a shorter camera path shortens it"
        parser.add_argument("--frame_num", type=int, default=FRAMES, metavar="N", help=about)


COMMAND_ONLY = {"like", "prompt_file", "size"}
"""Options of `generate` that notes and errors mention, but that are not fields of GenerateOptions."""


def with_flags(message: str, options: Collection[str] = ()) -> str:
    """Replace option names in backticks by flags: `seed` becomes --seed. Known names are the fields of GenerateOptions,
    COMMAND_ONLY and `options`."""
    names = {field.name for field in fields(GenerateOptions)} | COMMAND_ONLY | set(options)
    flags = re.sub(r"`(\w+)`", lambda found: f"--{found[1]}" if found[1] in names else found[0], message)
    return type(message)(flags)


def add_measuring(
    commands: Any, name: str, help: str, description: str, run: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """Add a command that analyses a video, and return its parser. `help`: the line in the list of commands."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=help, description=description, formatter_class=shape)
    parser.set_defaults(run=run)
    parser.add_argument("video", type=parse_path, help="a video file, or a folder of PNG files")
    return parser


def add_drawing(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--drawing", type=parse_path, metavar="PNG", help=about)
    add_overwrite(parser)


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace an output that is already there")


def add_verbose(parser: argparse.ArgumentParser, about: str = "also name the kernels that compute") -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help=about)


def seed(text: str) -> int:
    """Return the seed in `text`, from 0 to 2**32 - 1. Raises ArgumentTypeError for any other text."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 0 to {2**32 - 1}")
    return int(text)


def count(text: str, least: int = 1) -> int:
    """Return the whole number in `text`. Raises ArgumentTypeError for any other text, and for a number below
    `least`."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least {least}")
    return int(text)


def parse_path(text: str) -> str:
    """Return the path in `text` with ~ expanded. Raises ArgumentTypeError for a web address and for an empty text."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty, as of a shell's variable that is not set")
    if is_address(text):
        raise argparse.ArgumentTypeError(f"{text}: {WEB_ADDRESS_ERROR}")
    return os.path.expanduser(text)


def number_in(least: float, most: float, expected: str) -> Callable[[str], float]:
    """Return a function that parses a number from `least` to `most`. For any other text the function raises
    ArgumentTypeError with the description `expected`."""

    def parse(text: str) -> float:
        with suppress(ValueError):
            if least <= float(text) <= most:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")

    return parse


def _scales(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 5 or 4,6 (low, high)") from None


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of GenerateOptions in the parsed `arguments`, by name. `max_area` is the product of the sides
    in --size."""
    height, width = arguments.size
    names = {field.name for field in fields(GenerateOptions)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    return given | {"max_area": height * width, "lora": tuple(arguments.lora)}
