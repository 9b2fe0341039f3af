"""The command `lingbot-world live --bench`: a test client presses keys in a walk (a steered video)."""

import asyncio
import random
import signal
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

import aiohttp

from ...errors import InputError
from ...live.wire.codec import MSGPACK
from ...live.wire.protocol import FASTEST, MOST_BYTES
from .opening import LoadedModel
from .running import running
from .serving import ENDPOINT

T = TypeVar("T")
PACED = 16.0
WARM = 4.0
"""The number of seconds after the first frame that most measurements leave out, because the attention window is still
filling."""


def measure(loaded: LoadedModel, folder: Path, seconds: float) -> dict[str, Any]:
    """Measure two walks of `seconds` seconds each. The first runs at 16 frames per second, the second as fast as
    possible. Return the settings and measurements by name, as JSON values."""
    try:
        return asyncio.run(_unless_interrupted(_measure(loaded, folder, seconds)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _unless_interrupted(client: Coroutine[Any, Any, T]) -> T:
    """Await the coroutine `client` and return its result. The first Ctrl-C cancels the coroutine, which raises
    CancelledError. Later ones do nothing."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(client)
    interrupts = count()

    def interrupt() -> None:
        if next(interrupts) == 0:
            task.cancel()

    if threading.current_thread() is threading.main_thread():
        with suppress(NotImplementedError):  # on Windows Ctrl-C raises KeyboardInterrupt
            loop.add_signal_handler(signal.SIGINT, interrupt)
    return await task


async def _measure(loaded: LoadedModel, folder: Path, seconds: float) -> dict[str, Any]:
    engine = loaded.engine()
    found: dict[str, Any] = {
        "release": engine.release,
        "width": engine.size[1],
        "height": engine.size[0],
        "chunk": engine.chunk,
        "window": engine.window.frames,
        "sink": engine.window.sink,
        "device": str(engine.device),
        "load_s": _since_start(),
    }
    async with running(loaded, folder) as (port, _):
        for name, fps in (("at_16", PACED), ("fastest", float(FASTEST))):
            walker = Walker(f"http://127.0.0.1:{port}{ENDPOINT}", fps)
            found[name] = await walker.walk(seconds)
    if found["load_s"] is not None:
        found["command_to_first_frame_s"] = round(found["load_s"] + found["at_16"]["first_chunk_s"], 2)
    return found


class Walker:
    """A test client that presses random keys and records when frames arrive. `fps`: the frame rate of the viewer."""

    codec = MSGPACK

    def __init__(self, address: str, fps: float) -> None:
        self._address, self._fps = address, fps
        self._pressed: dict[int, float] = {}  # events not yet visible in a frame, and the time of sending
        self._answers: list[tuple[float, float]] = []  # the time of each key, and its delay until visible
        self._parts: list[tuple[float, float, float]] = []  # per batch with new keys: arrival, wait, compute time
        self._arrived: list[tuple[float, int]] = []
        self._stats: dict[str, Any] = {}
        self._there = asyncio.Event()  # set by the first frames, which a person waits for

    async def walk(self, seconds: float) -> dict[str, Any]:
        """Walk until `seconds` seconds after the first frames arrive, and return the measurements by name. Raises
        InputError if the walk ends before its first frame."""
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(self._address, max_msg_size=MOST_BYTES, compress=0) as socket,
        ):
            began = time.perf_counter()
            init = {"type": "init", "fps": self._fps, "realtime_output_format": "jpeg", "lingbot_world": True}
            init["lingbot_moving"] = True  # frames per second are measured
            await self.codec.send(socket, init)
            keys = asyncio.create_task(self._press(socket, seconds))
            try:
                async for message in socket:
                    self._take(self.codec.read(message.data))
                    if keys.done():
                        break
            finally:
                keys.cancel()
                with suppress(asyncio.CancelledError, ConnectionError):
                    await keys
        if not self._arrived:
            raise InputError("the walk ended before its first frame; start `lingbot-world live` without `bench`")
        return self._figures(began)

    async def _press(self, socket: aiohttp.ClientWebSocketResponse, seconds: float) -> None:
        await self._there.wait()
        chance, number, ends = random.Random(0), 0, time.perf_counter() + seconds
        while time.perf_counter() < ends:
            await asyncio.sleep(chance.uniform(0.5, 1.5))
            number += 1
            held = [chance.choice("wasdjl")] if number % 2 else []
            payload = {"mode": "state", "transitions": [{"actions": held}]}
            self._pressed[number] = time.perf_counter()
            message = {"type": "event", "kind": "camera_actions", "payload": payload, "event_id": number}
            await self.codec.send(socket, message)

    def _take(self, message: dict[str, Any]) -> None:
        now = time.perf_counter()
        if message["type"] == "error":
            raise InputError(message["content"])
        if message["type"] == "chunk_stats":
            self._stats = message
        if message["type"] != "frame_batch":
            return
        self._arrived.append((now, message["num_frames"]))
        self._there.set()
        seen = [number for number in self._pressed if number <= message.get("event_id", -1)]
        if seen and "waited_ms" in message:
            self._parts.append((now, message["waited_ms"] / 1000, message["made_ms"] / 1000))
        for number in seen:
            pressed = self._pressed.pop(number)
            self._answers.append((pressed, now - pressed))

    def _figures(self, began: float) -> dict[str, Any]:
        first, most = self._arrived[0][0], max((wait for _, wait in self._answers), default=0.0)
        later = [answer for answer in self._answers if answer[0] > first + WARM] or self._answers
        waits = [wait for _, wait in later]
        counted = [(at, frames) for at, frames in self._arrived if at > first + WARM] or self._arrived
        frames = sum(count for _, count in counted[1:])
        stalls, late = late_frames(self._arrived, self._fps, counted[0][0])
        parts = [part for part in self._parts if part[0] > first + WARM] or self._parts
        cuts = quantiles(waits, n=20, method="inclusive") if len(waits) > 1 else [0.0] * 19
        return {
            "first_chunk_s": round(first - began, 3),
            "key_to_pixel_p50_s": round(cuts[9], 3),
            "key_to_pixel_p95_s": round(cuts[18], 3),
            "key_to_pixel_most_s": round(most, 3),
            "waited_p50_s": round(median(part[1] for part in parts), 3) if parts else 0.0,
            "made_p50_s": round(median(part[2] for part in parts), 3) if parts else 0.0,
            "keys": len(waits),
            "frames_a_second": round(frames / max(counted[-1][0] - counted[0][0], 1e-6), 2),
            "stalls": stalls,
            "late_frames": late,
            "frames": frames,
            "dropped": self._stats.get("dropped_frames", 0),
        }


def late_frames(arrived: list[tuple[float, int]], fps: float, since: float) -> tuple[int, int]:
    """Return the number of late batches, and of their frames, after the time `since`. A batch is late if all earlier
    frames have been played before its arrival. `arrived`: (seconds, number of frames) of each batch."""
    played, stalls, late = arrived[0][0], 0, 0
    for at, frames in arrived:
        if at > played and at > since:
            stalls, late = stalls + 1, late + frames
        played = max(played, at) + frames / fps
    return stalls, late


def _since_start() -> float | None:
    try:
        import os

        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        return round(up - ticks / os.sysconf("SC_CLK_TCK"), 2)
    except OSError:
        return None
