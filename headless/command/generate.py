"""The command `lingbot-world generate`: make a video from an image, a prompt and a camera path."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...fields import Reported
from ...options import ShowProgress
from ..options import CAMERAS, STDOUT, GenerateOptions
from ..process.interrupts import FilesNote
from ..process.starting import pause_collection, start_cuda
from . import flags

if TYPE_CHECKING:
    from ..plan import AnyPlan

REPLACED_TOGETHER = (("size", "max_area", "width", "height"), CAMERAS, ("lora",), ("prompt", "prompt_file"))
"""Groups of options. With `--like VIDEO`, an option on the command line replaces all recorded options of its group."""


def add_generate_command(commands: Any, show: ShowProgress, argv: Sequence[str]) -> None:
    """Add the `generate` command. If `argv` has `--like VIDEO`, the video's recorded options become the defaults.
    Raises InputError for a video without a record."""
    usage = "%(prog)s --ckpt_dir FOLDER --image FILE --prompt TEXT --output FILE [options]"
    parser = commands.add_parser("generate", help="make a video from an image", usage=usage, formatter_class=flags.Help)
    parser.set_defaults(run=partial(_generate, show), interrupted="nothing was written")
    add = flags.adder(parser)
    add("image", "the first frame, stretched to the video's size", metavar="FILE")
    flags.add_prompt(parser, "what the video shows")
    add("output", "x.mp4, .mkv or .mov; a folder or dir/*.png for PNG files; - for standard output", metavar="FILE")
    add("preset", "camera path: a move, such as dolly_in; `camera make --help` lists them", metavar="NAME")
    add("keys", "camera path: keys held and for how many frames: w-10,iw-15,none-10", metavar="SCRIPT")
    add("seed", "seed of the noise; left out: a random one, which is printed")
    parser.add_argument("--gpus", type=flags.count, default=1, metavar="N", help="GPUs that make the video together")
    add("shard", "with --gpus: split the weights over the GPUs", action="store_true")
    flags.add_verbose(parser)
    parser.add_argument("--quiet", action="store_true", help="print only warnings, errors and a seed that was drawn")
    parser.add_argument("--dry_run", action="store_true", help="check everything and print what would be made")
    add = flags.adder(flags.add_settings(parser))
    add("events", "JSON: sentences that extend the prompt from a second on; see docs/command.md", metavar="FILE")
    add("save_state", "write a file from which a later run continues the video", metavar="FILE")
    about = "continue the video of a state, or of a walk's folder, with its prompt; PNG files are numbered on"
    add("continue_from", about, metavar="PATH")
    _add_like(parser, argv)


def _add_like(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    about = "repeat the run that made this video or PNG file, with changes by the other options"
    parser.add_argument("--like", type=flags.parse_path, metavar="VIDEO", help=about)
    video = _recorded_video(argv)
    if not video:
        parser.set_defaults(record=None)
        return
    from ..files.recipe import options_of, read_recipe

    record = read_recipe(video)
    options = options_of(record)
    given = tuple(word[2:].partition("=")[0].replace("-", "_") for word in argv if word[:2] == "--" and word[2:])
    for group in REPLACED_TOGETHER:
        if any(name.startswith(given) for name in group):  # argparse accepts the beginning of a name
            options = {name: value for name, value in options.items() if name not in group}
    if "max_area" in options:
        options["size"] = (1, options.pop("max_area"))  # the image gives the aspect ratio; only the product counts
    own = {"record": record, "gpus": record.get("processes", 1), "device": record.get("device")}
    for action in parser._actions:
        if action.dest in options:
            action.required = False
    parser.set_defaults(**own, **options)


def _recorded_video(argv: Sequence[str]) -> str | None:
    if argv[:1] != ["generate"]:
        return None
    finder = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    finder.add_argument("--like", nargs="?")
    return finder.parse_known_args(list(argv))[0].like


def _generate(show: ShowProgress, arguments: argparse.Namespace) -> None:
    if arguments.own_process and arguments.device in (None, "cuda"):
        start_cuda()  # runs while torch is imported
    with pause_collection(arguments.own_process):
        from ..files.recipe import changes_since
        from ..files.target import leftover_notes
        from ..plan import make_plan
        from ..process.durations import estimate_duration, store_durations
        from ..process.processes import join_processes
        from ..process.profile import silent, table
        from ..run import run, share_forward
        from ..stages import truncation_warnings
        from .inspection import describe_kernels

    arguments.prompt = _prompt_of(arguments)
    values = flags.settings_of(arguments)
    with join_processes() as processes:
        values["device"] = processes.device(arguments.device)
        plan = make_plan(GenerateOptions(**values))
        arguments.output = plan.target.path
        fewer = _set_threads(arguments, plan)
        if arguments.dry_run:
            share_forward(plan, processes)  # raises the errors of the run
        if not processes.first:
            if not arguments.dry_run:
                run(plan, silent, processes)
            return
        state = [] if plan.options.save_state is None else [Path(plan.options.save_state)]
        if plan.target.is_pipe:
            del arguments.interrupted  # the reader of a pipe may have kept anything
        else:
            copies = [] if plan.target.pattern else [plan.target.playable_copy]
            arguments.interrupted = FilesNote([*plan.target.files(plan.frames_before, 1), *copies, *state])
        size, steps = plan.geometry, arguments.sampling_steps
        took = "; ".join([f"{plan.amount} on {plan.device}", *filter(None, [estimate_duration(plan)])])
        _tell(arguments, f"{size.width}x{size.height}, {size.frames} frames, {took}")
        _tell(
            arguments,
            *map(flags.with_flags, plan.notes),
            *fewer,
            *([describe_kernels(plan.device)] if arguments.verbose else []),
            *leftover_notes(plan.target, plan.frames_before + size.frames),
        )
        if arguments.record is not None:
            _tell(arguments, *map(flags.with_flags, changes_since(arguments.record, plan.options)))
        if arguments.dry_run:
            _tell(arguments, *truncation_warnings(plan))
            return
        result = run(plan, silent if arguments.quiet else show, processes)
        store_durations(plan, result.stages)
        if arguments.reuse_threshold:
            _tell(arguments, f"\nthe model predicted {result.model_steps} of {steps} steps")
        if arguments.quiet and arguments.seed is None:
            _print(arguments, f"seed {result.seed}")  # the video cannot be repeated without the seed
        _tell(arguments, f"\n{table(result.stages)}\n\nseed {result.seed}\n{result.path}")


def _set_threads(arguments: argparse.Namespace, plan: AnyPlan) -> list[str]:
    """Set torch's number of threads: the recorded one with `--like`, else the plan's. Return at most one note."""
    import torch

    from ..plan import set_threads

    if not arguments.own_process:
        return []
    if arguments.record is not None and arguments.record.get("threads"):
        torch.set_num_threads(arguments.record["threads"])
        return []
    return list(filter(None, [set_threads(plan)]))


def _prompt_of(arguments: argparse.Namespace) -> str:
    prompt = flags.read_prompt(arguments)
    if prompt is None and arguments.continue_from is None:
        raise InputError("`prompt` is missing: what the video shows; or name a text file as `prompt_file`")
    return prompt or ""


def _tell(arguments: argparse.Namespace, *lines: str) -> None:
    if not arguments.quiet:
        _print(arguments, *lines)
    elif reports := [line for line in lines if isinstance(line, Reported)]:
        print(*reports, sep="\n", file=sys.stderr, flush=True)


def _print(arguments: argparse.Namespace, *lines: str) -> None:
    if lines:
        print(*lines, sep="\n", file=sys.stderr if str(arguments.output) == STDOUT else sys.stdout, flush=True)
