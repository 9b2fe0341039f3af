"""The messages of SGLang's realtime video protocol, with this server's additions, and their limits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...options import FPS
from ...pipeline.geometry import STEP
from ..controls import MOST_ROWS

MOST_BYTES, MOST_IMAGE_BYTES = 17 << 20, 16 << 20
MOST_PROMPT = 8192
"""The maximum length of a client's prompt, in characters."""
MOST_HELD, MOST_TRANSITIONS = 16, 512
LARGEST_EVENT, LARGEST_SEED = 2**31 - 1, 2**63 - 1
SLOWEST = 0.05
FASTEST = 60
FORMATS = ("raw", "webp", "jpeg", "h264")
QUALITY = {"webp": 90, "jpeg": 90, "h264": 90, "raw": 0}
SIDE = re.compile(r"(\d{2,4})\s*[x*]\s*(\d{2,4})", re.IGNORECASE)
SGLANG_KINDS = "camera_actions", "prompt", "composite_input"
KINDS = *SGLANG_KINDS, "look", "stick", "pause", "resume", "back", "restart", "output", "moving", "event"
"""The kinds of a client's events: SGLang's, then this server's additions."""


@dataclass(frozen=True)
class Output:
    """The format of the frames for a client.

    format: one of FORMATS.
    quality: 1 to 100; 0 for raw frames.
    width: the largest width in pixels; 0 for no limit.
    """

    format: str = "raw"
    quality: int = 0
    width: int = 0


@dataclass(frozen=True)
class Init:
    """A client's first message. None selects the server's setting, except in `most_chunks` and `script`.

    size: (height, width) in pixels.
    most_chunks: the maximum number of chunks in the walk; None is no limit.
    script: keyboard keys for each latent frame; None is no script.
    window: the attention window, in latent frames.
    sink: the number of first latent frames that stay in the window.
    chunk: the number of latent frames in a chunk.
    is_own_page: whether the client is this project's web page.
    resume: the token of a walk to return to, or an empty string.
    moving: whether to make chunks even while there is no input.
    speed: the speed of key W; 1 is the largest speed in the training data.
    replay: the name of a saved walk to repeat, or an empty string.
    """

    prompt: str | None
    image: bytes | None
    size: tuple[int, int] | None
    fps: float
    seed: int | None
    most_chunks: int | None
    output: Output
    script: list[list[str]] | None
    window: int | None
    sink: int | None
    chunk: int | None
    is_own_page: bool
    resume: str
    moving: bool | None = None
    speed: float | None = None
    replay: str = ""


@dataclass(frozen=True)
class ClientEvent:
    """A client's checked message during a walk (a steered video).

    kind: one of KINDS.
    payload: data whose type depends on the kind.
    number: the `event_id` of the message, or None.
    """

    kind: str
    payload: Any
    number: int | None


def read_init(message: dict[str, Any]) -> Init:
    """Return a client's first message as an Init. Raises InputError with the name of an invalid field."""
    if message.get("type") != "init":
        raise InputError("the first message is an `init`")
    inputs = message.get("condition_inputs")
    if inputs is not None and not isinstance(inputs, dict):
        raise InputError(f"`condition_inputs`: expected a dict, found a {type(inputs).__name__}")
    actions = None if inputs is None else inputs.get("camera_actions")
    image, resume = message.get("first_frame"), message.get("resume")
    if image is not None and not isinstance(image, bytes):
        raise InputError("`first_frame`: expected the bytes of an image; this server fetches no URL")
    prompt = message.get("prompt")
    return Init(
        prompt=None if prompt in (None, "") else _prompt(prompt),
        image=image or None,
        size=_size(message.get("size")),
        fps=float(_number("fps", message, 1, FASTEST) or FPS),
        seed=_integer("seed", message, 0, LARGEST_SEED),
        most_chunks=_integer("max_chunks", message, 1),
        output=_output(message, "raw"),
        script=None if actions is None else _script(actions),
        window=_integer("realtime_causal_kv_cache_num_frames", message, 0),
        sink=_integer("realtime_causal_sink_size", message, 0),
        chunk=_integer("lingbot_chunk", message, 1),
        is_own_page=message.get("lingbot_world") is True,
        resume=resume[:64] if isinstance(resume, str) else "",
        moving=_boolean("lingbot_moving", message.get("lingbot_moving")),
        speed=_number("lingbot_speed", message, SLOWEST, 1),
        replay=_name("lingbot_replay", message.get("lingbot_replay")),
    )


def read_client_events(message: dict[str, Any]) -> list[ClientEvent]:
    """Return the events in a client's message: several for a `composite_input`, else one. Raises InputError for an
    invalid message."""
    if message.get("type") != "event":
        raise InputError("after the `init` come messages of type `event`")
    number = _integer("event_id", message, 0)
    kind, payload = message.get("kind"), message.get("payload")
    if kind == "composite_input":
        parts = payload if isinstance(payload, dict) else {}
        names = parts.get("input_types")
        if not isinstance(names, list) or not names or len(names) > len(KINDS):
            raise InputError("`composite_input`: expected a map whose `input_types` names its other keys")
        return [_event(name, parts.get(name) if isinstance(name, str) else None, number) for name in names]
    return [_event(kind, payload, number)]


