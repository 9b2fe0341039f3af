"""Events of a world: sentences that extend its prompt, by name, by key and by time."""

import json

import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.live import Session, load_walk
from lingbot_world.text.events import Events, read_events
from live_cases import Server, chunks, opened

pytestmark = pytest.mark.usefixtures("one_thread")
EVENTS = [
    {"name": "rain", "text": "It begins to rain.", "key": 1},
    {"name": "dog", "text": "A dog crosses.", "key": "2"},
    {"name": "night", "text": "Night falls.", "start": 0.5, "end": 1},
]


def begun(package, folder, events=EVENTS, **changes):
    loaded = opened(package, **changes)
    return Session(loaded.engine(), loaded.start, folder=folder, fps=0, moving=True, events=events)


def prompts(walk):
    return [(row["text"], row["first"]) for row in json.loads((walk / "walk.json").read_text())["prompts"]]


def test_events_by_name_key_and_time_are_kept_and_replayed(toy_package, tmp_path):
    with begun(toy_package, tmp_path / "walks") as session:
        session.press("w")
        frames = chunks(session, 1)
        session.event("1")
        frames += chunks(session, 2)  # night is due at 0.5 s, which chunk 2 begins at
        session.event("rain", False)
        frames += chunks(session, 2)
        session.prompt("a sea")
        frames += chunks(session, 1)
        folder, state = session.walk.store.folder, session.state()
    assert prompts(folder) == [
        ("a castle", 0),
        ("a castle. It begins to rain.", 1),
        ("a castle. It begins to rain. Night falls.", 2),
        ("a castle. Night falls.", 3),
        ("a castle", 4),
        ("a sea", 5),
    ]
    with Session.replay(opened(toy_package).engine(), folder, folder=tmp_path / "again", fps=0) as again:
        made = [part.pixels for part in again]
        assert torch.equal(again.state().latent, state.latent)
    assert np.array_equal(np.concatenate(made), np.concatenate([part.pixels for part in frames]))
    head = json.loads((tmp_path / "again/walk-1/walk.json").read_text())
    assert [event["name"] for event in head["events"]] == ["rain", "dog", "night"]


def test_an_event_is_what_its_prompt_is(toy_package, tmp_path):
    latents = []
    for change in (lambda walk: walk.event("rain"), lambda walk: walk.prompt("a castle. It begins to rain.")):
        with begun(toy_package, None, EVENTS[:2]) as session:
            change(session)
            chunks(session, 2)
            latents.append(session.state().latent)
    assert torch.equal(*latents)


def test_a_step_back_undoes_events_and_a_state_goes_on_with_them(toy_package, tmp_path):
    with begun(toy_package, tmp_path) as session:
        chunks(session, 1)
        session.event("dog")
        chunks(session, 2)
        assert session.events.active == {"dog", "night"}
        session.back(1)
        chunks(session, 1)
        assert session.events.active == set()
        session.event("dog")
        chunks(session, 1)
        folder = session.walk.store.folder
    assert prompts(folder)[-1][0] == "a castle. A dog crosses. Night falls."
    with Session(opened(toy_package).engine(), load_walk(folder), events=EVENTS, fps=0) as session:
        assert session.events.active == {"dog", "night"}
        chunks(session, 1)
        assert session.events.active == {"dog"}, "its own time, in the new walk, has not come"
        session.restart(opened(toy_package).start)
        chunks(session, 1)
        assert session.events.active == set()


def test_a_prompt_that_cannot_be_encoded_begins_no_event(toy_package, tmp_path, monkeypatch):
    with begun(toy_package, tmp_path, EVENTS[:1]) as session:
        fails = lambda _text: (_ for _ in ()).throw(RuntimeError("out of memory"))  # noqa: E731
        object.__setattr__(session.engine, "encode_prompt", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            session.event("rain")
        assert session.events.active == set()


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([{"name": "a", "text": "x", "start": -1}], "`start` is -1"),
        ([{"name": "a", "text": "x", "end": 2, "start": 2}], "later end"),
        ([{"name": "a", "text": "x", "start": float("nan")}], "`start` is nan"),
        ([{"name": "a", "text": "x", "key": 1}, {"name": "b", "text": "y", "key": "1"}], "two events have the key '1'"),
        ([{"name": "a", "text": "x"}, {"name": "a", "text": "y"}], "two events have the name 'a'"),
        ([{"name": "a", "text": "x", "key": 0}], "`key` is 0"),
        ([{"name": "a", "text": " "}], "`text` is ' '"),
        ([{"name": "a"}], "`text` is None"),
        ([{"text": 5}], "`text` is 5"),
        ([{"name": "a", "text": "x", "keys": 1}], "has 'keys'; expected an object of"),
        ([{"text": "x", "second": 1, "start": 1}], "has 'second' next to `start`"),
        ([{"text": "x", "start": 10**400}], "expected seconds of the walk, from 0 to 1e"),
        ([{"text": "x"}, {"name": "b", "text": "x"}], "two events have the text 'x'"),
        (
            [{"name": "1", "text": "x"}, {"name": "b", "text": "y", "key": 1}],
            "'1' is an event's name and another's key",
        ),
        ({"rain": {"text": "x", "start": 1}}, "expected a list of events, or sentences by name"),
        ({"text": "x", "start": 1}, "expected a list of events, or sentences by name"),
        ([{"name": "a", "text": "\ud800"}], "`text` is not UTF-8 text"),
        (["rain"], "event 0 is 'rain'"),
        (3, "expected a list of events"),
        (b"rain", "expected a list of events"),
        ("a\0b", "a name with a NUL character"),
    ],
)
def test_what_is_no_event_is_refused_in_a_sentence(events, told):
    with pytest.raises(InputError, match=told):
        read_events(events)


def test_files_of_events(tmp_path):
    file = tmp_path / "events.json"
    for text in (json.dumps(EVENTS), "\ufeff" + json.dumps(EVENTS)):
        file.write_text(text, encoding="utf-8")
        assert [event.key for event in read_events(file)] == ["1", "2", None]
    assert read_events({"rain": "It rains."})[0].text == "It rains."
    assert read_events(Events(read_events(file)).as_dicts()) == read_events(file)
    for data, told in (
        (b"rain", "not JSON"),
        (b'"rain"', "found 'rain'; expected a list of events"),
        ('[{"text": "é"}]'.encode("latin-1"), "not UTF-8 text"),
    ):
        file.write_bytes(data)
        with pytest.raises(InputError, match=told):
            read_events(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_events(tmp_path / "none.json")


def test_a_client_begins_and_ends_an_event(toy_package, tmp_path):
    server = Server(toy_package, tmp_path)
    before = server.loaded.settings
    server.loaded.settings = type(before)(events=read_events(EVENTS[:2]))
    try:
        with server:
            client = server.client(lingbot_world=True)
            started = client.status("started")
            assert [event["name"] for event in started["events"]] == ["rain", "dog"]
            client.event("event", "1")
            assert client.status("prompt")["events"] == ["rain"]
            client.event("event", {"name": "rain", "on": False})
            assert client.status("prompt")["text"] == "a castle"
            client.event("event", "snow")
            assert "no event 'snow'" in client.error()
            client.event("event", {"on": 3})
            assert "`name` is None" in client.error()
            client.close()
    finally:
        server.loaded.settings = before
