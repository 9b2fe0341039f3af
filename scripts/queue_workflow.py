#!/usr/bin/env python3
"""Queue an API-format workflow on a running ComfyUI, follow it, and save the video.

    python scripts/queue_workflow.py workflows/api/poses.json --image photo.jpg --poses my_path/ \
        --prompt "a courtyard at dusk" --seed 7 --output courtyard.mp4

Needs nothing but the standard library and `pip install websocket-client`. Values are filled in by name: files are
uploaded to ComfyUI's input folder, so the server may be another machine. `--set "Title or id.input=value"` reaches
everything else, `--list` shows what there is.
"""

from __future__ import annotations

import argparse
import json
import mimetypes
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path

TEXT_NODES = {"LingBotWorldTextEncode", "CLIPTextEncode"}
POSE_FILES = ("poses.npy", "intrinsics.npy", "action.npy")
MEDIA = (".mp4", ".mkv", ".webm", ".png", ".webp", ".gif")


class QueueError(Exception):
    """Said to the user in one line; the command ends with 2."""


class Server:
    def __init__(self, address: str):
        self.url = address.rstrip("/") if "://" in address else f"http://{address.rstrip('/')}"
        self.client = uuid.uuid4().hex

    def request(self, path: str, data: bytes | None = None, kind: str = "application/json") -> bytes:
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise QueueError(explain_refusal(path, error.code, error.read())) from None
        except OSError as error:
            raise QueueError(
                f"no ComfyUI answers at {self.url} ({error}); start it, or name it with --server"
            ) from None

    def post(self, path: str, body: dict) -> dict:
        answer = self.request(path, json.dumps(body).encode())
        return json.loads(answer) if answer.strip() else {}

    def upload(self, path: Path, subfolder: str = "") -> str:
        """Copy a file into ComfyUI's input folder; returns its name there."""
        boundary = uuid.uuid4().hex
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        parts = []
        for name, value in (("subfolder", subfolder), ("type", "input"), ("overwrite", "true")):
            parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n')
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{path.name}"\r\n'
        parts.append(f"{head}Content-Type: {kind}\r\n\r\n")
        body = "".join(parts).encode() + path.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
        answer = json.loads(self.request("/upload/image", body, f"multipart/form-data; boundary={boundary}"))
        return "/".join(part for part in (answer["subfolder"], answer["name"]) if part)

    def connect(self):
        try:
            from websocket import create_connection
        except ImportError:
            raise QueueError(f"{sys.executable} has no websocket client; pip install websocket-client") from None
        url = self.url.replace("http", "ws", 1)
        try:
            return create_connection(f"{url}/ws?clientId={self.client}", timeout=3600)
        except OSError as error:
            raise QueueError(
                f"no ComfyUI answers at {self.url} ({error}); start it, or name it with --server"
            ) from None


def explain_refusal(path: str, code: int, body: bytes) -> str:
    """ComfyUI's answer to a bad prompt, as one line a problem."""
    try:
        answer = json.loads(body)
    except ValueError:
        return f"{path}: HTTP {code} {body[:200]!r}"
    lines = [answer.get("error", {}).get("message", f"HTTP {code}")]
    for node, problem in answer.get("node_errors", {}).items():
        for error in problem["errors"]:
            lines.append(f"  node {node} ({problem['class_type']}): {error['message']}: {error['details']}")
    return "\n".join(lines)


def load_workflow(path: Path) -> dict:
    try:
        workflow = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise QueueError(f"{path}: {error}") from None
    if isinstance(workflow, dict) and "nodes" in workflow:
        raise QueueError(f"{path} is the canvas format; take workflows/api/'s, or Export (API)")
    if not isinstance(workflow, dict) or not all("class_type" in node for node in workflow.values()):
        raise QueueError(f"{path} is not an API-format workflow: every entry needs a class_type")
    return workflow


def nodes_with(workflow: dict, name: str, kinds: set[str] | None = None) -> list[dict]:
    """Nodes that have a plain value (no link) under this input name."""
    return [
        node
        for node in workflow.values()
        if name in node["inputs"] and not isinstance(node["inputs"][name], list)
        if kinds is None or node["class_type"] in kinds
    ]


def put(workflow: dict, option: str, value, name: str, kinds: set[str] | None = None) -> None:
    """Write a value into every node that takes it."""
    found = nodes_with(workflow, name, kinds)
    if not found:
        raise QueueError(f"--{option}: no node of this workflow takes {name!r}; --list shows what there is")
    for node in found:
        node["inputs"][name] = value


def put_text(workflow: dict, option: str, text: str) -> None:
    """Our text node has both prompts; core's CLIPTextEncode is told apart by its title."""
    if nodes_with(workflow, option, {"LingBotWorldTextEncode"}):
        return put(workflow, option, text, option, {"LingBotWorldTextEncode"})
    word = "negative" if option == "negative" else "positive"
    for node in nodes_with(workflow, "text", {"CLIPTextEncode"}):
        if word in node["_meta"]["title"].lower():
            node["inputs"]["text"] = text
            return None
    raise QueueError(f"--{option}: no text node of this workflow has {word!r} in its title")


def put_poses(workflow: dict, server: Server, folder: Path) -> None:
    files = [folder / name for name in POSE_FILES if (folder / name).is_file()]
    if not files or files[0].name != POSE_FILES[0]:
        raise QueueError(f"--poses: {folder} has no {POSE_FILES[0]}")
    subfolder = f"poses/{folder.resolve().name}"
    for path in files:
        server.upload(path, subfolder)
    put(workflow, "poses", subfolder, "poses", {"LingBotWorldLoadPoses"})


