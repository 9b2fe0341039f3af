"""The command `lingbot-world completion`: print a script, made by shtab, with which a shell completes commands and
options."""

import argparse
from typing import Any

from ...errors import require

SHELLS = ("bash", "zsh", "tcsh")


def add_completion_command(commands: Any, parser: argparse.ArgumentParser) -> None:
    """Add the `completion` command to the subparsers `commands`. Its script completes the options of `parser`."""
    command = commands.add_parser(
        "completion",
        help="print a script that completes the command's words in a shell",
        description='For instance: eval "$(lingbot-world completion bash)"',
    )
    command.add_argument("shell", choices=SHELLS)

    def run(arguments: argparse.Namespace) -> None:
        shtab = require("shtab", '"lingbot-world[cli]"')
        _complete_files(parser, shtab.FILE)
        print(shtab.complete(parser, arguments.shell))

    command.set_defaults(run=run)


def _complete_files(parser: argparse.ArgumentParser, file: dict) -> None:
    """Make shtab complete file names for arguments without choices that are neither int nor float. `file`: shtab's
    rule."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, file)
        elif action.nargs != 0 and action.choices is None and action.type not in (int, float):
            action.complete = file  # type: ignore[attr-defined]
