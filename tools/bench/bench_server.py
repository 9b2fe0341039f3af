"""A ComfyUI server for bench_comfyui.py and bench_rollout_node.py, the events of its websocket, and its memory."""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from bench_report import GB
from lingbot_world.errors import InputError
from lingbot_world.headless.client.server import Server
from memory_watch import Memory

PACK = Path(__file__).resolve().parent.parent.parent
MODES = {
    "default": [],
    "static": ["--disable-dynamic-vram"],
    "torch-malloc": ["--disable-dynamic-vram", "--disable-cuda-malloc"],
    "lowvram": ["--lowvram"],
    "novram": ["--novram"],
    "strict": ["--fast-disk", "--disable-pinned-memory"],
}
LOADER, INPUTS, SAMPLER, END = map(str, range(1, 5))
START_SECONDS, SILENT_SECONDS = 120, 300


def server_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that both benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True, help="the folder of ComfyUI's main.py")
    parser.add_argument("--folder", type=Path, required=True, help="scratch: models, packs, logs")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="runs ComfyUI (default: this one)")
    parser.add_argument("--toy", type=Path, help="a folder that `lingbot-world toy --random` wrote, to try it on a CPU")
    parser.add_argument("--size", default="480*832")
    parser.add_argument("--reserve-vram", type=float, default=0.0, help="GiB that ComfyUI shall leave alone")
    return parser


def prepare_base(options: argparse.Namespace) -> Path:
    """Make the base directory of a server: this pack, the benchmarks' nodes, a front-end of one empty page. Return the
    folder of the package "bench", which is the toy's where there is one."""
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
def measured_server(
    mode: str, options: argparse.Namespace, memory: Memory
) -> Iterator[Callable[[dict], tuple["Timeline", dict]]]:
    """Start a server. Yield a function that runs a prompt and returns the run's timeline, its seconds, and its highest
    memory over the idle server's, of GPUs over what was used before the server started."""
    before = {name: value for name, value in memory.now(None).items() if name.startswith("vram")}
    with ComfyUI(mode, options) as server:
        floor = memory.now(server.process.pid) | before

        def run(prompt: dict) -> tuple[Timeline, dict]:
            begin = time.monotonic()
            memory.now(server.process.pid, 0)
            timeline = server.run(prompt)
            over = {f"{name}_GB": (value - floor[name]) / GB for name, value in sorted(memory.peaks.items())}
            return timeline, {**over, "run_s": time.monotonic() - begin}

        yield run


def show(row: dict) -> None:
    """Print the figures of a run as a line of JSON."""
    print(json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()}), flush=True)


def api_prompt(nodes: dict[str, tuple[str, dict]]) -> dict:
    """Return nodes, by id their class and inputs, as ComfyUI's API takes them."""
    return {node: {"class_type": kind, "inputs": inputs} for node, (kind, inputs) in nodes.items()}


class ComfyUI:
    """A server over the base directory. Its log is FOLDER/server-MODE.log, whose end is printed after an exception."""

    def __init__(self, mode: str, options: argparse.Namespace):
        self.log = options.folder / f"server-{mode}.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.api = Server(f"127.0.0.1:{port}")
        self.command = [
            str(options.python),
            str(options.comfyui / "main.py"),
            "--listen",
            "127.0.0.1",
            "--port",
            str(port),
            "--disable-api-nodes",
            "--disable-auto-launch",
            "--base-directory",
            str(options.folder),
            "--database-url",
            "sqlite:///:memory:",
            "--front-end-root",
            str(options.folder / "front-end"),
            *MODES[mode],
        ]
        self.command += ["--reserve-vram", str(options.reserve_vram)] if torch.cuda.is_available() else ["--cpu"]
        if not torch.cuda.is_available():  # ComfyUI takes one of these
            self.command = [word for word in self.command if word not in ("--lowvram", "--novram")]

    def __enter__(self) -> "ComfyUI":
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.log.parent, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait_until_ready()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                return self.api.request("/system_stats")
            except InputError:
                time.sleep(0.2)
        raise InputError(f"ComfyUI did not start (exit status {self.process.poll()})")

    def __exit__(self, failure: type | None, *_) -> None:
        if failure:
            print(f"--- end of {self.log}", self.log.read_text(errors="replace")[-4000:], "---", sep="\n", flush=True)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def run(self, prompt: dict) -> "Timeline":
        timeline, connection = Timeline(), self.api.connect()
        connection.settimeout(SILENT_SECONDS)
        try:
            any(timeline.take(*event) for event in self.api.events(connection, self.api.queue(prompt)))
        finally:
            connection.close()
        return timeline


class Timeline:
    """The times at which a run's nodes began and its sampler's steps ended, and the texts on its nodes."""

    def __init__(self) -> None:
        self.began: dict[str | None, float] = {}
        self.steps: dict[int, float] = {}
        self.shown: dict[str, object] = {}
        self.ended: dict[str, float] = {}
        self._node = None

    def take(self, kind: str, data: dict) -> bool:
        """Note one event. Return True at the end of the run. Raises InputError when a node failed."""
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

    def figures(self, steps: int, high: int) -> dict:
        """Seconds of the run's parts; `high` steps of `steps` belong to the high-noise expert."""
        ends = [self.began[SAMPLER], *(self.steps.get(step, float("nan")) for step in range(1, steps + 1))]
        taken = [end - begin for begin, end in zip(ends, ends[1:], strict=False)]
        low_step = statistics.median(taken[high + 1 :] or taken[-1:])
        high_step = statistics.median(taken[1:high] or [low_step])
        return {
            "load_s": self.seconds(LOADER) + taken[0] - high_step,
            "loader_node_s": self.seconds(LOADER),
            "high_step_s": high_step,
            "low_step_s": low_step,
            "switch_s": taken[high] - low_step,
            "sampler_s": self.seconds(SAMPLER),
            "steps_s": [round(second, 2) for second in taken],
        }
