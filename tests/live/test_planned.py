"""What a walk is told that is not as its model's release."""

from dataclasses import replace
from types import SimpleNamespace

from lingbot_world.live.planned import off_release_notes
from lingbot_world.options import RELEASES, Window

RELEASE = RELEASES["v2-1.3b"]


def notes(chunk=4, window=18, sink=6, steps=4, release=RELEASE):
    spec = SimpleNamespace(chunk=chunk, window=Window(window, sink), schedule=SimpleNamespace(timesteps=(1,) * steps))
    return off_release_notes(release, spec)


def test_the_release_as_it_is_has_no_note():
    assert notes() == ()
    assert notes(window=24) == ()


def test_each_setting_has_a_note_with_what_people_saw():
    said = notes(chunk=1, window=12, sink=2, steps=3)
    assert [note.split(":")[0] for note in said] == ["Chunks of 1", "Window 12", "Sink 2", "3 steps"]
    assert all("LingBot-World 2.0 1.3B was made for" in note for note in said)


def test_a_release_without_a_window_has_none():
    assert notes(chunk=1, release=replace(RELEASE, window=Window())) == ()