def put_setting(workflow: dict, setting: str) -> None:
    """`Title or id.input=value`; the value is read as JSON when it is JSON."""
    place, equals, text = setting.partition("=")
    owner, dot, name = place.partition(".")
    if not (equals and dot):
        raise QueueError(f"--set {setting!r}: expected 'node title or id.input=value'")
    for key, node in workflow.items():
        if owner in (key, node["_meta"]["title"], node["class_type"]) and name in node["inputs"]:
            try:
                node["inputs"][name] = json.loads(text)
            except ValueError:
                node["inputs"][name] = text
            return
    raise QueueError(f"--set {setting!r}: no node {owner!r} with an input {name!r}; --list shows what there is")


def describe(workflow: dict) -> str:
    lines = []
    for key, node in workflow.items():
        lines.append(f"{key} {node['_meta']['title']} ({node['class_type']})")
        lines += [f"    {k} = {json.dumps(v)}" for k, v in node["inputs"].items() if not isinstance(v, list)]
    return "\n".join(lines)


def follow(connection, workflow: dict, prompt_id: str) -> None:
    """Print the nodes as they run, with their progress, until the prompt ends."""
    while True:
        message = connection.recv()
        if isinstance(message, bytes):
            continue
        event = json.loads(message)
        kind, data = event["type"], event["data"]
        if data.get("prompt_id") != prompt_id:
            continue
        if kind == "executing" and data["node"] is None:
            print(file=sys.stderr)
            return
        if kind == "executing":
            title = workflow.get(data["node"], {}).get("_meta", {}).get("title", data["node"])
            print(f"\n{title}", end="", file=sys.stderr, flush=True)
        elif kind == "progress":
            print(f"\r{title}  {data['value']:g}/{data['max']:g}", end="", file=sys.stderr, flush=True)
        elif kind == "execution_error":
            raise QueueError(f"\n{data['node_type']}: {data['exception_message'].strip()}")
        elif kind == "execution_interrupted":
            raise QueueError("\ninterrupted")


def saved_files(server: Server, prompt_id: str) -> list[dict]:
    history = json.loads(server.request(f"/history/{prompt_id}"))
    outputs = history.get(prompt_id, {}).get("outputs", {})
    groups = [group for output in outputs.values() for group in output.values() if isinstance(group, list)]
    items = [item for group in groups for item in group]
    files = [item for item in items if isinstance(item, dict) and item.get("filename", "").lower().endswith(MEDIA)]
    return sorted(files, key=lambda item: (item.get("type") != "output", not item["filename"].endswith(MEDIA[:3])))


def download(server: Server, item: dict, output: Path) -> Path:
    """Write an output file to `output`: a file name, or a folder that keeps the server's name."""
    query = urllib.parse.urlencode({key: item[key] for key in ("filename", "subfolder", "type")})
    target = output / item["filename"] if output.is_dir() else output
    part = target.with_name(target.name + ".part")
    part.write_bytes(server.request(f"/view?{query}"))
    part.replace(target)
    return target


def fill_in(workflow: dict, server: Server, options: argparse.Namespace) -> None:
    if options.image:
        put(workflow, "image", server.upload(options.image), "image", {"LoadImage"})
    if options.poses:
        put_poses(workflow, server, options.poses)
    for option in ("prompt", "negative"):
        if getattr(options, option) is not None:
            put_text(workflow, option, getattr(options, option))
    if options.seed is not None:
        put(workflow, "seed", options.seed, "noise_seed" if nodes_with(workflow, "noise_seed") else "seed")
    for setting in options.set:
        put_setting(workflow, setting)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflow", type=Path, help="a file of workflows/api/")
    parser.add_argument("--server", default="http://127.0.0.1:8188", help="where ComfyUI listens (%(default)s)")
    parser.add_argument("--image", type=Path, help="the start image")
    parser.add_argument("--prompt", help="what the video shows")
    parser.add_argument("--negative", help="what it should not show")
    parser.add_argument("--poses", type=Path, help="a folder with poses.npy and intrinsics.npy")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="NODE.INPUT=VALUE", help="another value")
    parser.add_argument("--output", type=Path, default=Path("."), help="file or folder to save to (%(default)s)")
    parser.add_argument("--list", action="store_true", help="show the workflow's nodes and values, queue nothing")
    return parser.parse_args()


def queue(options: argparse.Namespace) -> None:
    workflow = load_workflow(options.workflow)
    if options.list:
        print(describe(workflow))
        return
    for path in filter(None, (options.image, options.poses)):
        if not path.exists():
            raise QueueError(f"{path} does not exist")
    server = Server(options.server)
    connection = server.connect()
    fill_in(workflow, server, options)
    prompt_id = server.post("/prompt", {"prompt": workflow, "client_id": server.client})["prompt_id"]
    try:
        follow(connection, workflow, prompt_id)
    except KeyboardInterrupt:
        server.post("/interrupt", {"prompt_id": prompt_id})
        raise
    files = saved_files(server, prompt_id)
    if not files:
        raise QueueError("the workflow ran, but saved neither video nor image")
    print(download(server, files[0], options.output))


def main() -> int:
    try:
        queue(arguments())
    except QueueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
