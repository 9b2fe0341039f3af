"""Receipts: each input is named once, with its number and the latent frame that it took effect in."""

import json
import time

import numpy as np
import pytest
from lingbot_world.live import Controls, Session
from live_cases import Server, chunks, opened, walking

pytestmark = pytest.mark.usefixtures("one_thread")
EVENTS = [
    {"name": "rain", "text": "It begins to rain.", "key": 1},
    {"name": "night", "text": "Night falls.", "start": 1},
]


def named(frames):
    return [(each.kind, each.event, each.latent_frame) for part in frames for each in part.inputs]


def test_each_input_is_named_once_with_its_latent_frame(toy_package, tmp_path):
    loaded = opened(toy_package)
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0, moving=True, events=EVENTS) as session:
        before = time.monotonic()
        session.press("w", 1)
        session.prompt("a hill", event=0)
        first = chunks(session, 1)
        assert named(first) == [("prompt", 0, 0)], "the camera moves after the first latent frame"
        second = chunks(session, 1)
        assert named(second) == [("hold", 1, 1)]
        receipt = second[0].inputs[0]
        assert before <= receipt.arrived <= time.monotonic()
        assert 0 <= receipt.waited <= time.monotonic() - before
        assert named(chunks(session, 1)) == [], "a key that is still held is not named again"
        session.look(3.0, 0.0, event=2)
        session.prompt("a sea", event=3)
        session.event("rain", event=4)
        assert named(chunks(session, 1)) == [("look", 2, 3), ("prompt", 3, 3), ("event", 4, 3)]
        assert named(chunks(session, 1)) == [("time", None, 4)]  # night, at one second
        session.back(2, event=5)
        session.release("w")
        assert named(chunks(session, 1)) == [("back", 5, 2), ("hold", None, 2)]
        folder = session.walk.store.folder
    rows = json.loads((folder / "walk.json").read_text())["inputs"]
    assert [row["latent_frame"] for row in rows if row.get("event") == 1] == [1], "as in the walk's folder"


def test_a_chunk_of_several_latent_frames_names_an_input_with_the_frames_that_have_it(toy_package, tmp_path):
    with walking(toy_package, tmp_path, chunk=3) as session:
        session.press("w", 1)
        first = chunks(session, 1)
        assert [named([part]) for part in first] == [[], [("hold", 1, 1)]]
        session.release("w", 2)
        assert named(chunks(session, 1)) == [("hold", 2, 3)]


def test_a_tap_is_named_where_its_frames_are_and_a_dropped_chunk_names_it_again():
    now = [0.0]
    controls = Controls(clock=lambda: now[0])
    now[0] = 0.5
    controls.press("d", 1)
    now[0] = 0.6
    controls.release("d", 2)
    now[0] = 1.0
    inputs = controls.take(12)
    assert [(each.number, each.arrived, each.row) for each in inputs.records] == [(1, 0.5, 6), (2, 0.6, 7)]
    assert inputs.axes[6].any()
    now[0] = 1.1
    controls.look(1, 0, 3)
    controls.restore()
    again = controls.take(12)
    assert [each.number for each in again.records] == [1, 2, 3]
    assert controls.take(12).records == ()
    assert np.flatnonzero(again.axes[:, 1]).tolist() == [5, 6]
    assert [each.row for each in again.records] == [5, 6, 0]


def test_our_clients_get_receipts_and_others_none(toy_package, tmp_path):
    with Server(toy_package, tmp_path) as server:
        client = server.client(lingbot_world=True)
        client.status("started")
        client.event("stick", [1.0, 0.0, 0.0, 0.0], 4)
        batch = client.until(lambda message: "inputs" in message)
        (receipt,) = batch["inputs"]
        assert (receipt["kind"], receipt["event_id"]) == ("stick", 4)
        assert 4 * receipt["latent_frame"] - 3 == batch["first_frame_index"]
        assert type(receipt["waited_ms"]) is int
        client.close()
    with Server(toy_package, tmp_path) as server:
        client = server.client(max_chunks=3)
        client.event("stick", [1.0, 0.0, 0.0, 0.0], 4)
        batch = client.until(lambda message: message.get("event_id") == 4 and message["type"] == "frame_batch")
        assert "inputs" not in batch
        client.close()
