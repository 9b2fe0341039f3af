"""Steps whose frames no longer move are reported, and end where that is asked for."""

import numpy as np
import pytest
import torch
from lingbot_world.live import Session
from lingbot_world.live.camera import WALKING_UNIT
from lingbot_world.live.shown.frames import Frames
from lingbot_world.live.worlds.stuck import LASTS, WARM_UP, StuckWatch
from live_cases import chunks, opened

pytestmark = pytest.mark.usefixtures("one_thread")
NOISE = np.random.default_rng(0).integers(0, 256, (72, 512, 3), dtype=np.uint8)
SMOOTH = np.asarray(NOISE.reshape(72, 64, 8, 3).mean(2).repeat(8, 1), dtype=np.uint8)


def seen(watch, frames, *, step=0.5, turn=0.0, moving=True, begin=0):
    """What a watch says of frames that a camera walks past, or that stand still while the camera moves on."""
    found = []
    for number in range(begin, begin + frames):
        at = round(12 * step * (number if moving else begin))
        angle = np.radians(turn * number)
        rotation = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
        found.append(watch.add_chunk(SMOOTH[:, at : at + 128], np.array([0, 0, step * number]), rotation))
    return found


def test_steps_before_a_wall_are_found_once():
    watch = StuckWatch(1)
    assert not any(seen(watch, 20))
    found = seen(watch, 2 * LASTS, moving=False, begin=20)
    assert found.count(True) == 1
    assert found.index(True) <= LASTS
    assert not any(seen(watch, 5, begin=40))


@pytest.mark.parametrize(
    ("way", "later"),
    [({}, {"turn": 2.0, "moving": False}), ({}, {"step": 0.0, "moving": False}), ({"step": 1.0}, {"step": 0.25})],
    ids=["a turn", "standing", "a slower walk"],
)
def test_other_ways_are_not_stuck(way, later):
    watch = StuckWatch(1)
    assert not any(seen(watch, WARM_UP + 2, **way) + seen(watch, 20, begin=20, **later))


@pytest.mark.parametrize("stops", [True, False])
def test_a_stuck_walk_stops_until_another_key_and_is_replayed(toy_package, tmp_path, monkeypatch, stops):
    loaded, told = opened(toy_package), []
    once = lambda _watch, _pixels, position, _rotation: position[2] > 2 and "stuck" not in told  # noqa: E731
    monkeypatch.setattr(StuckWatch, "add_chunk", once)
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0) as session:
        session.stop_when_stuck, session._notify = stops, lambda kind, facts: told.append(kind)
        session.hold(["w", "shift"])
        chunks(session, 7)
        at = session.walk.store.poses()[-1, 2, 3] / WALKING_UNIT
        assert (at < 4) == stops
        assert session.still == stops
        session.hold(["s", "shift"])
        chunks(session, 4)
        assert session.walk.store.poses()[-1, 2, 3] / WALKING_UNIT < at - 1
        folder, latent = session.walk.store.folder, session.state().latent
    assert told.count("stuck") == 1
    with Session.replay(loaded.engine(), folder, folder=tmp_path / "again", fps=0) as session:
        assert all(isinstance(each, Frames) for each in session)
        assert torch.equal(session.state().latent, latent)
