"""A walk in which nobody does anything: what counts as an input, when the world stops, and when the walk ends."""

import pytest
from lingbot_world.headless.live import walk_server
from lingbot_world.live import Controls
from lingbot_world.live.wire.steering import TimeLimits, seconds_since_input
from live_cases import Server, chunks, walking

IDLE, GONE = 1000.0, 10_000.0
"""Seconds that no test waits for: `hush` moves the last input into the past."""
HELD = {"mode": "state", "transitions": [{"actions": ["w"]}]}
LET_GO = {"mode": "state", "transitions": [{"actions": []}]}


def hush(server, seconds):
    """The last input was so many seconds earlier."""
    server.server.visit.session.controls.last_input -= seconds


def hushed(server, client, wanted, seconds=2 * IDLE):
    """The message that is wanted, while nobody does anything for so many seconds."""

    def found(message):
        visit = server.server.visit
        if not wanted(message) and visit is not None and seconds_since_input(visit.session) < seconds:
            hush(server, seconds)
        return wanted(message)

    return client.until(found)


def paused(message):
    return message.get("content") == "paused"


def ended(message):
    return message["type"] == "error" and "the walk had no input" in message["content"]


def looked_at(client, times=2):
    """The server has looked at the walk so often: it tells figures each time."""
    for _ in range(times):
        client.until(lambda message: message["type"] == "status" and message["content"] == "figures")


def goes_on(server, client, rounds=4):
    """A walk of several times IDLE, in each chunk of which something is held."""
    for _ in range(rounds):
        hush(server, 0.6 * IDLE)
        client.chunk(client.batches[-1]["chunk_index"] + 2)  # one of them began after that
    assert not [message for message in client.told if paused(message) or message["type"] == "error"]


@pytest.fixture
def idle_server(toy_package, tmp_path, monkeypatch):
    monkeypatch.setattr(walk_server, "STATISTICS_SECONDS", 0.1)
    with Server(toy_package, tmp_path / "walks", limits=TimeLimits(idle=IDLE, gone=GONE)) as started:
        yield started


def quiet(controls, clock_to, frames=4):
    """When somebody was last there, after a chunk that is made then."""
    controls._clock = lambda: clock_to
    controls.take(frames)
    return clock_to - controls.last_input


@pytest.mark.parametrize(
    ("ask", "let_go"),
    [
        (lambda c: c.press("w"), lambda c: c.release("w")),
        (lambda c: c.stick(0, 0, 0.4, 0), lambda c: c.stick(0, 0, 0, 0)),
        (lambda c: c.script([["w"], [], ["w"]]), lambda c: None),
    ],
    ids=["a key", "a stick", "a script"],
)
def test_what_lasts_is_an_input_with_each_chunk_until_it_ends(ask, let_go):
    controls = Controls(lambda: 100.0)
    ask(controls)
    assert [quiet(controls, at) for at in (200.0, 300.0, 400.0)] == [0, 0, 0]
    let_go(controls)
    assert quiet(controls, 500.0) == 100


def test_what_has_the_walk_go_on_is_an_input_for_the_page_and_the_canvas_alike(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session:
        session.controls.last_input -= 1000
        session.pause()
        chunks(session, 1)
        assert seconds_since_input(session) > 1000
        session.resume()
        assert seconds_since_input(session) < 60
        session.controls.last_input -= 1000
        session.press("w")
        session.controls.last_input -= 1000
        chunks(session, 1)
        assert seconds_since_input(session) < 60


@pytest.mark.parametrize(
    ("kind", "held", "let_go"),
    [
        ("camera_actions", HELD, LET_GO),
        ("stick", [0, 0, 0.5, 0], [0, 0, 0, 0]),
        ("camera_actions", [["w"]] * 900, LET_GO),
    ],
    ids=["a key", "a stick", "a script"],
)
def test_a_walk_goes_on_while_something_is_held(idle_server, kind, held, let_go):
    client = idle_server.client(lingbot_world=True)
    client.chunk()
    client.event(kind, held)
    client.chunk(client.batches[-1]["chunk_index"] + 3)
    goes_on(idle_server, client)
    client.event(kind, let_go)
    hushed(idle_server, client, paused)
    client.close()


@pytest.mark.parametrize(
    ("kind", "payload", "let_go"), [("resume", None, None), ("prompt", "a sea", None), ("camera_actions", HELD, LET_GO)]
)
def test_a_world_that_has_stopped_goes_on_for_as_long_again(idle_server, kind, payload, let_go):
    client = idle_server.client(lingbot_world=True)
    client.chunk()
    hushed(idle_server, client, paused)
    client.event(kind, payload)
    client.status("resumed")
    assert seconds_since_input(idle_server.server.visit.session) < IDLE / 2
    if let_go is not None:
        client.event(kind, let_go)
    hushed(idle_server, client, paused)
    client.close()


def test_who_comes_back_is_no_longer_idle(idle_server):
    client = idle_server.client(lingbot_world=True)
    token = client.status("started")["resume"]
    client.chunk()
    hushed(idle_server, client, paused)
    client.tear()
    again = idle_server.client(lingbot_world=True, resume=token)
    again.status("resumed")
    waiting = idle_server.client(lingbot_world=True)
    waiting.status("waiting")
    looked_at(again)
    assert not [message for message in again.told if message["type"] == "error"]
    hushed(idle_server, again, ended)
    waiting.close()


def test_a_walk_in_which_nobody_is_ends(idle_server, tmp_path):
    """It stops first; the walk is kept."""
    client = idle_server.client(lingbot_world=True)
    client.chunk()
    hush(idle_server, 2 * IDLE)
    client.status("paused")
    looked_at(client)
    assert not [message for message in client.told if message["type"] == "error"]
    hushed(idle_server, client, ended, GONE)
    with pytest.raises(ConnectionError):
        client.until(lambda message: False)
    assert next((tmp_path / "walks").glob("*/walk.state")).is_file()


def test_who_has_paused_makes_room_for_who_waits_too(idle_server):
    first = idle_server.client(lingbot_world=True)
    first.chunk()
    first.event("pause")
    second = idle_server.client(lingbot_world=True)
    hushed(idle_server, first, ended)
    second.chunk()
    second.close()


def test_who_does_nothing_makes_room_for_who_waits(idle_server):
    """Not for somebody who comes while keys are held."""
    first = idle_server.client(lingbot_world=True)
    first.event("camera_actions", HELD)
    first.chunk(4)
    second = idle_server.client(lingbot_world=True)
    second.status("waiting")
    goes_on(idle_server, first)
    first.event("camera_actions", LET_GO)
    hushed(idle_server, first, ended)
    second.status("started")
    second.chunk()
    second.close()


def test_a_program_that_waits_for_no_line_takes_the_place_of_who_does_nothing(idle_server):
    first = idle_server.client(lingbot_world=True)
    hushed(idle_server, first, paused)
    program = idle_server.client()
    first.until(ended)
    program.chunk()
    program.close()
