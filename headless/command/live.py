"""`lingbot-world live`: walk through a world while it is made, in the browser."""

import argparse
import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import InputError, require
from ...options import ShowProgress
from ..options import LORA, SIZE, GenerateOptions, lora_of
from ..starting import spared_imports, start_cuda
from .flags import Help, add_size, adder, seconds, settings_of, some_path

CAUSAL_FOLDER, EXAMPLE = "lingbot_world_fast", "example"
PROMPT = "A quiet place in the evening light; the camera moves through it."
WISHES, WISHED = "live.json", ("width", "height", "chunk", "schedule")
"""A package's example may say in such a file how it is walked in best: what it may name."""


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
        from ..live.opening import Opened, plan_live

        require("aiohttp", '"lingbot-world[live]"')
        require("msgpack", '"lingbot-world[live]"')
        require("av", '"lingbot-world[live]"')
        from ..files.target import check_folder
        from ..live.running import check_port, serve

    folder = Path(arguments.walks)
    check_folder("walks", folder, folder)
    if arguments.bench is None:
        check_port(arguments.port, everywhere=arguments.lan)
    values = settings_of(arguments) | _found(arguments) | {"output": None}
    opened = Opened(plan_live(GenerateOptions(**values)), show)
    arguments.interrupted = "what was walked is kept"
    size, out = opened.plan.geometry, sys.stdout if arguments.bench is None else sys.stderr  # figures are JSON alone
    print(f"{size.width}x{size.height} on {opened.plan.device}", *opened.plan.notes, sep="\n", file=out)
    if arguments.bench is not None:
        from ..live.measuring import measure

        print(json.dumps(measure(opened, folder, arguments.bench), indent=1))
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


def _found(arguments: argparse.Namespace) -> dict[str, Any]:
    """The model's folder, image and prompt: of a toy package its causal model, and its example where none is named."""
    folder = Path(arguments.ckpt)
    causal = folder / CAUSAL_FOLDER
    package = folder if causal.is_dir() else folder.absolute().parent
    example = package / EXAMPLE
    image, prompt, values = arguments.image, arguments.prompt, {"ckpt_dir": causal if causal.is_dir() else folder}
    if image is None and arguments.continue_from is None:
        image = example / "image.png"
        if not image.is_file():
            _find_model(values["ckpt_dir"], arguments)
            raise InputError("`image` is missing: the picture in which a walk begins")
    state = _state_of(arguments.continue_from)
    if prompt is None and state is not None:
        from ...pipeline.state import last_prompt

        prompt = last_prompt(state)
    if prompt is None:
        told = example / "prompt.txt"
        prompt = _text(told) if told.is_file() else PROMPT
    values |= _wishes(example / WISHES, arguments)
    return values | {"image": image, "prompt": prompt, "continue_from": state}


def _text(file: Path) -> str:
    """What an example's text file says. Raises InputError."""
    try:
        return file.read_text(encoding="utf-8-sig").strip()
    except ValueError as error:
        raise InputError(f"{file}: not UTF-8 text ({error}); save it as UTF-8, or give `prompt`") from error


def _origin(text: str) -> str:
    """As a browser says it."""
    return text.rstrip("/")


def _find_model(folder: Path, arguments: argparse.Namespace) -> None:
    """Raises a LingBotError for a folder that is no model's."""
    from ...loaders import find_package

    named = {name: getattr(arguments, name) for name in ("text_encoder", "tokenizer", "vae")}
    find_package(folder, assets=arguments.assets_dir, release=arguments.release, **named)


def _wishes(file: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a package's file asks for of what the command leaves out; a state has its own size and chunk."""
    if not file.is_file() or arguments.continue_from is not None:
        return {}
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: not JSON ({error}); write the package again, or remove this file") from error
    if not isinstance(told, dict) or not told.keys() <= set(WISHED):
        raise InputError(
            f"{file}: {told!r:.200}, expected an object of {', '.join(WISHED)}; write the package again, "
            "or remove this file"
        )
    for name, value in told.items():
        if type(value) is not (str if name == "schedule" else int):
            expected = "text" if name == "schedule" else "a whole number"
            raise InputError(f"{file}: {name} is {value!r:.200}, expected {expected}; mend it, or remove this file")
    sized = arguments.width or arguments.height or tuple(arguments.size) != SIZE
    return {
        name: value
        for name, value in told.items()
        if getattr(arguments, name) is None and not (sized and name in WISHED[:2])
    }


def _state_of(path: str | None) -> Path | None:
    """The state that is named; that of a walk's folder, and its camera path, is made of what was kept, if need be."""
    if path is None or not Path(path).is_dir():
        return None if path is None else Path(path)
    from ...live.kept import whole_state

    return whole_state(Path(path))
