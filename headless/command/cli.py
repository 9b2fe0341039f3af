"""The command `lingbot-world`. A subcommand imports its modules when it runs, so `--help` does not import torch."""

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import InputError, LingBotError, describe_os_error, require
from ...fields import Reported
from ...options import Progress
from ...version import __version__
from ..client.queue import add_queue_command
from ..mcp.command import add_mcp_command
from ..options import PARTS, GenerateOptions
from ..process.interrupts import FilesNote, end_at_next_signal, raise_at_signals
from ..process.starting import let_waiting_threads_sleep, pause_collection
from .doctor import add_doctor_command, add_inspect_command
from .export import add_export_command
from .flags import Help, Parser, add_settings, count, parse_path, seed, settings_of, with_flags
from .generate import add_generate_command
from .live import add_live_command
from .measure import add_measure_command
from .quantize import add_quantize_command, add_verify_command

SHELLS = ("bash", "zsh", "tcsh")
BAD_INPUT, INTERRUPTED, OUTPUT_CLOSED = 2, 130, 141


class FlagFormatter(logging.Formatter):
    """A formatter of log messages that replaces option names in backticks by flags: `seed` becomes --seed."""

    def format(self, record: logging.LogRecord) -> str:
        return with_flags(super().format(record))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 2 after an error, 128 plus a signal's number, or 141 for a closed
    pipe."""
    own_process = argv is None
    argv = sys.argv[1:] if argv is None else list(argv)
    if sys.platform == "linux":  # stages have very different sizes, and fixed segments would fragment
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if own_process:
        let_waiting_threads_sleep()
    if own_process and getattr(sys.stdout, "errors", None) == "strict":  # an encoding that lacks most letters
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    handler = logging.StreamHandler()
    handler.setFormatter(FlagFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    arguments = argparse.Namespace(own_process=own_process)
    with raise_at_signals(own_process) as signals:
        try:
            return _run(arguments, argv)
        except KeyboardInterrupt as error:
            if own_process:
                end_at_next_signal()
            left = str(getattr(arguments, "interrupted", error))
            with suppress(OSError):  # raised for a closed terminal
                print(f"\nlingbot-world: interrupted{left and '; '}{left}", file=sys.stderr)
            return 128 + signals[0] if signals else INTERRUPTED


def _run(arguments: argparse.Namespace, argv: list[str]) -> int:
    try:
        build_parser(argv).parse_args(argv, arguments)
        if getattr(arguments, "verbose", False):
            logging.getLogger().setLevel(logging.INFO)  # kernels are chosen while a model loads
        if getattr(arguments, "gpus", 1) > 1 and "WORLD_SIZE" not in os.environ:
            from ..process.processes import start

            return start(arguments.gpus, argv, arguments.device)
        arguments.run(arguments)
        if sys.stdout is not None:  # stdout is None if closed with >&-
            sys.stdout.flush()
    except BrokenPipeError:  # the output's reader, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at exit
        return OUTPUT_CLOSED
    except LingBotError as error:
        return _failed(arguments, with_flags(str(error), vars(arguments)))
    except OSError as error:  # an unreadable folder, or a disk that went away
        where = error.filename or ("standard output" if _replace_broken_output() else "")
        return _failed(arguments, f"{where}{where and ': '}{describe_os_error(error)}")
    return 0


def _replace_broken_output() -> bool:
    """Replace standard output by the null device if writing fails. Return whether writing failed."""
    try:
        if sys.stdout is not None:
            print(flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at exit
        return True
    return False


def _failed(arguments: argparse.Namespace, message: str) -> int:
    left = getattr(arguments, "interrupted", None)
    files = f"; {left}" if isinstance(left, FilesNote) and left.written() else ""
    print(f"lingbot-world: {message}{files}", file=sys.stderr)
    return BAD_INPUT


def build_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser for the command line `argv`. The options of the subcommand `camera`, which need torch, are
    added only if argv[0] is "camera" or "completion"."""
    about = "Camera-controlled video from one image. `lingbot-world COMMAND --help` lists a command's options."
    parser = Parser(prog="lingbot-world", description=about)
    parser.add_argument("--version", action="version", version=f"lingbot-world {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_generate_command(commands, progress_bar, argv)
    _add_batch(commands)
    add_inspect_command(commands)
    add_doctor_command(commands)
    _add_toy(commands)
    add_quantize_command(commands, progress_bar)
    add_verify_command(commands, progress_bar)
    add_queue_command(commands)
    add_live_command(commands, progress_bar)
    add_mcp_command(commands)
    add_measure_command(commands)
    add_export_command(commands)
    _add_completion(commands, parser)
    camera = commands.add_parser("camera", help="check, convert, make, find and measure camera paths")
    if argv[:1] in (["camera"], ["completion"]):
        from .camera import add_camera_actions

        add_camera_actions(camera)
    return parser


def _add_batch(commands: Any) -> None:
    about = "make many videos from a file of jobs"
    usage = "%(prog)s JOBS OUT --ckpt_dir FOLDER [options]"
    parser = commands.add_parser("batch", help=about, usage=usage, formatter_class=Help)
    parser.set_defaults(run=_batch, interrupted="the same command makes the videos that are not done")
    add = partial(parser.add_argument, type=parse_path)
    add(
        "jobs",
        help="x.jsonl (one object per line) or x.csv, with image, prompt, seed, size, name, one of action_path, preset "
        "or keys, and other options of `generate`",
    )
    add("out", help="folder for the videos and manifest.jsonl; jobs that are done are skipped")
    about = "use the GPUs of a Ray cluster; without an address, the GPUs of this machine"
    parser.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help=about)
    parser.add_argument("--quiet", action="store_true", help="print only warnings and errors")
    parser.add_argument("--workers", type=count, metavar="N", help="Ray actors; left out: one per GPU")
    parser.add_argument("--dry_run", action="store_true", help="check every job and print what would be made")
    add_settings(parser)


