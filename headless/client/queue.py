"""The command `lingbot-world queue`: run an API-format workflow on a ComfyUI server and save its video."""

import argparse
import json
import sys
import urllib.parse
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...fields import text_of
from ...outputs import lock_output, written_whole
from ..command.flags import parse_path
from ..files.existing import refuse_existing
from ..options import POSE_FILES
from .server import Server

TEXT_NODES = {"LingBotWorldTextEncode"}
MEDIA = (".mp4", ".mkv", ".webm", ".png", ".webp", ".gif")


def add_queue_command(commands: Any) -> None:
    parser = commands.add_parser("queue", help="run a workflow on a ComfyUI server and save its video")
    parser.set_defaults(run=queue)
    add, place = parser.add_argument, partial(parser.add_argument, type=lambda text: Path(parse_path(text)))
    place("workflow", help="a file of workflows/api/, or of the canvas: Export (API)")
    add("--server", default="http://127.0.0.1:8188", metavar="URL", help="ComfyUI's address (default: %(default)s)")
    place("--image", help="the start image")
    add("--prompt", help="what the video shows")
    add("--negative", help="what it should not show")
    place("--poses", help="a folder with poses.npy and intrinsics.npy")
    add("--seed", type=int, help="seed of the noise")
    add("--set", action="append", default=[], metavar="NODE.INPUT=VALUE", help="set a value; the node by title or id")
    place("--output", default=Path("."), help="file or folder to save to (default: this folder)")
    add("--overwrite", action="store_true", help="replace an output that is already there")
    add("--list", action="store_true", help="print the workflow's nodes and values, and run nothing")


def queue(options: argparse.Namespace) -> None:
    """Run the workflow file named in the command's `options`, and save its first video or image. Raises InputError if
    the workflow fails or saves nothing."""
    workflow = load_workflow(options.workflow)
    if options.list:
        print(list_inputs(workflow))
        return
    _check_paths(options)
    server = Server(options.server)
    connection = server.connect()
    fill_in(workflow, server, options)
    prompt_id = server.queue(workflow)
    try:
        _follow(server.events(connection, prompt_id), workflow)
    except KeyboardInterrupt:
        server.cancel(prompt_id)
        raise
    finally:
        print(file=sys.stderr)
    files = saved_files(server.ask(f"/history/{prompt_id}").get(prompt_id, {}))
    if not files:
        raise InputError("the workflow ran, but saved neither video nor image")
    print(_download(server, files[0], options.output, options.overwrite))
    if more := sum(file.get("type") == "output" for file in files[1:]):
        print(f"{more} more files of this run are in the server's output folder", file=sys.stderr)


def load_workflow(path: Path) -> dict:
    """Return a workflow's nodes by id. Raises InputError for a file that is not a workflow in API format."""
    text = text_of(path)
    try:
        workflow = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from None
    if isinstance(workflow, dict) and "nodes" in workflow:
        raise InputError(f"{path} is the canvas format; take workflows/api/'s, or Export (API)")
    nodes = workflow.values() if isinstance(workflow, dict) else [None]
    if not all(
        isinstance(node, dict) and "class_type" in node and isinstance(node.get("inputs"), dict) for node in nodes
    ):
        raise InputError(f"{path} is not an API-format workflow: every entry needs a class_type and inputs")
    return workflow


def fill_in(workflow: dict, server: Server, options: argparse.Namespace) -> None:
    """Write the options into the workflow's nodes, in place, and upload files. Raises InputError for an option without
    a node."""
    if options.image:
        _put(workflow, "image", server.upload(options.image), "image", {"LoadImage"})
    if options.poses:
        folder = server.upload_folder(options.poses, _pose_files(options.poses))
        _put(workflow, "poses", folder, "poses", {"LingBotWorldLoadPoses"})
    for option in ("prompt", "negative"):
        if getattr(options, option) is not None:
            _put_text(workflow, option, getattr(options, option))
    if options.seed is not None:
        _put(workflow, "seed", options.seed, "noise_seed" if _with_value(workflow, "noise_seed") else "seed")
    for setting in options.set:
        _put_setting(workflow, setting)


def list_inputs(workflow: dict) -> str:
    """Return a text that lists each node, and the values of its inputs that are not links."""
    lines = []
    for key, node in workflow.items():
        lines.append(f"{key} {_title(node)} ({node['class_type']})")
        lines += [f"    {k} = {json.dumps(v)}" for k, v in node["inputs"].items() if not isinstance(v, list)]
    return "\n".join(lines)


