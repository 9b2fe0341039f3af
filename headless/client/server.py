"""The connection of the command `lingbot-world queue` to a ComfyUI server."""

import hashlib
import json
import mimetypes
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ...errors import InputError, require

SECONDS, SILENT_SECONDS = 60, 3600
UPLOADS = "lingbot_world"
"""The subfolder of ComfyUI's input folder into which files are uploaded."""


class Server:
    """A ComfyUI server, reached over HTTP. All methods raise InputError if the server does not respond or reports an
    error."""

    def __init__(self, address: str) -> None:
        self.url = address.rstrip("/") if "://" in address else f"http://{address.rstrip('/')}"
        self.client = uuid.uuid4().hex

    def request(self, path: str, data: bytes | None = None, kind: str = "application/json") -> bytes:
        """Send a GET request for `path`, or with `data` a POST request of media type `kind`. Return the response's
        body."""
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            raise InputError(_refusal(path, error.code, error.read())) from None
        except (OSError, ValueError, HTTPException) as error:  # HTTPException for a response that breaks off
            raise self._silent(error) from None

    def ask(self, path: str, data: bytes | None = None, kind: str = "application/json") -> dict:
        """Send a request (see `request`). Return the JSON object in the response, or {} if the response is empty.
        Raises InputError if the response is not a JSON object."""
        answer = self.request(path, data, kind)
        with suppress(ValueError):
            found = json.loads(answer) if answer.strip() else {}
            if isinstance(found, dict):
                return found
        raise InputError(
            f"{self.url}{path} answers {answer[:60]!r}, which ComfyUI does not; name its own address as `server`"
        )

    def post(self, path: str, body: dict) -> dict:
        """Send a POST request with `body` as JSON. Return the JSON object in the response, {} if empty."""
        return self.ask(path, json.dumps(body).encode())

    def queue(self, workflow: dict) -> str:
        """Queue a workflow in API format and return its prompt_id. Raises InputError, without queueing, for an invalid
        node."""
        answer = self.post("/prompt", {"prompt": workflow, "client_id": self.client})
        if answer.get("node_errors"):
            self.cancel(answer["prompt_id"])
            raise InputError("\n".join(["A part of the workflow cannot run", *_problems(answer)]))
        if "prompt_id" not in answer:
            raise InputError(f"{self.url}/prompt answers {str(answer)[:60]}, without a prompt_id; is it a ComfyUI?")
        return answer["prompt_id"]

    def connect(self) -> Any:
        """Return an open websocket for the events of this client. Raises DependencyError without websocket-client."""
        websocket = require("websocket", "websocket-client")
        try:
            address = f"{self.url.replace('http', 'ws', 1)}/ws?clientId={self.client}"
            return websocket.create_connection(address, timeout=SILENT_SECONDS)
        except (OSError, ValueError, websocket.WebSocketException) as error:
            raise self._silent(error) from None

    def events(self, connection: Any, prompt_id: str) -> Iterator[tuple[str, dict]]:
        """Yield (kind, data) for each event of a prompt, without end. Raises InputError when the connection is lost."""
        while True:
            try:
                message = connection.recv()
            except (OSError, require("websocket").WebSocketException) as error:
                raise InputError(f"{self.url} does not answer any more ({error})") from None
            if message == "":  # `recv` returns "" for a connection that the server has closed
                raise InputError(f"{self.url} has closed the connection; its log may say why")
            kind, data = _event(message)
            if data.get("prompt_id") == prompt_id:
                yield kind, data

    def upload(self, path: Path) -> str:
        """Upload a file, named with a hash of its content, and return its path in ComfyUI's input folder."""
        stem = re.sub(r"[^\w.-]+", "_", path.stem, flags=re.ASCII)
        return self._send(path, UPLOADS, f"{stem}-{_digest([path])}{path.suffix}")

    def upload_folder(self, folder: Path, files: Sequence[Path]) -> str:
        """Upload `files` into a new folder, named after `folder` and a hash, and return its path in ComfyUI's input
        folder."""
        name = re.sub(r"[^\w.-]+", "_", folder.resolve().name, flags=re.ASCII)
        target = f"{UPLOADS}/{name}-{_digest(files)}"
        for file in files:
            self._send(file, target, file.name)
        return target

    def cancel(self, prompt_id: str) -> None:
        self.post("/queue", {"delete": [prompt_id]})
        self.post("/interrupt", {"prompt_id": prompt_id})

    def _send(self, path: Path, subfolder: str, name: str) -> str:
        """Upload a file, and return `subfolder`/`name`. Raise InputError if the server has a file with this name but
        other content."""
        boundary = uuid.uuid4().hex
        parts = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
            for key, value in (("subfolder", subfolder), ("type", "input"))
        ]
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        parts.append(f"{head}Content-Type: {kind}\r\n\r\n")
        body = "".join(parts).encode() + path.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
        answer = self.ask("/upload/image", body, f"multipart/form-data; boundary={boundary}")
        if answer.get("name") != name:
            place = f"input/{subfolder}/{name}"
            raise InputError(f"{self.url} has another file at {place}: delete that one, and queue again")
        return f"{subfolder}/{name}"

    def _silent(self, error: Exception) -> InputError:
        return InputError(f"no ComfyUI answers at {self.url} ({error}); start it, or name it with `server`")


def _event(message: str | bytes) -> tuple[str, dict]:
    """Return (kind, data) of a websocket message, or ("", {}) for a binary preview or another format."""
    with suppress(ValueError):
        event = None if isinstance(message, bytes) else json.loads(message)
        if isinstance(event, dict) and isinstance(event.get("data"), dict):
            return str(event.get("type")), event["data"]
    return "", {}


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name if len(files) > 1 else ''}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _refusal(path: str, code: int, body: bytes) -> str:
    try:
        answer = json.loads(body)
        error = answer.get("error", {})
    except (ValueError, AttributeError):
        return f"{path}: HTTP {code} {body[:200]!r}"
    first = error.get("message", f"HTTP {code}") if isinstance(error, dict) else str(error)
    return "\n".join([first, *_problems(answer)])


def _problems(answer: dict) -> Iterator[str]:
    for node, problem in answer.get("node_errors", {}).items():
        for found in problem["errors"]:
            yield f"  node {node} ({problem['class_type']}): {found['message']}: {found['details']}"
