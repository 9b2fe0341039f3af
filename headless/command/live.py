"""The command `lingbot-world live`: walk through a world in the browser while the world is generated."""

import argparse
import asyncio
import json
import re
import secrets
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import InputError, require
from ...options import ShowProgress
from ..live.beginning import find_beginning, find_tiny_decoder
from ..options import LORA, GenerateOptions, parse_lora
from ..process.starting import pause_collection, start_cuda
from . import flags

LISTING_OPTIONS = {"walks"}, {"keep"}, {"walks", "keep"}
"""The sets of options with which `lingbot-world live` lists the saved walks and loads no model."""
EXCLUDED_BY_REPLAY = (
    *("bench", "continue_from", "events", "image", "prompt", "prompt_file", "seed", "size", "width", "height"),
    *("chunk", "window", "sink", "schedule", "shift", "speed", "moving", "restart_on_drift", "stop_when_stuck"),
)
"""The options that `--replay` excludes: `bench`, and settings that a replay takes from the saved walk."""


def add_live_command(commands: Any, show: ShowProgress) -> None:
    about = "walk through a world in the browser while it is made"
    parser = commands.add_parser("live", help=about, usage="%(prog)s FOLDER [options]", formatter_class=flags.Help)
    parser.set_defaults(
        run=lambda arguments: _live(arguments, show, vars(parser.parse_args([]))), interrupted="nothing was walked"
    )
    place = partial(parser.add_argument, type=flags.parse_path)
    about = "the folder of a causal model (Fast, 2.0) or of a toy package; with --walks alone: list the walks"
    place("ckpt", metavar="CKPT", nargs="?", help=about)
    parser.add_argument("--port", type=int, default=8765, metavar="N", help="0 picks a free one")
    parser.add_argument("--no_open", action="store_true", help="do not open a browser")
    about = "listen to this address, such as ::1; other machines' addresses have a token"
    parser.add_argument("--host", default="", help=about)
    keep = partial(flags.count, least=0)
    parser.add_argument("--keep", type=keep, metavar="N", help="remove all old walks but the last N")
    parser.add_argument("--lan", action="store_true", help="let other machines connect, by an address with a token")
    about = "let a page of this address connect, such as http://localhost:8000; may be repeated"
    add_origin = partial(parser.add_argument, "--allow_origin", action="append", default=[], metavar="ORIGIN")
    add_origin(type=_origin, help=about)
    about = (
        "keep the state, camera path and video of each walk in a folder of this one; left out: walks, and with "
        "--bench none"
    )
    place("--walks", metavar="FOLDER", help=about)
    about = "walk a fixed path for this time and print the measurements as JSON"
    duration = flags.number_in(0.1, 86_400, "seconds, 0.1 to 86400")
    parser.add_argument("--bench", nargs="?", const=20.0, type=duration, metavar="SECONDS", help=about)
    switch = partial(parser.add_argument, action="store_true")
    switch("--moving", help="make frames also while no key is pressed")
    switch("--restart_on_drift", help="restart from the image when the video degrades")
    switch("--stop_when_stuck", help="end a step when the frames no longer move, as before a wall")
    about = "speed of W, as a fraction of the longest step that the model knows, 0.05 to 1; Shift doubles it"
    fraction = flags.number_in(0.05, 1, "a fraction from 0.05 to 1")
    parser.add_argument("--speed", type=fraction, default=0.5, metavar="X", help=about)
    about = "show frames by a tiny decoder: a file, or taew2_1 of models/vae_approx; the VAE decodes walk.mp4 later"
    place("--decoder", metavar="FILE", help=about)
    about = "JSON: sentences that extend the prompt by a key or a time; left out: example/events.json of the package"
    place("--events", metavar="FILE", help=about)
    place("--replay", metavar="FOLDER", help="repeat the walk of this folder to the same bits, and end")
    flags.add_verbose(parser)
    flags.add_prompt(parser, "what the world shows; left out: the prompt of the example or of the state")
    add = flags.adder(parser)
    add("image", "the image in which a walk begins; left out: the package's example", metavar="FILE")
    add("seed", "seed of the noise; left out: 0")
    add("continue_from", "continue from a state or the folder of a walk", metavar="PATH")
    flags.add_size(parser, "height*width, as an area: the image's aspect ratio gives the sides", frames=False)
    _add_model(flags.adder(parser.add_argument_group("model", "as for `generate`")))


def _add_model(add: Callable[..., None]) -> None:
    add("window", "latent frames that a chunk attends to; left out: the model's, or 18")
    about = "latent frames per chunk: 1 responds fastest, larger chunks cost less per frame; left out: the model's"
    add("chunk", about)
    add("sink", "first latent frames of the walk, which always stay in the window")
    add("schedule", "v1, v2, or the indices of the steps", metavar="STEPS")
    add("shift", "noise schedule")
    for name in ("kv_cache", "camera_cache", "residency", "arithmetic", "attention", "device"):
        add(name, "see `generate --help`")
    for name in ("dtype", "vae_dtype"):
        add(name, "see `generate --help`; here bf16 on CPUs that support it")
    add("decoder_device", "another GPU, such as cuda:1, that decodes while the next chunk is made", metavar="NAME")
    add("vae_tiling", "decode in tiles: less memory, more time", action="store_true")
    add("lora", "LoRAs, on 4-bit weights too", type=parse_lora, nargs="+", metavar=LORA)
    add("release", "the model's release, if its files do not show it: see `generate --help`")
    for name in ("assets_dir", "text_encoder", "tokenizer", "vae"):
        add(name, "use this one instead of the package's", metavar="PATH")


