"""A slow chunk is dropped where a key has changed since it was begun, once, and nothing else changes."""

import pytest
import torch
from lingbot_world.live import walk as walks
from lingbot_world.pipeline.world import World
from live_cases import chunks, walking

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def forwards(monkeypatch):
    """The forwards of chunks, in order; `forwards.then` runs after each."""

    class Forwards(list):
        def then(self, _forward):
            pass

    noted, chunk = Forwards(), World.chunk

    def run(world, *given):
        tell = given[5]

        def both(forward):
            noted.append(forward)
            noted.then(forward)
            if tell is not None:
                tell(forward)

        return chunk(world, *given[:5], both)

    monkeypatch.setattr(World, "chunk", run)
    return noted


@pytest.mark.parametrize(("slow", "expected"), [(0.0, [0, 0, 1]), (1e9, [0, 1])])
def test_a_slow_chunk_is_dropped_after_its_first_forward_once(
    toy_package, tmp_path, monkeypatch, forwards, slow, expected
):
    monkeypatch.setattr(walks, "PREEMPT", slow)
    with walking(toy_package, tmp_path) as session:
        chunks(session, 2)
        forwards.clear()
        keys = iter("wasd")
        forwards.then = lambda _forward: session.press(next(keys))
        chunks(session, 1)
        assert forwards == expected
        assert session.walk.preempted == (not slow)
        taken = session.walk.store.poses()
    assert (taken[-1, 2, 3] > 0) == (not slow), "the key that came meanwhile moves the camera"


@pytest.mark.parametrize(("late", "expected"), [(1, [0, 1, 0, 1, 2, 3]), (2, [0, 1, 2, 3])])
def test_a_chunk_is_dropped_in_the_first_half_of_its_forwards(
    toy_package, tmp_path, monkeypatch, forwards, late, expected
):
    monkeypatch.setattr(walks, "PREEMPT", 0.0)
    with walking(toy_package, tmp_path, schedule="0,250,500,750") as session:
        chunks(session, 2)
        forwards.clear()
        forwards.then = lambda forward: session.press("d") if forward == late else None
        chunks(session, 1)
        assert forwards == expected
        assert session.walk.preempted == (late == 1)


def test_keys_that_are_held_and_the_mouse_drop_nothing(toy_package, tmp_path, monkeypatch, forwards):
    monkeypatch.setattr(walks, "PREEMPT", 0.0)
    with walking(toy_package, tmp_path) as session:
        session.press("w")
        chunks(session, 2)
        forwards.clear()
        forwards.then = lambda _forward: (session.hold(["w"]), session.look(1, 0))
        chunks(session, 2)
        assert forwards == [0, 1] * 2
        assert session.walk.preempted == 0


def test_a_dropped_chunk_leaves_the_frames_as_if_the_key_had_come_before(toy_package, tmp_path, monkeypatch, forwards):
    monkeypatch.setattr(walks, "PREEMPT", 0.0)
    made = []
    for late in (False, True):
        with walking(toy_package, tmp_path / str(late)) as session:
            session.press("w")
            chunks(session, 3)
            if late:
                forwards.then = lambda _forward: session.hold(["d"])
            else:
                session.hold(["d"])
            chunks(session, 3)
            forwards.then = lambda _forward: None
            assert session.walk.preempted == late
            made.append(session.state().latent)
    assert torch.equal(*made)
