"""The queue of messages and frames to a client. On a slow connection frames are dropped."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import Executor
from typing import Any
from uuid import uuid4

from ..camera import integer_poses
from ..shown.frames import Frames, Receipt
from .codec import Codec, Socket
from .encoder import Encoder
from .protocol import Init, Output

MOST_QUEUED_BYTES = 64_000_000
"""The maximum pixel bytes in a client's queue. Beyond it the oldest frames are dropped, except the newest batch."""
MOST_MESSAGES = 1000
"""At most this many messages wait in a client's queue; a further message is dropped."""
MOST_QUEUED_SECONDS = 1.5
"""The maximum length of a client's queue of frames, in seconds of playback; this limit always permits 16 frames. Beyond
it the oldest frames are dropped, unless the client has limited its number of chunks."""


class Client:
    """The connection to one client, with a queue of frames and messages. All methods must be called in the event loop.

    is_own_page: whether the client is this project's web page.
    threads: the executor that encodes the frames.
    """

    def __init__(self, socket: Socket, init: Init, threads: Executor, codec: Codec) -> None:
        self.id, self.is_own_page, self.moving = uuid4().hex, init.is_own_page, init.moving
        self.dropped = 0
        self._socket, self._threads, self._init, self._codec = socket, threads, init, codec
        self._encoder = Encoder(init.output, init.fps)
        self._waiting: deque[Frames | dict[str, Any]] = deque()
        self._changed = asyncio.Event()
        self._chunk: dict[str, int] = {}
        self._unsent: list[Receipt] = []  # the inputs of dropped frames, which the next batch names
        self.finished = False

    def set_output(self, output: Output) -> None:
        """Set the format (encoding, quality and width) of all frames sent from now on."""
        self._encoder = Encoder(output, self._init.fps)

    def queue_frames(self, frames: Frames) -> None:
        """Queue frames of the walk. Drop the oldest frames beyond MOST_QUEUED_BYTES or MOST_QUEUED_SECONDS."""
        self._waiting.append(frames)
        while self._is_too_long():
            oldest = next(item for item in self._waiting if isinstance(item, Frames))
            self._waiting.remove(oldest)
            self.dropped += len(oldest.pixels)
            self._unsent += oldest.inputs
        self._changed.set()

    def queue_message(self, message: dict[str, Any]) -> None:
        """Queue a message for this client. Drop the message if MOST_MESSAGES wait, or if its type is `status` and the
        client is not this project's page."""
        waiting = sum(not isinstance(item, Frames) for item in self._waiting)
        if waiting < MOST_MESSAGES and (message["type"] != "status" or self.is_own_page):
            self._waiting.append(message)
            self._changed.set()

    def drop_frames(self) -> None:
        self._waiting = deque(item for item in self._waiting if not isinstance(item, Frames))
        self._unsent = []

    def finish(self) -> None:
        """Make `send` return as soon as the queue is empty."""
        self.finished = True
        self._changed.set()

    def _is_too_long(self) -> bool:
        waiting = [item.pixels for item in self._waiting if isinstance(item, Frames)]
        frames, size = sum(map(len, waiting)), sum(pixels.nbytes for pixels in waiting)
        late = self._init.most_chunks is None and frames > max(16, MOST_QUEUED_SECONDS * self._init.fps)
        return len(waiting) > 1 and (late or size > MOST_QUEUED_BYTES)

    async def send(self) -> None:
        """Send queued frames and messages until `finish` is called. Raises ConnectionError if the connection breaks."""
        while True:
            while self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, Frames):
                    await self._send_frames(item)
                else:
                    await self._codec.send(self._socket, item)
            if self.finished:
                return
            self._changed.clear()
            await self._changed.wait()

    async def _send_frames(self, frames: Frames) -> None:
        began = time.perf_counter()
        loop = asyncio.get_running_loop()
        described, payload = await loop.run_in_executor(self._threads, self._encoder.encode, frames.pixels)
        encoded = time.perf_counter()
        header = described | {
            "request_id": f"{self.id}_{frames.chunk}",
            "chunk_index": frames.chunk,
            "first_frame_index": frames.first,
            "frame_batch_index": frames.part,
            "num_frame_batches": frames.parts,
            "is_final_frame_batch": frames.last,
            "total_size": len(payload),
        }
        if frames.event is not None:
            header["event_id"] = frames.event
        if self.is_own_page:
            header["made_ms"] = round(1000 * frames.seconds)
            if frames.waited is not None:
                header["waited_ms"] = round(1000 * frames.waited)
        inputs, self._unsent = [*self._unsent, *frames.inputs], []
        if self.is_own_page and inputs:
            header["inputs"] = [_receipt(each) for each in inputs]
        if self.is_own_page and frames.poses is not None:
            header["camera"] = integer_poses(frames.poses)
        await self._codec.send_frames(self._socket, header, payload)
        self._count(frames, len(payload), encoded - began, time.perf_counter() - encoded)
        if frames.last:
            await self._codec.send(self._socket, self._stats(frames, described["content_type"]))
            self._chunk = {}

    def _count(self, frames: Frames, size: int, encoding: float, sending: float) -> None:
        more = {
            "raw_payload_build_ms": round(1000 * encoding),
            "ws_write_ms": round(1000 * sending),
            "raw_bytes": frames.pixels.nbytes,
            "ws_payload_bytes": size,
            "num_frames": len(frames.pixels),
            "num_batches": 1,
        }
        self._chunk = {name: self._chunk.get(name, 0) + value for name, value in more.items()}

    def _stats(self, frames: Frames, content_type: str) -> dict[str, Any]:
        whole = round(1000 * frames.seconds)
        return {
            "type": "chunk_stats",
            "session_id": self.id,
            "request_id": f"{self.id}_{frames.chunk}",
            "chunk_index": frames.chunk,
            "event_id": frames.event,
            "content_type": content_type,
            "request_prepare_ms": 0,
            "scheduler_forward_ms": whole,
            "pace_wait_ms": 0,
            "header_write_ms": 0,
            "raw_write_ms": self._chunk["ws_write_ms"],
            "dropped_frames": self.dropped,
            **self._chunk,
            "chunk_total_ms": whole + self._chunk["raw_payload_build_ms"] + self._chunk["ws_write_ms"],
        }


def _receipt(receipt: Receipt) -> dict[str, Any]:
    number = {} if receipt.event is None else {"event_id": receipt.event}
    return {
        "kind": receipt.kind,
        **number,
        "latent_frame": receipt.latent_frame,
        "waited_ms": max(0, round(1000 * receipt.waited)),
    }