def saved_files(history: dict) -> list[dict]:
    """Return ComfyUI's references to a run's videos and images: outputs before previews, videos before images."""
    groups = [group for output in history.get("outputs", {}).values() for group in output.values()]
    items = [item for group in groups if isinstance(group, list) for item in group]
    files = [item for item in items if isinstance(item, dict) and item.get("filename", "").lower().endswith(MEDIA)]
    return sorted(files, key=lambda item: (item.get("type") != "output", not item["filename"].endswith(MEDIA[:3])))


def _check_paths(options: argparse.Namespace) -> None:
    if options.image and not options.image.is_file():
        raise InputError(f"`image`: there is no file {options.image}")
    if options.poses:
        _pose_files(options.poses)
    folder = options.output if options.output.is_dir() else options.output.absolute().parent
    if not folder.is_dir():
        raise InputError(f"`output`: there is no folder {folder}; make it, or choose another")
    if not options.output.is_dir():
        refuse_existing(options.output, options.overwrite, options.image)


def _pose_files(folder: Path) -> list[Path]:
    files = [folder / name for name in POSE_FILES if (folder / name).is_file()]
    if not files or files[0].name != POSE_FILES[0]:
        raise InputError(f"`poses`: {folder} has no {POSE_FILES[0]}")
    return files


def _title(node: dict) -> str:
    return node.get("_meta", {}).get("title", node["class_type"])


def _with_value(workflow: dict, name: str, kinds: Collection[str] | None = None) -> list[dict]:
    """Return the nodes in which the input `name` has a value instead of a link. `kinds`: their classes, by default
    all."""
    return [
        node
        for node in workflow.values()
        if name in node["inputs"] and not isinstance(node["inputs"][name], list)
        if kinds is None or node["class_type"] in kinds
    ]


def _put(workflow: dict, option: str, value: object, name: str, kinds: Collection[str] | None = None) -> None:
    found = _with_value(workflow, name, kinds)
    if not found:
        raise InputError(f"`{option}`: no node of this workflow takes {name!r}; `list` shows what there is")
    for node in found:
        node["inputs"][name] = value


def _put_text(workflow: dict, option: str, text: str) -> None:
    if _with_value(workflow, option, TEXT_NODES):
        return _put(workflow, option, text, option, TEXT_NODES)
    word = "negative" if option == "negative" else "positive"
    for node in _with_value(workflow, "text", {"CLIPTextEncode"}):
        if word in _title(node).lower():
            node["inputs"]["text"] = text
            return None
    raise InputError(f"`{option}`: no text node of this workflow has {word!r} in its title")


def _put_setting(workflow: dict, setting: str) -> None:
    """Apply `setting`, NODE.INPUT=VALUE. NODE is an id, title or class; VALUE is JSON or plain text."""
    place, equals, text = setting.partition("=")
    if not equals or "." not in place:
        raise InputError(f"`set` {setting!r}: expected 'node title or id.input=value'")
    found = [
        (key, name)
        for key, node in workflow.items()
        for name in node["inputs"]
        if place in (f"{key}.{name}", f"{_title(node)}.{name}", f"{node['class_type']}.{name}")
    ]
    found = [each for each in found if ".".join(each) == place] or found
    if not found:
        owner, _, name = place.rpartition(".")
        raise InputError(f"`set` {setting!r}: no node {owner!r} with an input {name!r}; `list` shows what there is")
    (key, name), *others = found
    if others:
        ids = ", ".join([key, *(other for other, _ in others)])
        raise InputError(f"`set` {setting!r}: the nodes {ids} match; name one by its id")
    with suppress(ValueError):
        text = json.loads(text)
    workflow[key]["inputs"][name] = text


def _follow(events: Iterable[tuple[str, dict]], workflow: dict) -> None:
    title = ""
    for kind, data in events:
        if kind == "executing" and data["node"] is None:
            return
        if kind == "executing":
            title = _title(workflow[data["node"]]) if data["node"] in workflow else data["node"]
            print(f"\n{title}", end="", file=sys.stderr, flush=True)
        elif kind == "progress":
            print(f"\r{title}  {data['value']:g}/{data['max']:g}", end="", file=sys.stderr, flush=True)
        elif kind == "execution_error":
            raise InputError(f"{data['node_type']}: {data['exception_message'].strip()}")
        elif kind == "execution_interrupted":
            raise InputError("the server interrupted the workflow")


def _download(server: Server, item: dict, output: Path, overwrite: bool) -> Path:
    query = urllib.parse.urlencode({key: item[key] for key in ("filename", "subfolder", "type")})
    name = Path(item["filename"])
    target = output / name.name if output.is_dir() else output
    target = target.with_suffix(name.suffix) if target.suffix.lower() in MEDIA else target
    stem = target.stem
    for number in count(2):
        if overwrite or not target.exists():
            break
        target = target.with_stem(f"{stem} ({number})")
    with lock_output(target), written_whole(target) as (part,):
        part.write_bytes(server.request(f"/view?{query}"))
    return target
