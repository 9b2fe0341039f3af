"""A world in which nobody does anything waits as a still picture, and goes on at once."""

import threading

import numpy as np
import pytest
from lingbot_world.live import Session
from lingbot_world.live.controls import Controls
from lingbot_world.live.pace import Pace
from live_cases import Server, chunks, opened, wait_for, walking

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def standing(toy_package, tmp_path):
    """A session whose thread has made the picture, its frames, and what it told."""
    loaded, made, told = opened(toy_package), [], []
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=60) as session:
        session.start(made.append, lambda *what: told.append(what))
        wait_for(lambda: told == [("still", {"still": True})])
        yield session, made, told


def test_without_an_input_the_picture_is_all_that_is_made(standing):
    session, made, _ = standing
    looked = threading.Event()
    assert not looked.wait(0.5)
    assert [each.first for each in made] == [0]
    assert session.still
    assert session.pace.stalls == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda session: session.press("w"),
        lambda session: session.look(20, 0),
        lambda session: session.stick(0, 0, 0.5, 0),
        lambda session: session.script([["w"]] * 3),
        lambda session: session.prompt("a sea"),
        lambda session: session.back(0),
        lambda session: setattr(session, "moving", True) or session.resume() or session._wake(),
    ],
    ids=["key", "mouse", "stick", "script", "prompt", "back", "moving"],
)
def test_an_input_has_the_world_go_on(standing, ask):
    session, made, told = standing
    ask(session)
    wait_for(lambda: len(made) > 1)
    assert ("still", {"still": False}) in told


def test_a_key_that_comes_up_ends_it_when_the_camera_stands(standing):
    session, made, told = standing
    session.press("w")
    wait_for(lambda: len(made) > 3)
    session.release("w")
    wait_for(lambda: told[-1] == ("still", {"still": True}))
    poses = session.walk.store.poses()
    assert np.array_equal(poses[-1], poses[-2])
    assert poses[-1, 2, 3] > 0


def test_shift_alone_is_no_input(standing):
    session, made, _ = standing
    session.press("shift")
    assert session.still
    assert len(made) == 1


def test_a_program_that_asks_for_frames_gets_them(toy_package, tmp_path):
    loaded = opened(toy_package)
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0) as session:
        assert not session.still
        assert len(chunks(session, 3)) == 3
        assert session.still


def test_a_world_that_moves_by_itself_is_made_half_as_fast_where_nobody_is(toy_package, tmp_path):
    now = [100.0]
    pace = Pace(16, lambda: now[0])
    pace.record_delivery(16)
    before = pace.seconds_to_wait()
    pace.half_rate = True
    assert pace.seconds_to_wait() == pytest.approx(before + 0.25)
    now[0] += 2
    pace.record_delivery(4)
    assert pace.stalls == 0
    with walking(toy_package, tmp_path) as session:
        chunks(session, 2)
        session.controls.last_input -= 1000
        session.moving = True
        assert not session._update_still()
        assert session.pace.half_rate
        session.press("w")
        session._update_still()
        assert not session.pace.half_rate


def test_our_page_sees_a_still_picture_and_another_client_frames(toy_package, tmp_path):
    with Server(toy_package, tmp_path / "walks") as server:
        client = server.client(lingbot_world=True, lingbot_moving=False)
        started = client.status("started")
        assert (started["moving"], started["speed"], started["preview"]) == (False, 0.5, False)
        assert started["seed"] == server.server.visit.session.walk.seed
        assert client.status("still")["still"] is True
        assert client.status("figures")["still"] is True
        assert len(client.frames) == 1
        client.event("camera_actions", {"mode": "state", "transitions": [{"actions": ["w", "shift"]}]}, 7)
        client.until(lambda message: message.get("event_id") == 7)
        batch = next(each for each in client.batches if each.get("event_id") == 7)
        assert batch["waited_ms"] >= 0
        assert batch["made_ms"] > 0
        client.event("moving", True)
        client.event("camera_actions", {"mode": "state", "transitions": [{"actions": []}]}, 8)
        client.chunk(client.batches[-1]["chunk_index"] + 8)
        client.close()
        other = server.client()
        other.chunk(4)
        other.close()


def test_a_client_of_sglangs_gets_frames_whatever_it_holds(toy_package, tmp_path):
    """It sends the plain protocol, and knows nothing of a world that waits."""
    with Server(toy_package, tmp_path / "walks") as server:
        client = server.client(prompt="a castle")
        for keys in ([], ["w"], []):
            client.event("camera_actions", {"mode": "state", "transitions": [{"actions": keys}]}, 1)
            client.chunk(client.batches[-1]["chunk_index"] + 4 if client.batches else 4)
        assert {message["type"] for message in client.told} == {"chunk_stats"}
        assert len(client.frames) == len(client.batches)
        client.close()


def test_inputs_of_a_chunk_that_is_dropped_are_taken_again():
    now = [100.0]
    controls = Controls(lambda: now[0])
    now[0] = 100.1
    controls.press("a")
    controls.look(5, 1)
    now[0] = 100.2
    first = controls.take(4)
    assert first.waited == pytest.approx(0.1)
    controls.release("a")
    controls.press("w")
    controls.look(1, 0)
    now[0] = 100.4
    controls.restore()
    again = controls.take(4)
    assert again.look == (6, 1)
    assert again.axes[:, 0].tolist() == [1, 1, 1, 1]
    assert again.axes[:, 1].tolist() == [0, -1, -1, 0] or again.axes[:, 1].any()
    assert again.waited == pytest.approx(0.3)
    controls.restore()
    controls.script([["w"], ["s"]])
    controls.take(4)
    controls.restore()
    assert controls.take(8).axes[:, 0].tolist() == [1] * 4 + [-1] * 4


def test_running_is_twice_as_fast_up_to_the_longest_step():
    controls = Controls()
    controls.hold(["w", "d", "shift"])
    assert controls.take(1).axes.tolist() == [[2, 2, 0, 0]]
