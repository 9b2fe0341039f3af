"""The commands that report: `lingbot-world doctor` on this machine, `inspect` on a model (see inspection.py)."""

import argparse
import json
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...options import ARITHMETICS, DTYPE_NAMES, RELEASES
from .flags import Help, add_size, parse_path

HELP = """Reports what this machine can do, on one page or as JSON: the card, the driver, versions, memory, the speed of
the disk, a trial of each kernel and the card's rates. From these follow the seconds per chunk of each release, frames
per second and settings to use. Takes 5 s without a GPU, up to 30 s with one the first time.

Trials select the kernels. LINGBOT_WORLD_KERNELS=int8=torch,attention-8bit=comfy-kitchen selects others, and
LINGBOT_WORLD_CARDS names the file in which trials are cached."""


def add_doctor_command(subparsers: Any) -> None:
    about = "report what this machine can do: card, kernels, rates, frames per second, settings to use"
    parser = subparsers.add_parser("doctor", help=about, description=HELP, formatter_class=Help)
    parser.set_defaults(run=_doctor)
    parser.add_argument("--device", help="as for `generate`")
    parser.add_argument("--disk", type=parse_path, metavar="FOLDER", help="folder whose disk is timed")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="print everything as JSON")
    kind.add_argument("--row", action="store_true", help="print a line for the table of docs/cards.md")
    kind.add_argument(
        "--card", metavar="NAME", help="estimate a card from published figures, such as 4090; `list` prints the names"
    )


def _doctor(arguments: argparse.Namespace) -> None:
    if arguments.card is not None:
        for name in ("device", "disk"):
            if getattr(arguments, name) is not None:
                raise InputError(f"`card` and `{name}` exclude each other: a card's figures are of no machine")
        print(_card_page(arguments.card))
        return
    from ...doctor.checkup import run_checkup
    from ...doctor.page import format_checkup, table_row
    from ..devices import find_device

    disk = None if arguments.disk is None else Path(arguments.disk)
    if disk is not None and not disk.is_dir():
        raise InputError(f"`disk` {disk}: no such folder; name one that exists")
    found = run_checkup(find_device(arguments.device), disk)
    if arguments.json:
        print(json.dumps(found.as_values(), indent=1))
    else:
        print(table_row(found) if arguments.row else format_checkup(found))


def _card_page(name: str) -> str:
    from ...doctor.page import card_page
    from ...doctor.published import CARDS, find_card

    return "\n".join(CARDS) if name == "list" else card_page(find_card(name))


def add_inspect_command(commands: Any) -> None:
    about = "print what a model is and how much memory each stage needs"
    parser = commands.add_parser("inspect", help=about, formatter_class=Help)
    parser.set_defaults(run=_inspect)
    parser.add_argument("path", type=parse_path, help="a package's folder, or a file: expert, text encoder or VAE")
    parser.add_argument("--dtype", choices=DTYPE_NAMES, default="bf16", help="as for `generate`")
    parser.add_argument("--arithmetic", choices=ARITHMETICS, default="auto", help="as for `generate`")
    parser.add_argument("--assets_dir", type=parse_path, metavar="FOLDER", help="as for `generate`")
    parser.add_argument("--release", choices=tuple(RELEASES), help="causal models: as for `generate`")
    parser.add_argument("--window", type=int, metavar="N", help="causal models: as for `generate`")
    parser.add_argument("--sink", type=int, metavar="N", help="causal models: as for `generate`")
    add_size(parser, "height*width of the video")


def _inspect(arguments: argparse.Namespace) -> None:
    from .inspection import describe_model

    height, width = arguments.size
    if (arguments.width is None) != (arguments.height is None):
        raise InputError("`width` and `height` go together; name both or neither")
    if arguments.width is not None:
        height, width = arguments.height, arguments.width
    options = {name: getattr(arguments, name) for name in ("dtype", "arithmetic", "window", "sink", "release")}
    print(describe_model(arguments.path, (width, height), arguments.frame_num, assets=arguments.assets_dir, **options))