def _event(kind: Any, payload: Any, number: int | None) -> ClientEvent:
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise InputError(f"no event of kind {_quote(kind)}; expected one of {', '.join(KINDS)}")
    return ClientEvent(kind, reader(payload), number)


def _actions(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        return {"script": _script(payload)}
    transitions = payload.get("transitions")
    if payload.get("mode") != "state" or not isinstance(transitions, list) or len(transitions) > MOST_TRANSITIONS:
        raise InputError("`camera_actions`: expected a list of lists of keys, or a map of `mode` state and transitions")
    held = [part.get("actions") if isinstance(part, dict) else None for part in transitions]
    return {"held": [_row(row) for row in held]}


def _script(payload: Any) -> list[list[str]]:
    if not isinstance(payload, list) or len(payload) > MOST_ROWS:
        raise InputError(f"`camera_actions`: expected a list of lists of keys, {MOST_ROWS} at most")
    return [_row(row) for row in payload]


def _row(row: Any) -> list[str]:
    if not isinstance(row, list) or len(row) > MOST_HELD or not all(isinstance(key, str) for key in row):
        raise InputError(f"`camera_actions`: expected lists of up to {MOST_HELD} keys of w a s d i j k l")
    return [key.lower() for key in row]


def _prompt(payload: Any) -> str:
    if not isinstance(payload, str) or not payload.strip():
        raise InputError("`prompt`: expected a text that describes the world")
    if len(payload) > MOST_PROMPT:
        raise InputError(f"`prompt`: {len(payload)} characters; at most {MOST_PROMPT}, more than the encoder reads")
    return payload


def _new_prompt(payload: Any) -> tuple[str, bool]:
    if isinstance(payload, dict):
        return _prompt(payload.get("text")), payload.get("refresh") is True
    return _prompt(payload), False


def _world_event(payload: dict[str, Any]) -> tuple[str, bool | None, bool]:
    name = payload.get("name")
    if not isinstance(name, str):
        raise InputError(f"`event`: `name` is {_quote(name)}; expected the name of an event, or its key")
    return name, _boolean("on", payload.get("on")), payload.get("refresh") is True


def _numbers(name: str, count: int, most: float) -> Any:
    def read(payload: Any) -> list[float]:
        if not isinstance(payload, list) or len(payload) != count or not all(map(_finite, payload)):
            raise InputError(f"`{name}`: expected {count} finite numbers")
        return [float(max(-most, min(most, value))) for value in payload]

    return read


def _finite(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


_READERS = {
    "camera_actions": _actions,
    "prompt": _new_prompt,
    "look": _numbers("look", 2, 720),
    "stick": _numbers("stick", 4, 1),
    "pause": lambda _payload: None,
    "resume": lambda _payload: None,
    "back": lambda payload: _integer("back", {"back": payload}, 0) or 0,
    "restart": lambda payload: read_init({**(payload if isinstance(payload, dict) else {}), "type": "init"}),
    "event": lambda payload: _world_event(payload if isinstance(payload, dict) else {"name": payload}),
    "moving": lambda payload: _boolean("moving", payload) is True,
    "output": lambda payload: _output(payload if isinstance(payload, dict) else {}, "jpeg"),
}


def _output(message: dict[str, Any], otherwise: str) -> Output:
    name = message.get("realtime_output_format") or otherwise
    if name not in FORMATS:
        raise InputError(f"`realtime_output_format` {_quote(name)}: expected one of {', '.join(FORMATS)}")
    quality = _number("output_compression", message, 1, 100)
    width = _number("realtime_preview_max_width", message, 0, 8192)
    return Output(name, int(QUALITY[name] if quality is None else quality), int(width or 0))


def _quote(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:20])
    return str(value)[:20] if value is None or isinstance(value, (int, float)) else f"of type {type(value).__name__}"


def _size(text: Any) -> tuple[int, int] | None:
    """Return "WIDTHxHEIGHT" as (height, width), rounded down to multiples of 16; None for an empty text. Raise
    InputError for other texts."""
    if text in (None, ""):
        return None
    sides = SIDE.fullmatch(text.strip()) if isinstance(text, str) else None
    if sides is None:
        raise InputError(f"`size` {_quote(text)}: expected width x height, such as 832x480")
    width, height = (max(STEP, int(side) // STEP * STEP) for side in sides.groups())
    return height, width


def _number(name: str, message: dict[str, Any], least: float, most: float) -> float | None:
    value = message.get(name)
    if value is None:
        return None
    if not _finite(value) or not least <= value <= most:
        raise InputError(f"`{name}` {_quote(value)}: expected a number from {least} to {most}")
    return value


def _boolean(name: str, value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise InputError(f"`{name}` {_quote(value)}: expected true or false")


def _name(name: str, value: Any) -> str:
    if value is None or (isinstance(value, str) and len(value) <= 64):
        return value or ""
    raise InputError(f"`{name}` {_quote(value)}: expected the name of a walk, such as walk-1")


def _integer(name: str, message: dict[str, Any], least: int, most: int = LARGEST_EVENT) -> int | None:
    value = _number(name, message, least, most)
    if value is not None and value != int(value):
        raise InputError(f"`{name}` {value}: expected a whole number")
    return None if value is None else int(value)
