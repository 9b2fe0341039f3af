"""The `lingbot-world` command. torch and everything behind it are imported by the sub-command that needs them."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..errors import LingBotError
from ..options import (
    BOUNDARY,
    CAMERA_CACHE_MODES,
    DTYPE_NAMES,
    FPS,
    FRAMES,
    GUIDE_SCALE,
    NOISE_DEVICES,
    RESIDENCY_MODES,
    SHIFT,
    SOLVER_NAMES,
    STEPS,
)

BAD_INPUT, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0, 2 for bad input (one line says what), 130 for Ctrl-C."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if sys.platform == "linux":  # stages of very different sizes follow each other: fixed segments would fragment
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    arguments = build_parser(argv).parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        return arguments.run(arguments) or 0
    except LingBotError as error:
        print(f"lingbot-world: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("\nlingbot-world: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED


def build_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The command's options. `camera`'s own are added only when `argv` asks for it: they need torch."""
    parser = argparse.ArgumentParser(prog="lingbot-world", description="Camera-controlled video from one image.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_inspect(commands)
    _add_toy(commands)
    if argv[:1] == ["camera"]:
        from .camera_command import add_camera_command

        add_camera_command(commands)
    else:
        commands.add_parser("camera", help="show, convert or make camera paths")
    return parser


def _add_generate(commands) -> None:
    defaults = argparse.ArgumentDefaultsHelpFormatter
    parser = commands.add_parser("generate", help="make a video", formatter_class=defaults)
    parser.set_defaults(run=_generate)
    add = parser.add_argument
    add("--ckpt_dir", required=True, help="the package's folder, as `hf download` leaves it")
    add("--image", required=True, help="first frame; stretched to the video's size")
    add("--prompt", required=True)
    add("--negative", help="negative prompt; left out: a list of usual flaws, in Chinese")
    add("--action_path", help="folder with poses.npy and intrinsics.npy; left out: no camera control")
    add("--output", required=True, help="x.mp4; or a folder or dir/*.png for PNG files")
    _add_size(parser, "pixels in all, height*width; the image's aspect ratio shapes them")
    add("--sampling_steps", type=int, default=STEPS, help="steps of both experts together")
    add("--shift", type=float, default=SHIFT, help="of the noise schedule: higher spends more steps on the layout")
    add("--boundary", type=float, default=BOUNDARY, help="share of the noise above which the high-noise expert works")
    add("--guide_scale", type=_scales, default=(GUIDE_SCALE,), metavar="LOW[,HIGH]",
        help="1 leaves the negative prompt out")  # fmt: skip
    add("--solver", choices=SOLVER_NAMES, default="unipc")
    add("--seed", type=int, help="left out: drawn, and printed at the end")
    add("--noise_device", choices=NOISE_DEVICES, default="cpu", help="cuda gives the official code's noise")
    add("--fps", type=int, default=FPS)
    add("--device", help="left out: the GPU if there is one")
    add("--dtype", choices=DTYPE_NAMES, help="left out: bf16 on a GPU, fp32 on the CPU")
    add("--residency", choices=RESIDENCY_MODES, default="auto",
        help="experts in GPU memory at a time; stream: of one as little as possible")  # fmt: skip
    add("--camera_cache", choices=CAMERA_CACHE_MODES, default="auto",
        help="what camera layers compute, kept between steps: in free memory, never, always")  # fmt: skip
    add("--vae_tiling", action="store_true", help="less memory, more time; comes by itself when memory is short")
    for name in ("high", "low", "text_encoder", "tokenizer", "vae"):
        add(f"--{name}", metavar="PATH", help="in place of the package's own")


def _add_inspect(commands) -> None:
    parser = commands.add_parser("inspect", help="say what a checkpoint is and what memory each stage will need")
    parser.set_defaults(run=_inspect)
    parser.add_argument("path", help="a package's folder, an expert, a text encoder or a VAE")
    parser.add_argument("--dtype", choices=DTYPE_NAMES, default="bf16")
    _add_size(parser, "height*width of the video")


def _add_toy(commands) -> None:
    parser = commands.add_parser("toy", help="write a tiny package with random weights, an image and a camera path")
    parser.set_defaults(run=_toy)
    parser.add_argument("folder", help="where to write it")
    parser.add_argument("--seed", type=int, default=0)


def _add_size(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--size", type=_size, default=(480, 832), metavar="480*832", help=meaning)
    parser.add_argument("--width", type=int, help="exact, a multiple of 16; with --height, in place of --size")
    parser.add_argument("--height", type=int, help="exact, a multiple of 16")
    parser.add_argument("--frame_num", type=int, default=FRAMES, help="4n+1; a shorter pose file shortens the video")


def _size(text: str) -> tuple[int, int]:
    """(height, width) from 480*832 or 480x832."""
    sides = text.replace("x", "*").split("*")
    if len(sides) != 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 480*832")
    return int(sides[0]), int(sides[1])


def _scales(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 5 or 4,6 (low, high)") from None


def _generate(arguments: argparse.Namespace) -> int:
    from .plan import GenerateOptions, make_plan
    from .profile import table
    from .run import run

    values = {name: value for name, value in vars(arguments).items() if name not in ("run", "size")}
    height, width = arguments.size
    plan = make_plan(GenerateOptions(**values, max_area=height * width))
    size = plan.geometry
    print(f"{size.width}x{size.height}, {size.frames} frames, {arguments.sampling_steps} steps on {plan.device}")
    for note in plan.notes:
        print(note)
    result = run(plan, progress_bar)
    print(f"\n{table(result.stages)}\n\nseed {result.seed}\n{result.path}")
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from .inspection import describe

    height, width = arguments.size
    if arguments.width or arguments.height:
        height, width = arguments.height or height, arguments.width or width
    print(describe(arguments.path, width, height, arguments.frame_num, arguments.dtype))
    return 0


def _toy(arguments: argparse.Namespace) -> int:
    from ..toy import write_toy_package

    package = write_toy_package(arguments.folder, seed=arguments.seed)
    print(package)
    return 0


@contextmanager
def progress_bar(name: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A tqdm bar for `progress(done, total)`; it appears with the first report. Bytes are shown with their rate."""
    from tqdm import tqdm

    bars = []

    def update(done: int, total: int) -> None:
        if not bars:
            bars.append(tqdm(desc=name, total=total, unit=unit, unit_scale=unit == "B", file=sys.stderr))
        bars[0].total = total
        bars[0].update(done - bars[0].n)

    try:
        yield update
    finally:
        for bar in bars:
            bar.close()
