"""A ComfyUI server for benchmarks, the events of its websocket, and its memory."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from bench_common import GB, Memory, parser_of
from lingbot_world.errors import InputError
from lingbot_world.headless.client.server import Server

PACK = Path(__file__).resolve().parent.parent.parent
MODES = {
    "default": [],
    "static": ["--disable-dynamic-vram"],
    "torch-malloc": ["--disable-dynamic-vram", "--disable-cuda-malloc"],
    "lowvram": ["--lowvram"],
    "novram": ["--novram"],
    "strict": ["--fast-disk", "--disable-pinned-memory"],
}
SAMPLER = "sampler"
START_SECONDS, SILENT_SECONDS = 120, 300


def server_parser(description: str) -> argparse.ArgumentParser:
    parser = parser_of(description)
    parser.add_argument("--comfyui", type=Path, required=True, help="the folder of ComfyUI's main.py")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="runs ComfyUI (default: this one)")
    parser.add_argument("--toy", type=Path, help="a folder that `lingbot-world toy --random` wrote, to try it on a CPU")
    parser.add_argument("--size", default="480*832")
    parser.add_argument("--reserve-vram", type=float, default=0.0, help="GiB that ComfyUI shall leave alone")
    return parser


def prepare_base(options: argparse.Namespace) -> Path:
    """Make a server's base directory. Return the folder of the package "bench"."""
    options.comfyui, options.folder = options.comfyui.resolve(), options.folder.resolve()
    for name in ("custom_nodes", "models/loras", "models/lingbot_world", "input", "output", "front-end"):
        (options.folder / name).mkdir(parents=True, exist_ok=True)
    (options.folder / "front-end/index.html").write_text("<html></html>")
    links = {"custom_nodes/lingbot-world": PACK, "custom_nodes/bench_nodes.py": PACK / "tools/bench/bench_nodes.py"}
    package = "models/lingbot_world/bench"
    for name, target in (links | ({package: options.toy.resolve()} if options.toy else {})).items():
        (options.folder / name).unlink(missing_ok=True)
        (options.folder / name).symlink_to(target)
    return options.folder / package


@contextmanager
def measured_server(mode: str, options: argparse.Namespace) -> Iterator[Callable[[dict], tuple["Timeline", dict]]]:
    """Start a server. Yield a function that runs nodes: it returns the timeline, seconds and memory over the idle
    server's."""
    log, memory = options.folder / f"server-{mode}.log", Memory()
    before = {name: value for name, value in memory.now(None).items() if name.startswith("vram")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    api, command = Server(f"127.0.0.1:{port}"), _command(mode, options, port)
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=log.parent, stdout=file, stderr=file, start_new_session=True)

    def run(nodes: dict[str, tuple[str, dict]]) -> tuple[Timeline, dict]:
        prompt = {node: {"class_type": kind, "inputs": inputs} for node, (kind, inputs) in nodes.items()}
        begin = time.monotonic()
        memory.now(process.pid, 0)
        timeline, connection = Timeline(), api.connect()
        connection.settimeout(SILENT_SECONDS)
        with closing(connection):
            any(timeline.take(*event) for event in api.events(connection, api.queue(prompt)))
        over = {f"{name}_GB": (value - floor[name]) / GB for name, value in sorted(memory.peaks.items())}
        return timeline, {**over, "run_s": time.monotonic() - begin}

    try:
        _wait_until_ready(api, process)
        floor = memory.now(process.pid) | before
        yield run
    except BaseException:
        print(f"--- end of {log}", log.read_text(errors="replace")[-4000:], "---", sep="\n", flush=True)
        raise
    finally:
        memory.stop()
        _end(process)


def _command(mode: str, options: argparse.Namespace, port: int) -> list[str]:
    words = f"--listen 127.0.0.1 --port {port} --disable-api-nodes --disable-auto-launch".split()
    words += ["--base-directory", options.folder, "--front-end-root", options.folder / "front-end"]
    if torch.cuda.is_available():
        words += [*MODES[mode], "--reserve-vram", options.reserve_vram]
    else:  # ComfyUI takes one of these
        words += ["--cpu", *(word for word in MODES[mode] if word not in ("--lowvram", "--novram"))]
    program = [options.python, options.comfyui / "main.py", "--database-url", "sqlite:///:memory:"]
    return [str(word) for word in (*program, *words)]


def _wait_until_ready(api: Server, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return api.request("/system_stats")
        except InputError:
            time.sleep(0.2)
    raise InputError(f"ComfyUI did not start (exit status {process.poll()})")


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def show(row: dict) -> None:
    print(json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()}), flush=True)


class Timeline:
    """The times at which a run's nodes began and its sampler's steps ended, and the texts on its nodes."""

    def __init__(self) -> None:
        self.began: dict[str | None, float] = {}
        self.steps: dict[int, float] = {}
        self.shown: dict[str, object] = {}
        self.ended: dict[str, float] = {}
        self._node = None

    def take(self, kind: str, data: dict) -> bool:
        """Note one event. Return True at the end of the run. Raise InputError when a node failed."""
        now = time.perf_counter()
        if kind == "executing":
            if self._node is not None:
                self.ended[self._node] = now
            self._node, self.began[data["node"]] = data["node"], now
            return data["node"] is None
        if kind == "progress" and data["node"] == SAMPLER:
            self.steps.setdefault(int(data["value"]), now)
        elif kind == "executed":
            output = data["output"] or {}
            if "latent" in output:
                self.shown = {name: values[0] for name, values in output.items() if values}
        elif kind in ("execution_error", "execution_interrupted"):
            raise InputError(f"{data['node_type']}: {data.get('exception_message', kind)}")
        return False

    def seconds(self, node: str) -> float:
        return self.ended[node] - self.began[node] if node in self.ended else 0.0
