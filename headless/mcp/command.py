"""The command `lingbot-world mcp CKPT`: a server for the Model Context Protocol (MCP) on standard input and output."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ...errors import require
from ..command.flags import Help, adder, parse_path

ABOUT = "let an assistant walk through a world, by the Model Context Protocol"
HELP = """Serves the tools start_walk, act, look, prompt, event and save on standard input and output: an assistant's
program starts this command by itself. Nothing listens on a port.

Needs the package mcp: pip install -e ".[mcp]"."""
MODEL = ("image", "prompt", "width", "height", "chunk", "window", "sink", "schedule", "device", "dtype", "assets_dir")


def add_mcp_command(commands: Any) -> None:
    parser = commands.add_parser("mcp", help=ABOUT, description=HELP, formatter_class=Help)
    parser.set_defaults(run=_serve, interrupted="the walk is kept")
    parser.add_argument(
        "ckpt", metavar="CKPT", type=parse_path, help="the folder of a causal model or of a toy package"
    )
    about = "a folder for the walks, each in a folder of its own"
    parser.add_argument("--walks", metavar="FOLDER", type=parse_path, default="walks", help=about)
    about = "JSON: sentences that extend the prompt; left out: example/events.json of the package"
    parser.add_argument("--events", metavar="FILE", type=parse_path, help=about)
    add = adder(parser)
    add("image", "the image in which a walk begins if the assistant names none", metavar="FILE")
    parser.add_argument("--prompt", metavar="TEXT", help="what the world shows if the assistant gives no prompt")
    for name in MODEL[2:]:
        add(name, "see `live --help`")


def _serve(arguments: argparse.Namespace) -> None:
    require("mcp", '"lingbot-world[mcp]"')
    require("av", '"lingbot-world[mcp]"')
    from ..files.target import check_folder
    from ..plan import set_threads
    from .explorer import Explorer
    from .serving import serve

    check_folder("walks", Path(arguments.walks), Path(arguments.walks))
    given = {name: getattr(arguments, name) for name in MODEL}
    options = {name: value for name, value in given.items() if value is not None}
    explorer = Explorer(arguments.ckpt, options, arguments.walks, arguments.events)
    plan = explorer.check()
    if arguments.own_process and (fewer := set_threads(plan)):
        print(fewer, file=sys.stderr)  # the protocol has standard output
    serve(explorer)
