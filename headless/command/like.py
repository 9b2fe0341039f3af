"""The option `generate --like VIDEO`, which makes the options of the video's run the defaults."""

import argparse
from collections.abc import Sequence

from ..options import CAMERAS
from .flags import parse_path

REPLACED_TOGETHER = (("size", "max_area", "width", "height"), CAMERAS, ("lora",), ("prompt", "prompt_file"))
"""Groups of options. If the command line sets an option of a group, no option of this group is read from the video's
record."""


def add_like(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Add `--like` to the parser of `generate`. If `argv` has `--like VIDEO`, the options of the video's run become the
    defaults. Raises InputError for a video without a record."""
    about = "repeat the run that made this video or PNG file, with changes by the other options"
    parser.add_argument("--like", type=parse_path, metavar="VIDEO", help=about)
    video = _recorded_video(argv)
    if not video:
        parser.set_defaults(record=None)
        return
    from ..files.recipe import options_of, read_recipe

    record = read_recipe(video)
    options = options_of(record)
    given = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    for group in REPLACED_TOGETHER:
        if given & set(group):
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
