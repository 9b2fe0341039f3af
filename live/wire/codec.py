"""Two encodings of messages: msgpack for SGLang's clients, and JSON for ComfyUI's pages."""

from __future__ import annotations

import json
from typing import Any, Protocol

from ...errors import InputError, require
from ..controls import MOST_ROWS
from .protocol import MOST_IMAGE_BYTES, MOST_PROMPT

APART = 1 << 16
"""MSGPACK sends raw frames of at least this many bytes in two websocket messages: the header, then the frames. All
other frames are sent together with their header in one message."""


class Socket(Protocol):
    """The methods of a websocket that a Codec calls."""

    async def send_bytes(self, data: bytes) -> None: ...

    async def send_str(self, data: str) -> None: ...


class Codec(Protocol):
    """An encoding of messages.

    read: decodes a client's message. Raises InputError unless it is a map.
    send: encodes a message and sends it.
    send_frames: sends encoded frames with their header.
    """

    def read(self, data: bytes | str) -> dict[str, Any]: ...

    async def send(self, socket: Socket, message: dict[str, Any]) -> None: ...

    async def send_frames(self, socket: Socket, header: dict[str, Any], payload: bytes) -> None: ...


class _Msgpack:
    def read(self, data: bytes | str) -> dict[str, Any]:
        return unpack(data if isinstance(data, bytes) else b"")  # text fails like an empty message

    async def send(self, socket: Socket, message: dict[str, Any]) -> None:
        await socket.send_bytes(pack(message))

    async def send_frames(self, socket: Socket, header: dict[str, Any], payload: bytes) -> None:
        if header["encoding"] == "raw" and len(payload) >= APART:
            await socket.send_bytes(pack({"type": "frame_batch_header"} | header))
            await socket.send_bytes(payload)
        else:
            await socket.send_bytes(pack({"type": "frame_batch"} | header | {"payload": payload}))


class _Json:
    def read(self, data: bytes | str) -> dict[str, Any]:
        try:
            message = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not a message: {str(error)[:100]}") from error
        return _map(message)

    async def send(self, socket: Socket, message: dict[str, Any]) -> None:
        await socket.send_str(json.dumps(message))

    async def send_frames(self, socket: Socket, header: dict[str, Any], payload: bytes) -> None:
        await socket.send_str(json.dumps({"type": "frame_batch_header"} | header))
        await socket.send_bytes(payload)


MSGPACK: Codec = _Msgpack()
"""The msgpack encoding: each dict becomes a websocket's binary message."""
JSON: Codec = _Json()
"""The JSON encoding: each dict becomes a websocket's text message. Frames follow their header as a binary message."""


def pack(message: dict[str, Any]) -> bytes:
    """Return a message encoded as msgpack. Raises DependencyError if the package msgpack is missing."""
    return require("msgpack", '"lingbot-world[live]"').packb(message)


def unpack(data: bytes) -> dict[str, Any]:
    """Return the map encoded in msgpack data. Raises InputError for data that is too long or not a map, and
    DependencyError without msgpack."""
    msgpack = require("msgpack", '"lingbot-world[live]"')
    try:
        message = msgpack.unpackb(
            data,
            max_bin_len=MOST_IMAGE_BYTES,
            max_str_len=4 * MOST_PROMPT,
            max_array_len=MOST_ROWS,
            max_map_len=64,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise InputError(f"not a message: {str(error)[:100] or type(error).__name__}") from error
    return _map(message)


def _map(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InputError("not a message: expected a map")
    return message