def _add_toy(commands: Any) -> None:
    parser = commands.add_parser("toy", help="write a package of tiny models to try everything without a download")
    parser.set_defaults(run=_toy)
    parser.add_argument("folder", type=parse_path, help="the folder to write")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--maze", action="store_true", help="accepted for older commands: the toy is a maze")
    about = "random weights for every kind of model instead of trained ones"
    kind.add_argument("--random", action="store_true", help=about)
    parser.add_argument("--seed", type=seed, metavar="N", help="seed of the random weights; left out: 0")


def _add_completion(commands: Any, parser: argparse.ArgumentParser) -> None:
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
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, file)
        elif action.nargs != 0 and action.choices is None and action.type not in (int, float):
            action.complete = file  # type: ignore[attr-defined]


def _batch(arguments: argparse.Namespace) -> None:
    with pause_collection(arguments.own_process):
        from ..many.batch import check_batch, run_batch
        from ..many.jobs import read_jobs
        from ..many.manifest import MANIFEST
        from ..process.profile import silent

    if arguments.workers is not None and arguments.ray is None:
        raise InputError("`workers` is the number of Ray actors: give `ray` too, or leave it out")
    values = settings_of(arguments)
    for name in ("ckpt_dir", "assets_dir", "action_path", *PARTS):  # other processes have other working folders
        values[name] = None if values[name] is None else Path(values[name]).absolute()
    folder = Path(arguments.out).absolute()
    values["lora"] = tuple(replace(lora, path=lora.path.absolute()) for lora in values["lora"])
    jobs = read_jobs(Path(arguments.jobs), GenerateOptions(**values, prompt="", output=folder), folder)

    def tell(text: str) -> None:
        if not arguments.quiet or isinstance(text, Reported):
            print(with_flags(text), file=sys.stderr if arguments.quiet else sys.stdout, flush=True)

    if arguments.dry_run:
        counts = check_batch(jobs, folder, tell)
        tell(f"{counts.done} would be done, {counts.skipped} were done before, {counts.failed} would fail")
        if counts.failed:
            raise LingBotError(f"{counts.failed} would fail; nothing was written")
        return
    run_groups = None
    if arguments.ray is not None:
        from ..many.cluster import ray_runner

        run_groups = ray_runner(arguments.ray, arguments.workers, on_gpus=arguments.device != "cpu")
    show = silent if arguments.quiet else progress_bar
    counts = run_batch(jobs, folder, show, run_groups, tell, arguments.own_process)
    tell(f"{counts.done} done, {counts.skipped} were done before, {counts.failed} failed: {folder / MANIFEST}")
    if counts.failed:
        raise LingBotError(f"{counts.failed} failed; {folder / MANIFEST} says why. The same command tries them again")


def _toy(arguments: argparse.Namespace) -> None:
    from ...toy import write_toy_package, write_toy_world

    if arguments.seed is not None and not arguments.random:
        raise InputError("`seed` is the seed of random weights: give `random` too, or leave it out")
    write = partial(write_toy_package, seed=arguments.seed or 0) if arguments.random else write_toy_world
    print(write(arguments.folder))


@contextmanager
def progress_bar(name: str, unit: str) -> Iterator[Progress]:
    """Yield a callback `progress(done, total)` that shows a tqdm bar on standard error from its first call. The unit
    "B" (bytes) is scaled, such as to MB. Other units are not scaled."""
    from tqdm import tqdm

    if sys.stderr is None:  # stderr is None if closed with 2>&-
        yield lambda _done, _total: None
        return
    bars: list[tqdm] = []

    def update(done: int, total: int) -> None:
        if not bars:
            scaled = unit == "B"
            bars.append(tqdm(desc=name, total=total, initial=done, unit=unit, unit_scale=scaled, file=sys.stderr))
        bars[0].total = total
        bars[0].update(done - bars[0].n)

    try:
        yield update
    finally:
        for bar in bars:
            bar.close()
