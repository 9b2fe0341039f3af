"""A walk that is made again from its folder: the same frames to the bit."""

import json
import threading
import time

import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.live import Session, load_walk
from live_cases import PATIENCE, chunks, opened, walking

pytestmark = pytest.mark.usefixtures("one_thread")


def replayed(package, walk, folder, **changes):
    """The frames of a walk that is made again, and its latents."""
    with Session.replay(opened(package, **changes).engine(), walk, folder=folder, fps=0) as session:
        frames = [part.pixels for part in session]
        return np.concatenate(frames), session.state().latent


@pytest.mark.parametrize("chunk", [1, 3])
def test_keys_mouse_prompts_and_steps_back_give_the_same_frames(toy_package, tmp_path, chunk):
    with walking(toy_package, tmp_path / "walks", chunk=chunk) as session:
        frames = [part.pixels for part in chunks(session, 2)]
        session.hold(["w", "shift"], event=3)
        session.look(11.5, -3.25)
        frames += [part.pixels for part in chunks(session, 2)]
        session.prompt("a sea", refresh=True)
        session.stick(0.25, -0.5, 0.1, 0)
        frames += [part.pixels for part in chunks(session, 1)]
        session.hold(["a"])
        dropped = chunks(session, 1)
        session.back(5)
        session.prompt("snow")
        session.hold(["d", "l"])
        frames += [part.pixels for part in chunks(session, 2)]
        folder, state = session.walk.store.folder, session.state()
        assert dropped[0].chunk == 5
    made, latent = replayed(toy_package, folder, tmp_path / "again", chunk=chunk)
    assert torch.equal(latent, state.latent)
    assert np.array_equal(made, np.concatenate(frames))
    again = load_walk(tmp_path / "again" / "walk-1")
    assert [prompt.text for prompt in again.prompts] == ["a castle", "a sea", "snow"]


def test_a_walk_of_a_long_window_is_rebuilt_as_it_was(toy_package, tmp_path, monkeypatch):
    monkeypatch.setattr("lingbot_world.live.worlds.world.MOST_REPLAYED", 4)
    with walking(toy_package, tmp_path / "walks") as session:
        session.press("w")
        chunks(session, 10)
        session.back(8)
        chunks(session, 3)
        folder, state = session.walk.store.folder, session.state()
    assert torch.equal(replayed(toy_package, folder, tmp_path / "again")[1], state.latent)


def test_a_replay_is_replayed_too_and_a_killed_walk(toy_package, tmp_path):
    with walking(toy_package, tmp_path / "walks") as session:
        session.press("w")
        chunks(session, 3)
        folder, state = session.walk.store.folder, session.state()
        assert "inputs" not in json.loads((folder / "walk.json").read_text())
        assert torch.equal(replayed(toy_package, folder, tmp_path / "killed")[1], state.latent)
    rows = json.loads((folder / "walk.json").read_text())["inputs"]
    assert [row["latent_frame"] for row in rows] == [1, 2]
    assert torch.equal(replayed(toy_package, tmp_path / "killed/walk-1", tmp_path / "again")[1], state.latent)


def test_a_walk_that_goes_on_from_a_state_is_made_again(toy_package, tmp_path):
    with walking(toy_package, tmp_path / "first") as session:
        chunks(session, 3)
        begin = session.state()
    with walking(toy_package, tmp_path / "walks", begin) as session:
        session.press("l")
        chunks(session, 3)
        folder, state = session.walk.store.folder, session.state()
    assert torch.equal(replayed(toy_package, folder, tmp_path / "again")[1], state.latent)


def test_a_walk_of_a_thread_is_made_again_by_a_program(toy_package, tmp_path):
    loaded, made = opened(toy_package), []
    with Session(loaded.engine(), loaded.start, folder=tmp_path / "walks", fps=0, moving=True) as session:
        session.start(made.append)
        for number, keys in enumerate((["w"], ["w", "l"], [], ["s"])):
            session.hold(keys, number)
            ends = time.monotonic() + PATIENCE
            while len(made) < 3 * (number + 1) and time.monotonic() < ends:
                time.sleep(0.01)
        session.stop()
        folder, frames = session.walk.store.folder, np.concatenate([each.pixels for each in made])
    assert np.array_equal(replayed(toy_package, folder, tmp_path / "again")[0], frames)


def test_what_cannot_be_replayed_is_named(toy_package, tmp_path):
    with walking(toy_package, tmp_path / "walks") as session:
        chunks(session, 2)
        folder = session.walk.store.folder
    with pytest.raises(InputError, match="`chunk` is 1, and the model was opened with 3"):
        Session.replay(opened(toy_package, chunk=3).engine(), folder)
    with pytest.raises(InputError, match="not a walk that was kept"):
        Session.replay(opened(toy_package).engine(), tmp_path)
    head = json.loads((folder / "walk.json").read_text())
    for name, value in (("threads", "x"), ("threads", 0), ("inputs", None)):
        (folder / "walk.json").write_text(json.dumps({**head, name: value}))
        with pytest.raises(InputError, match=r"walk\.json: .*cannot be replayed"):
            Session.replay(opened(toy_package).engine(), folder)
    (folder / "walk.json").write_text(json.dumps({name: value for name, value in head.items() if name != "inputs"}))
    with pytest.raises(InputError, match="No such file"):  # else the replay would stand still
        Session.replay(opened(toy_package).engine(), folder)
    del head["noise"]
    (folder / "walk.json").write_text(json.dumps(head))
    with pytest.raises(InputError, match="an earlier version made it"):
        Session.replay(opened(toy_package).engine(), folder)
    for text in ("[" * 100_000, json.dumps({**head, "chunk": 0}), json.dumps({**head, "cells": [0, 12]})):
        (folder / "walk.json").write_text(text)
        with pytest.raises(InputError, match="not a walk that was kept"):
            load_walk(folder)


def test_a_key_changes_nothing_of_a_replay(toy_package, tmp_path):
    with walking(toy_package, tmp_path / "walks") as session:
        chunks(session, 3)
        folder, state = session.walk.store.folder, session.state()
    with Session.replay(opened(toy_package).engine(), folder, folder=tmp_path / "again", fps=0) as session:
        threading.Thread(target=lambda: session.press("w")).start()
        assert len([*session]) == 3
        assert torch.equal(session.state().latent, state.latent)
