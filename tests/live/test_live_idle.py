"""A walk in which nobody does anything: what counts as an input, when the world stops, and when the walk ends."""

import time

import pytest
from lingbot_world.live import Controls
from lingbot_world.live.wire.steering import Rules, quiet_since
from live_cases import Server, chunks, walking

IDLE = 1.2
"""Seconds: longer than from one look of the room to the next."""
HELD = {"mode": "state", "transitions": [{"actions": ["w"]}]}
LET_GO = {"mode": "state", "transitions": [{"actions": []}]}


@pytest.fixture
def idle_server(toy_package, tmp_path):
    with Server(toy_package, tmp_path / "walks", rules=Rules(idle=IDLE)) as started:
        yield started


def quiet(controls, clock_to, frames=4):
    """When somebody was last there, after a chunk that is made then."""
    controls._clock = lambda: clock_to
    controls.take(frames)
    return clock_to - controls.heard


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
        session.controls.heard -= 1000
        session.pause()
        chunks(session, 1)
        assert quiet_since(session) > 1000
        session.resume()
        assert quiet_since(session) < 60
        session.controls.heard -= 1000
        session.press("w")
        session.controls.heard -= 1000
        chunks(session, 1)
        assert quiet_since(session) < 60


@pytest.mark.parametrize(
    ("kind", "held", "let_go"),
    [
        ("camera_actions", HELD, LET_GO),
        ("stick", [0, 0, 0.5, 0], [0, 0, 0, 0]),
        ("camera_actions", [["w"]] * 40, None),  # of 15 a second
    ],
    ids=["a key", "a stick", "a script"],
)
def test_a_walk_goes_on_while_something_is_held(idle_server, kind, held, let_go):
    client = idle_server.client(lingbot_world=True)
    client.chunk()
    client.event(kind, held)
    ends = time.monotonic() + 2.6
    while time.monotonic() < ends:
        assert client.receive().get("content") != "paused"
    if let_go is not None:
        client.event(kind, let_go)
    let_go_at = time.monotonic()
    client.status("paused")
    assert time.monotonic() - let_go_at > IDLE - 0.5
    client.close()


@pytest.mark.parametrize(("kind", "payload"), [("resume", None), ("prompt", "a sea")])
def test_a_world_that_has_stopped_goes_on_for_as_long_again(idle_server, kind, payload):
    client = idle_server.client(lingbot_world=True)
    client.status("paused")
    client.event(kind, payload)
    client.status("resumed")
    began = time.monotonic()
    client.status("paused")
    assert time.monotonic() - began > IDLE - 0.1
    client.close()


def test_who_comes_back_is_no_longer_idle(idle_server):
    client = idle_server.client(lingbot_world=True)
    token = client.status("started")["resume"]
    client.status("paused")
    client.tear()
    again = idle_server.client(lingbot_world=True, resume=token)
    again.status("resumed")
    began = time.monotonic()
    waiting = idle_server.client(lingbot_world=True)
    assert "nobody has walked here" in again.error()
    assert time.monotonic() - began > IDLE - 0.1
    waiting.close()


def test_a_walk_in_which_nobody_is_ends(toy_package, tmp_path):
    """It stops first; what was walked is kept."""
    with Server(toy_package, tmp_path, rules=Rules(idle=0.3, gone=2.2)) as server:
        client = server.client(lingbot_world=True)
        client.chunk()
        began = time.monotonic()
        client.status("paused")
        assert "nobody has walked here" in client.error()
        assert 1 < time.monotonic() - began < 20
        with pytest.raises(ConnectionError):
            client.until(lambda message: False)
        assert next(tmp_path.glob("*/walk.state")).is_file()


def test_who_has_paused_makes_room_for_who_waits_too(toy_package, tmp_path):
    with Server(toy_package, tmp_path, rules=Rules(idle=1.5)) as server:
        first = server.client(lingbot_world=True)
        first.chunk()
        first.event("pause")
        second = server.client(lingbot_world=True)
        assert "nobody has walked here" in first.error()
        second.chunk()
        second.close()


def test_who_does_nothing_makes_room_for_who_waits(toy_package, tmp_path):
    """Not for somebody who comes while keys are held."""
    with Server(toy_package, tmp_path, rules=Rules(idle=0.3)) as server:
        first = server.client(lingbot_world=True)
        first.event("camera_actions", HELD)
        first.chunk(20)
        second = server.client(lingbot_world=True)
        second.status("waiting")
        first.chunk(first.batches[-1]["chunk_index"] + 30)
        assert not [message for message in first.told if message["type"] == "error"]
        first.event("camera_actions", LET_GO)
        assert "nobody has walked here" in first.error()
        second.status("started")
        second.chunk()
        second.close()
