"""Walks of the toy's random causal model, at its smallest, and servers and clients of them."""

import asyncio
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path

import msgpack
import websocket
from lingbot_world.headless.live.opening import LoadedModel, plan_live
from lingbot_world.headless.live.running import running
from lingbot_world.headless.live.serving import ENDPOINT
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.live import Session
from lingbot_world.live.wire.steering import TimeLimits
from PIL import Image

PATIENCE = 120
"""Seconds in which a server has to send what a client waits for."""
ROOT = Path(__file__).parents[1]


@cache
def opened(package, **changes):
    """The toy's causal model, two steps a chunk, 48x32, loaded once for each way of asking."""
    options = {
        "ckpt_dir": package / "lingbot_world_fast",
        "image": package / "example/image.png",
        "prompt": "a castle",
        "output": package.parent / "unused.mp4",
        "width": 48,
        "height": 32,
        "schedule": "0,500",
        "device": "cpu",
        "window": 6,
        "sink": 2,
        "chunk": 1,
    }
    return LoadedModel(plan_live(GenerateOptions(**{**options, **changes})))


@contextmanager
def walking(package, folder, begin=None, **changes):
    """A Session that is asked for its frames; a thread makes them without an input too."""
    loaded = opened(package, **changes)
    with Session(loaded.engine(), begin or loaded.start, folder=folder, fps=0, moving=True) as session:
        yield session


def chunks(session, count):
    """The next chunks' hand-outs."""
    made = []
    for frames in session:
        made.append(frames)
        if frames.last:
            count -= 1
        if not count:
            return made
    raise AssertionError("the walk ended")


def live_process(package, *more):
    """The command's own process: the smallest walk, and words that say more."""
    smallest = ["--width", 48, "--height", 32, "--window", 6, "--sink", 2, "--chunk", 1, "--schedule", "0,500"]
    words = ["live", package / "lingbot_world_fast", *smallest, *more]
    return subprocess.Popen(
        [sys.executable, "-m", "lingbot_world", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


class Server:
    """The server in a thread, with a loop of its own."""

    def __init__(self, package, folder, *, limits=None, token="", origins=(), **changes):
        self.loaded, self.folder, self.token = opened(package, **changes), folder, token
        self._settings = {"limits": limits or TimeLimits(), "token": token, "origins": origins}
        self._ready, self._thread = threading.Event(), threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self):
        self.loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with running(self.loaded, self.folder, **self._settings) as (port, server):
            self.port, self.server = port, server
            self._ready.set()
            await self._ended.wait()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def client(self, *, header=(), query="", **init):
        """A client that has sent its init; none is sent with `init=None`."""
        address = f"ws://127.0.0.1:{self.port}{ENDPOINT}{query}"
        socket = websocket.create_connection(address, timeout=60, suppress_origin=True, header=list(header))
        client = Client(socket)
        if init.pop("first", True):
            moving = {"lingbot_moving": True} if init.get("lingbot_world") else {}
            client.send({"type": "init", "fps": 60, "realtime_output_format": "raw", **moving, **init})
        return client


class Client:
    """A client of the protocol that nothing here is shared with."""

    def __init__(self, socket):
        self.socket, self.frames, self.batches, self.told = socket, [], [], []

    def send(self, message):
        self.socket.send_binary(msgpack.packb(message))

    def event(self, kind, payload=None, event_id=None):
        self.send({"type": "event", "kind": kind, "payload": payload, "event_id": event_id})

    def receive(self):
        """The next message; the frames of a batch are read."""
        data = self.socket.recv()
        if not data:
            raise ConnectionError("the server has closed the connection")
        message = msgpack.unpackb(data)
        if message["type"] in ("frame_batch", "frame_batch_header"):
            payload = message.pop("payload", None)
            payload = self.socket.recv() if payload is None else payload
            assert len(payload) == message["total_size"]
            self.batches.append(message)
            self.frames.append(payload)
        else:
            self.told.append(message)
        return message

    def until(self, wanted):
        """Receives until a message is what is wanted, and returns it."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            message = self.receive()
            if wanted(message):
                return message
        raise AssertionError(f"the server did not tell it within {PATIENCE} s; last it told {self.told[-3:]}")

    def status(self, content):
        return self.until(lambda message: message.get("content") == content)

    def chunk(self, at_least=0):
        return self.until(lambda message: message["type"] == "chunk_stats" and message["chunk_index"] >= at_least)

    def error(self):
        return self.until(lambda message: message["type"] == "error")["content"]

    def close(self):
        self.socket.close()

    def tear(self):
        """The connection breaks: nobody says goodbye."""
        self.socket.sock.shutdown(2)
        self.socket.sock.close()


def wait_for(condition, seconds=PATIENCE):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)


def png(width=64, height=48, colour=(200, 30, 30)):
    file = BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def ask(server, path, **headers):
    """Status and body of a page."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
