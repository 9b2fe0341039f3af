"""Whether a world dissolves while it is walked in."""

import numpy as np
import pytest
import torch
from lingbot_world.live.worlds.drift import HINT, LASTS, REFERENCE_FRAMES, DriftWatch
from live_cases import chunks, walking

pytestmark = pytest.mark.usefixtures("one_thread")
CHANCE = np.random.default_rng(0)
SHARP = CHANCE.integers(0, 256, (72, 128, 3), dtype=np.uint8)
BLURRED = np.full_like(SHARP, 110) + (SHARP // 64)
LATENT = torch.randn(1, 16, 1, 9, 16, generator=torch.Generator().manual_seed(0))


def seen(*pictures, chunk=1):
    watch = DriftWatch(chunk)
    return watch, [watch.add_chunk(LATENT, picture) for picture in pictures]


def test_a_world_that_stays_as_it_is_has_shares_of_one():
    watch, found = seen(*[SHARP] * REFERENCE_FRAMES)
    assert watch.ratios is None
    watch, found = seen(*[SHARP] * 60)
    assert not any(found)
    assert watch.ratios == pytest.approx({"mean": 0, "spread": 1, "sharpness": 1, "colour": 1})


def test_a_world_that_dissolves_is_told_once_when_it_lasts():
    _, found = seen(*[SHARP] * REFERENCE_FRAMES, *[BLURRED] * (LASTS + 5))
    assert found.index(True) == REFERENCE_FRAMES + LASTS - 1
    assert sum(found) == 1
    _, found = seen(*[SHARP] * REFERENCE_FRAMES, *[*[BLURRED] * (LASTS - 1), SHARP] * 3)
    assert not any(found)


def test_a_darker_place_alone_is_no_drift():
    _, found = seen(*[SHARP] * REFERENCE_FRAMES, *[SHARP // 4 * 3] * 40)
    assert not any(found)


FINE = 16 + SHARP // 4 * 3
COARSE = np.repeat(np.repeat(FINE[::4, ::4], 4, 0), 4, 1)
RED, LIGHT = np.array([20, 0, 0], np.uint8), np.uint8(20)


@pytest.mark.parametrize(
    ("first", "later", "drifts"),
    [
        (FINE, FINE + RED + LIGHT, False),
        (COARSE, FINE, False),
        (COARSE, FINE + RED, True),
        (FINE, SHARP // 4 + RED + LIGHT, True),
    ],
    ids=["another room", "finer stones", "shards", "pale, tinted and dark"],
)
def test_another_colour_is_a_drift_with_another_sharpness_or_paleness(first, later, drifts):
    _, found = seen(*[first] * REFERENCE_FRAMES, *[later] * (LASTS + 2))
    assert any(found) is drifts


@pytest.mark.parametrize("again", [False, True])
def test_who_walks_is_told_and_the_world_begins_anew_where_that_is_asked_for(toy_package, tmp_path, monkeypatch, again):
    monkeypatch.setattr(DriftWatch, "add_chunk", lambda _watch, _latent, _pixels: session.walk.chunks == 3)
    told = []
    with walking(toy_package, tmp_path) as session:
        session.restart_on_drift = again
        session._notify = lambda *what: told.append(what)
        chunks(session, 4)
        assert ("drift", {"reason": HINT}) in told
        assert session.walk.store.folder.name == ("walk-2" if again else "walk-1")
