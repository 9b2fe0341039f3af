"""Messages with something wrong in them: each is read or refused with a sentence, and a walk goes on."""

import json
import os
import random
import time
import tracemalloc
from contextlib import nullcontext
from copy import deepcopy

import msgpack
import pytest
from lingbot_world.errors import InputError
from lingbot_world.live.wire.codec import JSON, MSGPACK, unpack
from lingbot_world.live.wire.connection import BURST, MESSAGES_PER_SECOND
from lingbot_world.live.wire.protocol import read_client_events, read_init
from live_cases import Server

COUNT = int(os.environ.get("LINGBOT_MESSAGES", 600))
VALID = [
    {
        "type": "init",
        "prompt": "a",
        "first_frame": b"12",
        "size": "48x32",
        "fps": 16,
        "seed": 3,
        "max_chunks": 2,
        "realtime_output_format": "jpeg",
        "condition_inputs": {"camera_actions": [["w"], []]},
    },
    {"type": "event", "kind": "camera_actions", "payload": [["w", "j"]], "event_id": 4},
    {
        "type": "event",
        "kind": "camera_actions",
        "event_id": 4,
        "payload": {"mode": "state", "transitions": [{"actions": ["w"], "client_ts_ms": 1}]},
    },
    {"type": "event", "kind": "prompt", "payload": "a sea", "event_id": 9},
    {"type": "event", "kind": "composite_input", "payload": {"input_types": ["prompt"], "prompt": "x"}},
    {"type": "event", "kind": "look", "payload": [1.5, -2.0]},
    {"type": "event", "kind": "stick", "payload": [0, 1, 0, 0]},
    {"type": "event", "kind": "back", "payload": 3},
    {"type": "event", "kind": "output", "payload": {}},
    {"type": "event", "kind": "restart", "payload": {"prompt": "b"}},
]


def nested(depth):
    """A list in a list in a list."""
    inner = []
    for _ in range(depth):
        inner = [inner]
    return inner


STRANGE = [None, True, -1, 2**63, 1e308, float("nan"), float("inf"), "", "x" * 300, b"\xff", [], {}, [[[]]], ["w"] * 99]
STRANGE += [{"a": {}}, "../..", "\x00", nested(400)]
"""Values that no message should have."""
ONLY_JSON = [10**400, -(10**4299), "\ud800"]
"""Those that msgpack cannot write."""


def changed(chance, strange):
    """A message with other values, of other types, in one to three places."""
    message = json.loads(json.dumps(chance.choice(VALID), default=lambda value: value.decode()))
    for _ in range(chance.randint(1, 3)):
        place = message
        while isinstance(place, (dict, list)) and place and chance.random() < 0.7:
            key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], (dict, list)) or chance.random() < 0.3:
                place[key] = deepcopy(chance.choice(strange))
            place = place[key]
    return message


def broken(chance, data):
    """Bytes of a message, now and then with others in their place, or without its end."""
    data = bytearray(data)
    for _ in range(chance.choice((0, 0, 1, 5))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randint(1, len(data))] if chance.random() < 0.2 else data)


def mutated(chance):
    """What a client of SGLang's protocol may send that has something wrong in it."""
    return broken(chance, msgpack.packb(changed(chance, STRANGE)))


def mutated_text(chance):
    """The same of a client of the canvas: JSON, in a text."""
    text = json.dumps(changed(chance, STRANGE + ONLY_JSON), default=lambda value: value.decode("latin1"))
    return broken(chance, text.encode()).decode("latin1")


def understood(codec, data):
    """What a message asks for. Raises InputError, as the server's own reading does."""
    message = codec.read(data)
    return (read_init if message.get("type") == "init" else read_client_events)(message)


@pytest.mark.parametrize(("codec", "make"), [(MSGPACK, mutated), (JSON, mutated_text)])
def test_mutated_messages_are_read_or_refused_with_a_sentence(codec, make):
    """None of them, of some kilobytes, has half a megabyte allocated."""
    chance, read, refused, most = random.Random(5), 0, [], 0
    tracemalloc.start()
    try:
        for _ in range(COUNT):
            data = make(chance)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                understood(codec, data)
                read += 1
            except InputError as error:
                refused.append(str(error))
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert read > COUNT / 25
    assert len(refused) > COUNT / 10
    assert 0 < min(map(len, refused)) <= max(map(len, refused)) < 400
    assert most < 500_000


HUGE = "1" + 400 * "0"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('{"type": "event", "kind": "look", "payload": [%s, 0]}', None),
        ('{"type": "event", "kind": "stick", "payload": [-%s, 0, 0, 0]}', None),
        ('{"type": "event", "kind": "back", "payload": %s}', "expected a number"),
        ('{"type": "init", "seed": %s}', "`seed` 100000"),
        ('{"type": "init", "fps": -%s}', "`fps` -100000"),
    ],
)
def test_a_whole_number_of_four_hundred_digits_is_clipped_or_refused(message, said):
    if said is None:
        assert set(map(abs, understood(JSON, message % HUGE)[0].payload)) <= {720.0, 1.0, 0.0}
        return
    with pytest.raises(InputError, match=said):
        understood(JSON, message % HUGE)


@pytest.mark.parametrize(("kind", "count"), [("look", 2), ("stick", 4)])
def test_numbers_that_are_none_are_said_of_which_event(kind, count):
    with pytest.raises(InputError, match=f"^`{kind}`: expected {count} finite numbers$"):
        understood(JSON, json.dumps({"type": "event", "kind": kind, "payload": ["1"]}))


@pytest.mark.parametrize("key", ["resume", "size", "fps", "realtime_output_format", "kind"])
def test_what_is_nested_a_thousand_times_is_named_by_its_type(key):
    """As deep as msgpack reads it, which is deeper than Python writes it."""
    kind = "event" if key == "kind" else "init"
    data = msgpack.packb({"type": kind, key: 0})[:-1] + b"\x91" * 1000 + b"\x90"
    with pytest.raises(InputError, match="list") if key != "resume" else nullcontext():
        understood(MSGPACK, data)


def test_sixteen_megabytes_in_the_wrong_place_are_not_written_out():
    data = msgpack.packb({"type": "init", "size": bytes(15 << 20)})
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="`size` of type bytes"):
            understood(MSGPACK, data)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data", [b"", b"\xdf\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff"]
)
def test_a_message_that_announces_too_much_allocates_nothing(data):
    with pytest.raises(InputError, match="not a message"):
        unpack(data)


@pytest.mark.slow
def test_a_walk_goes_on_under_mutated_messages_as_fast_as_they_are_read(toy_package, tmp_path):
    with Server(toy_package, tmp_path / "walks") as server:
        chance, client, sent, began = random.Random(1), server.client(), 0, time.monotonic()
        client.chunk()
        while sent < BURST + MESSAGES_PER_SECOND:
            if sent < BURST + MESSAGES_PER_SECOND * (time.monotonic() - began):
                client.socket.send_binary(mutated(chance))
                sent += 1
            else:
                time.sleep(0.05)
        client.event("camera_actions", [["w"]], event_id=99_999)
        client.until(lambda message: message.get("event_id") == 99_999)
        client.close()