def _live(arguments: argparse.Namespace, show: ShowProgress, defaults: dict[str, Any]) -> None:
    for name in EXCLUDED_BY_REPLAY if arguments.replay is not None else ():
        if getattr(arguments, name) != defaults[name]:
            raise InputError(f"`replay` and `{name}` exclude each other: a replay repeats its walk; leave `{name}` out")
    if arguments.bench is not None and arguments.walks is None:
        with tempfile.TemporaryDirectory(prefix="lingbot-live-") as temporary:
            _walk(arguments, Path(temporary), show)
        return
    folder = Path(arguments.walks or "walks")
    if arguments.ckpt is not None:
        _walk(arguments, folder, show)
    elif {name for name in defaults if getattr(arguments, name) != defaults[name]} - {
        "verbose",
        "no_open",
    } not in LISTING_OPTIONS:
        raise InputError("CKPT is missing: the folder of a causal model; or name --walks to list them")
    else:
        from ..live.saved_walks import describe_walks

        if not folder.is_dir():
            raise InputError(f"`walks` {folder}: no such folder; name the one in which walks are kept")
        print(*_clear(arguments, folder), describe_walks(folder), sep="\n")


def _clear(arguments: argparse.Namespace, folder: Path) -> list[str]:
    from ..live.saved_walks import clear_walks

    used = [Path(path) for path in (arguments.replay, arguments.continue_from) if path is not None]
    removed = [] if arguments.keep is None else clear_walks(folder, arguments.keep, used)
    return [f"removed {', '.join(removed)}"] if removed else []


def _walk(arguments: argparse.Namespace, folder: Path, show: ShowProgress) -> None:
    if arguments.own_process and arguments.device in (None, "cuda"):
        start_cuda()  # runs while torch is imported
    with pause_collection(arguments.own_process):
        from ...live.worlds.example import find_events
        from ..live.opening import LiveSettings, LoadedModel, plan_live
        from ..plan import set_threads

        require("aiohttp", '"lingbot-world[live]"')
        require("msgpack", '"lingbot-world[live]"')
        require("av", '"lingbot-world[live]"')
        from ..files.target import check_folder
        from ..live.running import check_port, is_here, serve
        from .inspection import describe_kernels

    check_folder("walks", folder, folder)
    everywhere = arguments.lan or not (arguments.host == "" or is_here(arguments.host))
    if arguments.replay is not None:
        _as_replayed(arguments)
    elif arguments.bench is None:
        check_port(arguments.port, everywhere=everywhere, host=arguments.host)
    beginning = find_beginning(arguments.ckpt, vars(arguments) | {"prompt": flags.read_prompt(arguments)})
    values = flags.settings_of(arguments) | beginning | {"output": None}
    if arguments.decoder is not None:
        arguments.decoder = find_tiny_decoder(arguments.decoder, values["ckpt_dir"])
    events = find_events(values["ckpt_dir"], arguments.events)
    plan = plan_live(GenerateOptions(**values))
    fewer = set_threads(plan) if arguments.own_process else ""
    loaded = LoadedModel(plan, show)
    names = ("speed", "moving", "decoder", "restart_on_drift", "stop_when_stuck")
    loaded.settings = LiveSettings(events=events, **{name: getattr(arguments, name) for name in names})
    arguments.interrupted = "the walk is kept"
    size, out = plan.geometry, sys.stdout if arguments.bench is None else sys.stderr  # figures are pure JSON
    lines = [f"{size.width}x{size.height} on {plan.device}", *map(flags.with_flags, plan.notes), *filter(None, [fewer])]
    kernels = [describe_kernels(plan.device)] if arguments.verbose else []
    print(*_clear(arguments, folder), *lines, *kernels, sep="\n", file=out)
    if arguments.bench is not None:
        from ..live.measuring import measure

        print(json.dumps(measure(loaded, folder, arguments.bench), indent=1))
        return
    if arguments.replay is not None:
        from ..live.replaying import replay

        print(replay(loaded, Path(arguments.replay), folder))
        return
    token = secrets.token_urlsafe(16) if everywhere else ""
    origins = tuple(arguments.allow_origin)
    address = {"host": arguments.host, "port": arguments.port, "token": token, "origins": origins}
    asyncio.run(serve(loaded, folder, show_page=not arguments.no_open, **address))


def _as_replayed(arguments: argparse.Namespace) -> None:
    from ...live.folder.replay import Replay
    from ...options import CELL

    replay = Replay(arguments.replay)
    settings, start = replay.settings, replay.start
    arguments.prompt = start.prompt
    arguments.image = (start.frame.clamp(-1, 1) + 1).mul(127.5).round().byte().permute(1, 2, 0).numpy()
    arguments.height, arguments.width = (CELL * side for side in settings["cells"])
    for name in ("chunk", "window", "sink"):
        setattr(arguments, name, settings[name])
    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    arguments.dtype = arguments.dtype or names.get(settings["dtype"])


def _origin(text: str) -> str:
    """Return the web origin in `text`, without a slash at its end. Raises ArgumentTypeError for any other text."""
    if not re.fullmatch(r"null|[a-z][a-z0-9+.-]*://[^/\s*]+/?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a page's address, such as http://localhost:8000")
    return text.rstrip("/")
