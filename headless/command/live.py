"""`lingbot-world live`: walk through a world while it is made, in the browser."""

import argparse
import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import require
from ...options import ShowProgress
from ..live.beginning import find_beginning, state_of
from ..live.previews import find_tiny_decoder
from ..options import LORA, GenerateOptions, lora_of
from ..starting import spared_imports, start_cuda
from .flags import Help, add_size, adder, seconds, settings_of, some_path

_state_of = state_of
"""The state that `--continue_from` names."""


def add_live_command(commands: Any, show: ShowProgress) -> None:
    about = "walk through a world while it is made, in the browser"
    parser = commands.add_parser("live", help=about, formatter_class=Help)
    parser.set_defaults(run=lambda arguments: _live(arguments, show), interrupted="nothing was walked")
    parser.add_argument(
        "ckpt", metavar="CKPT", type=some_path, help="the folder of a causal model (Fast, 2.0), or of a toy package"
    )
    parser.add_argument("--port", type=int, default=8765, help="0 picks one that is free")
    parser.add_argument("--no_open", action="store_true", help="do not open the page in the browser")
    parser.add_argument("--lan", action="store_true", help="listen to other machines; the address has a token")
    parser.add_argument(
        "--allow_origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        type=_origin,
        help="a page of another address that may connect, such as http://localhost:8000; can be given again",
    )
    parser.add_argument(
        "--walks",
        default="walks",
        metavar="FOLDER",
        type=some_path,
        help="where what is walked is kept: state, camera path and video, a folder a walk",
    )
    parser.add_argument(
        "--bench",
        nargs="?",
        const=20.0,
        type=seconds,
        metavar="SECONDS",
        help="walk by itself for so long and print what was measured as JSON",
    )
    parser.add_argument(
        "--moving", action="store_true", help="the world goes on where nobody does anything: things move by themselves"
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=0.5,
        help="W's, as a share of the longest step that the model knows, 0.05 to 1; with Shift twice as much",
    )
    parser.add_argument(
        "--decoder",
        metavar="FILE",
        type=some_path,
        help="the tiny decoder that shows the frames: a file, or taew2_1, which is looked for in models/vae_approx. "
        "What is seen is a preview; the VAE decodes walk.mp4 after the walk",
    )
    parser.add_argument(
        "--replay",
        metavar="FOLDER",
        type=some_path,
        help="make the walk of this folder again, to the same bits, and end",
    )
    parser.add_argument("--prompt", help="what the world shows; left out: the example's, or a state's last")
    add = adder(parser)
    add("image", "where a walk begins, until another picture is dropped; left out: the package's example")
    add("seed", "of the noise; left out: 0", type=int)
    add("continue_from", "a state, or the folder of a walk, to go on from", metavar="PATH")
    add_size(parser, "pixels in all, height*width; the image's aspect ratio shapes them", frames=False)
    _add_model(adder(parser.add_argument_group("model", "as of `generate`")))


def _add_model(add: Callable[..., None]) -> None:
    add("window", "latent frames that a chunk looks back on; left out: the model's own, or 18", type=int)
    add(
        "chunk",
        "latent frames that are made at a time: 1 answers soonest, more are faster; left out: the model's own",
        type=int,
    )
    add("sink", "of these, latent frames from the walk's beginning", type=int)
    add("schedule", "v1, v2, or the indices of the steps")
    add("shift", "of the noise schedule", type=float)
    for name in ("kv_cache", "camera_cache", "residency", "arithmetic", "attention", "device"):
        add(name, "see `generate`")
    for name in ("dtype", "vae_dtype"):
        add(name, "see `generate`; here it is bf16 on processors that multiply that too")
    add("decoder_device", "another GPU, such as cuda:1, that decodes a chunk's frames while the next is made")
    add("vae_tiling", "less memory, more time", action="store_true")
    add("lora", "added to the weights", type=lora_of, nargs="+", metavar=LORA)
    add("release", "where the files leave a doubt which it is: see `generate`")
    for name in ("assets_dir", "text_encoder", "tokenizer", "vae"):
        add(name, "in place of the package's own", metavar="PATH")


def _live(arguments: argparse.Namespace, show: ShowProgress) -> None:
    if arguments.own_process and arguments.device in (None, "cuda"):
        start_cuda()  # while torch is imported
    with spared_imports(arguments.own_process):
        from ..live.opening import LiveSettings, Opened, plan_live

        require("aiohttp", '"lingbot-world[live]"')
        require("msgpack", '"lingbot-world[live]"')
        require("av", '"lingbot-world[live]"')
        from ..files.target import check_folder
        from ..live.running import check_port, serve

    folder = Path(arguments.walks)
    check_folder("walks", folder, folder)
    if arguments.bench is None:
        check_port(arguments.port, everywhere=arguments.lan)
    if arguments.replay is not None:
        _as_replayed(arguments)
    values = settings_of(arguments) | _found(arguments) | {"output": None}
    if arguments.decoder is not None:
        arguments.decoder = find_tiny_decoder(arguments.decoder, values["ckpt_dir"])
    opened = Opened(plan_live(GenerateOptions(**values)), show)
    opened.settings = LiveSettings(arguments.speed, arguments.moving, arguments.decoder)
    arguments.interrupted = "what was walked is kept"
    size, out = opened.plan.geometry, sys.stdout if arguments.bench is None else sys.stderr  # figures are JSON alone
    print(f"{size.width}x{size.height} on {opened.plan.device}", *opened.plan.notes, sep="\n", file=out)
    if arguments.bench is not None:
        from ..live.measuring import measure

        print(json.dumps(measure(opened, folder, arguments.bench), indent=1))
        return
    if arguments.replay is not None:
        from ..live.replaying import replay

        print(replay(opened, Path(arguments.replay), folder))
        return
    token = secrets.token_urlsafe(16) if arguments.lan else ""
    serve(
        opened,
        folder,
        port=arguments.port,
        token=token,
        origins=tuple(arguments.allow_origin),
        show_page=not arguments.no_open,
    )


def _as_replayed(arguments: argparse.Namespace) -> None:
    """Have the model opened as the walk was made that is replayed. Raises InputError."""
    from ...live.replay import Replay
    from ...options import CELL

    head = Replay(arguments.replay).head
    arguments.height, arguments.width = (CELL * side for side in head["cells"])
    for name in ("chunk", "window", "sink"):
        setattr(arguments, name, head[name])
    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    arguments.dtype = arguments.dtype or names.get(head["dtype"])


def _found(arguments: argparse.Namespace) -> dict[str, Any]:
    """The model's folder, image and prompt: of a toy package its causal model, and its example where none is named."""
    return find_beginning(arguments.ckpt, vars(arguments))


def _speed(text: str) -> float:
    speed = float(text)
    if not 0.05 <= speed <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share from 0.05 to 1")
    return speed


def _origin(text: str) -> str:
    """As a browser says it."""
    return text.rstrip("/")
