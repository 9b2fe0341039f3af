"""A real ComfyUI for the tests: start it on a free port with this pack and a toy package, queue prompts.

ComfyUI always runs as a process of its own: from this repository's root its `nodes` would be ours.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from comfy_tree import PACK, Host, HostMissingError, find_host

PACK_NAME = "lingbot-world-comfyui"  # what `git clone` calls the folder
START_SECONDS = 240
PROMPT_SECONDS = 300


class RejectedPromptError(RuntimeError):
    """ComfyUI refused a prompt before running it (HTTP 400)."""

    def __init__(self, answer: dict):
        super().__init__(json.dumps(answer, indent=1))
        self.node_errors: dict = answer.get("node_errors", {})


class FailedPromptError(RuntimeError):
    """A node raised while the prompt ran."""

    def __init__(self, event: dict):
        super().__init__(f"{event['node_type']}: {event['exception_message']}".strip())
        self.node_type: str = event["node_type"]
        self.exception_type: str = event["exception_type"]


@dataclass
class Run:
    """What a prompt did: the outputs shown per node and every websocket message it sent on the way; `texts` are
    what was shown on nodes, with the nodes' ids."""

    prompt_id: str
    outputs: dict[str, dict] = field(default_factory=dict)
    events: list[tuple[str, dict]] = field(default_factory=list)
    previews: int = 0
    texts: list[tuple[str, str]] = field(default_factory=list)
    interrupted: bool = False

    @property
    def executed(self) -> list[str]:
        """Ids of the nodes that ran, in order; a cached node is not among them."""
        return [data["node"] for kind, data in self.events if kind == "executing" and data["node"] is not None]

    @property
    def cached(self) -> set[str]:
        return {node for kind, data in self.events if kind == "execution_cached" for node in data["nodes"]}

    def progress(self, node: str) -> list[tuple[float, float]]:
        """(value, max) of every progress message of a node."""
        return [(d["value"], d["max"]) for kind, d in self.events if kind == "progress" and str(d["node"]) == str(node)]

    def files(self, folder: Path) -> list[Path]:
        """Paths of the files that the output nodes saved, in order."""
        return [
            folder / item["subfolder"] / item["filename"]
            for output in self.outputs.values()
            for items in output.values()
            for item in (items if isinstance(items, list) else [])
            if isinstance(item, dict) and "filename" in item
        ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ComfyServer:
    """A ComfyUI process over a base directory of its own, with this pack linked into custom_nodes."""

    def __init__(
        self, host: Host, base: Path, *arguments: str, pack: bool = True, gpu: bool = False, python_path: str = ""
    ):
        """`gpu`: without --cpu. `python_path`: folders whose packages the server may import."""
        self.host, self.base, self.arguments = host, base, (*([] if gpu else ["--cpu"]), *arguments)
        self._python_path = python_path
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = base / "server.log"
        for name in ("custom_nodes", "models", "input", "output"):
            (base / name).mkdir(parents=True, exist_ok=True)
        link = base / "custom_nodes" / PACK_NAME
        if pack and not link.exists():
            link.symlink_to(PACK, target_is_directory=True)

    def __enter__(self) -> ComfyServer:
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers and the pack is in."""
        command = [str(self.host.python), str(self.host.root / "main.py"), "--listen", "127.0.0.1"]
        command += ["--port", str(self.port), "--disable-api-nodes", "--disable-auto-launch"]
        command += ["--base-directory", str(self.base), "--database-url", "sqlite:///:memory:", *self.arguments]
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        if self._python_path:
            environment["PYTHONPATH"] = self._python_path
        environment.setdefault("OMP_NUM_THREADS", "1")  # toys are too small for more, and waiting threads cost the most
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command, cwd=self.base, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"ComfyUI ended with {self.process.returncode}:\n{self.log()[-4000:]}")
            try:
                self.get("/system_stats")
            except OSError:
                time.sleep(0.2)
                continue
            if "IMPORT FAILED" in self.log():
                self.stop()
                raise RuntimeError(f"ComfyUI could not import a pack:\n{self.log()[-6000:]}")
            return
        self.stop()
        raise RuntimeError(f"ComfyUI did not answer in {START_SECONDS} s:\n{self.log()[-4000:]}")

    def stop(self) -> None:
        """End the server with TERM; kill it if it does not follow within 20 s."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def anonymous_bytes(self) -> int:
        """Memory of the server that no file backs (Linux)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) * 1024

    def get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=600) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
            if path == "/prompt" and error.code == 400:
                raise RejectedPromptError(json.loads(text)) from None
            raise
        return json.loads(text) if text.strip() else None

    def object_info(self, node: str | None = None) -> dict:
        return self.get("/object_info" if node is None else "/object_info/" + urllib.parse.quote(node))

    def interrupt(self) -> None:
        self.post("/interrupt", {})

    def free(self) -> None:
        """Have the models unloaded and the cache emptied before any later prompt.

        ComfyUI looks for this request when it is woken idle, and behind each prompt, whose end it tells first. The
        first empty prompt has it look, even if it missed the waking. The second ends when everything is freed.
        """
        self.post("/free", {"unload_models": True, "free_memory": True})
        for _ in range(2):
            self.queue({"1": {"class_type": "PreviewAny", "inputs": {"source": "nothing"}}})

    def queue(
        self, prompt: dict, *, on_event: Callable[[str, dict], None] | None = None, timeout: float = PROMPT_SECONDS
    ) -> Run:
        """Queue an API-format prompt and wait for its end.

        Raises:
            RejectedPromptError: validation failed; the prompt never ran.
            FailedPromptError: a node raised.
        """
        from websocket import create_connection

        client = uuid.uuid4().hex
        connection = create_connection(f"ws://127.0.0.1:{self.port}/ws?clientId={client}", timeout=timeout)
        try:
            run = Run(self.post("/prompt", {"prompt": prompt, "client_id": client})["prompt_id"])
            self._follow(connection, run, on_event, time.monotonic() + timeout)
        finally:
            connection.close()
        return run

    def _follow(self, connection, run: Run, on_event, deadline: float) -> None:
        while time.monotonic() < deadline:
            message = connection.recv()
            if isinstance(message, bytes):
                run.previews += 1
                continue
            kind, data = (event := json.loads(message))["type"], event["data"]
            if data.get("prompt_id") != run.prompt_id:
                continue
            run.events.append((kind, data))
            if on_event:
                on_event(kind, data)
            if kind == "lingbot_world.text":
                run.texts.append((data["node"], data["text"]))
            elif kind == "executed":
                run.outputs[data["node"]] = data["output"] or {}
            elif kind == "execution_error":
                raise FailedPromptError(data)
            elif kind == "execution_interrupted":
                run.interrupted = True
                return
            elif kind == "executing" and data["node"] is None:
                return
        raise TimeoutError(f"the prompt did not end in time; the server said:\n{self.log()[-3000:]}")


def write_toy_package(base: Path) -> Path:
    """The toy package at models/lingbot_world/toy, and its image as the example.png that every ComfyUI comes with."""
    from lingbot_world.toy import write_toy_package as write

    folder = write(base / "models" / "lingbot_world" / "toy")
    shutil.copy(folder / "example" / "image.png", base / "input" / "example.png")
    return folder


@pytest.fixture(scope="session")
def comfy_host() -> Host:
    """The ComfyUI on this machine; skips, saying where it was looked for, when there is none."""
    try:
        return find_host()
    except HostMissingError as missing:
        pytest.skip(f"HOST TESTS SKIPPED: {missing}")


def write_measuring_tools(base: Path) -> None:
    """Gives servers over this base the tests' own OpenCV and pycolmap, where the tests have them."""
    tools = base / "custom_nodes" / "tools"
    tools.mkdir()
    for name in ("cv2", "pycolmap"):
        if (found := importlib.util.find_spec(name)) is not None and found.origin is not None:
            for folder in Path(found.origin).parent.parent.glob(f"*{name.replace('cv2', 'opencv')}*.libs"):
                (tools / folder.name).symlink_to(folder)
            (tools / name).symlink_to(Path(found.origin).parent)
    (tools / "__init__.py").write_text(f"import sys\nsys.path.append({str(tools)!r})\nNODE_CLASS_MAPPINGS = {{}}\n")


@pytest.fixture(scope="session")
def comfy_base(comfy_host: Host) -> Iterator[Path]:
    """A base directory (models, input, output) with the toy package in it, and the packs that play faults and probe."""
    base = Path(tempfile.mkdtemp(prefix="lingbot-comfy-"))
    try:
        (base / "input").mkdir()
        (base / "custom_nodes").mkdir()
        for name in ("faults", "probe"):
            pack = Path(__file__).parent / f"{name}_pack"
            (base / "custom_nodes" / name).symlink_to(pack, target_is_directory=True)
        write_toy_package(base)
        write_measuring_tools(base)
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def comfy_server(comfy_host: Host, comfy_base: Path) -> Iterator[ComfyServer]:
    """One running ComfyUI with this pack and the toy package, shared by all tests of the session."""
    with ComfyServer(comfy_host, comfy_base) as server:
        yield server
