"""Old walks are listed and cleared; what the command leaves where."""

import errno
import json
import os
import socket

import pytest
from lingbot_world.errors import InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.live.beginning import update_state
from lingbot_world.headless.live.opening import open_live
from lingbot_world.headless.live.running import bracketed, is_here
from lingbot_world.headless.live.saved_walks import clear_walks, describe_walks, list_walks
from lingbot_world.live import Session, load_walk
from lingbot_world.live.wire.protocol import read_client_events, read_init
from lingbot_world.pipeline.state import load_state
from live_cases import Server, ask, chunks, opened, walking

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def walks(toy_package, tmp_path):
    with walking(toy_package, tmp_path / "walks") as session:
        for number in range(3):
            chunks(session, 2)
            if number < 2:
                session.restart()
    (tmp_path / "walks" / "walk-of-mine").mkdir()
    return tmp_path / "walks"


def test_walks_are_listed_and_all_but_the_last_ones_removed(walks, capsys):
    assert [(row["name"], row["seconds"], row["prompt"]) for row in list_walks(walks)] == [
        (f"walk-{number}", 0.5, "a castle") for number in (3, 2, 1)
    ]
    assert main(["live", "--walks", str(walks)]) == 0
    assert "3 walks in" in capsys.readouterr().out
    (walks / "walk-2" / "notes.txt").write_text("the gate at 0:12")
    assert main(["live", "--walks", str(walks), "--keep", "1"]) == 0
    said = capsys.readouterr().out
    assert "removed walk-1, walk-2 (other files in it stay)" in said
    assert sorted(path.name for path in walks.iterdir()) == ["walk-2", "walk-3", "walk-of-mine"]
    assert [path.name for path in (walks / "walk-2").iterdir()] == ["notes.txt"]
    assert clear_walks(walks, 1) == []
    assert "1 walks in" in describe_walks(walks)
    assert main(["live"]) == 2


def test_a_walk_that_is_replayed_or_continued_is_not_removed(walks, capsys):
    """Neither where the model's folder is forgotten."""
    for option in ("--replay", "--continue_from"):
        assert main(["live", "--walks", str(walks), "--keep", "0", option, str(walks / "walk-1")]) == 2
        assert "CKPT is missing" in capsys.readouterr().err
    assert clear_walks(walks, 0, [walks / "walk-1", walks / "walk-3/walk.state"]) == ["walk-2"]


def test_a_walk_that_is_being_made_is_not_removed(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session:
        chunks(session, 1)
        session.restart()
        chunks(session, 1)
        assert clear_walks(tmp_path, 0, [tmp_path / "walk-1"]) == []
        assert (tmp_path / "walk-2/walk.json").is_file()
    assert clear_walks(tmp_path, 0) == ["walk-1", "walk-2"]
    assert [*tmp_path.iterdir()] == []


def test_a_drive_without_locks_keeps_walks(toy_package, tmp_path, monkeypatch):
    """Some network drives have none."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refuse)
    with walking(toy_package, tmp_path) as session:
        chunks(session, 1)
    assert clear_walks(tmp_path, 0) == ["walk-1"]


def test_a_walk_in_progress_is_continued_from_its_last_chunk(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session:
        for made in (2, 5):
            chunks(session, made - session.walk.chunks)
            assert load_state(update_state(tmp_path / "walk-1")).chunks == made


def test_nothing_is_removed_for_a_model_that_is_none(walks, capsys):
    assert main(["live", str(walks), "--walks", str(walks), "--keep", "0", "--port", "0", "--device", "cpu"]) == 2
    assert "3 walks in" in describe_walks(walks)


def test_a_session_with_a_folder_leaves_a_video_and_a_state(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session:
        chunks(session, 5)
    assert {"walk.mp4", "walk.state", "camera", "walk.json"} <= {path.name for path in (tmp_path / "walk-1").iterdir()}


def test_a_video_goes_on_from_a_folder_with_the_prompt_of_its_walk(toy_package, tmp_path):
    with walking(toy_package, tmp_path / "walks") as session:
        chunks(session, 1)
        session.prompt("a sea")
        chunks(session, 1)
    walk, later = tmp_path / "walks/walk-1", tmp_path / "later.state"
    words = ["--continue_from", walk, "--save_state", later, "--output", tmp_path / "video", "--frame_num", 4]
    more = ["--ckpt_dir", toy_package / "lingbot_world_fast", "--device", "cpu", "--schedule", "0,500", "--quiet"]
    assert main(["generate", *map(str, words + more)]) == 0
    assert [prompt.text for prompt in load_state(later).prompts] == ["a castle", "a sea", "a sea"]
    assert main(["generate", *map(str, more), "--output", str(tmp_path / "other")]) == 2


def test_open_live_goes_on_from_a_folder_and_reads_the_example(toy_package, tmp_path):
    package = tmp_path / "package"
    package.symlink_to(toy_package, target_is_directory=True)
    with walking(toy_package, tmp_path / "walks") as session:
        chunks(session, 2)
    again = {"width": 48, "height": 32, "device": "cpu", "schedule": "0,500", "window": 6, "sink": 2}
    engine, start = open_live(toy_package, continue_from=tmp_path / "walks/walk-1", **again)
    assert (start.prompt, start.state.chunks, engine.chunk) == ("a castle", 2, 1)
    engine, start = open_live(package, chunk=1, **again)
    assert start.prompt == (toy_package / "example/prompt.txt").read_text(encoding="utf-8").strip()
    with Session(engine, start, folder=tmp_path / "more", fps=0) as session:
        chunks(session, 1)


def test_the_command_replays_a_walk(toy_package, tmp_path, capsys):
    with walking(toy_package, tmp_path / "walks") as session:
        session.press("w")
        chunks(session, 4)
        state = session.state()
    folder = tmp_path / "walks/walk-1"
    words = ["--device", "cpu", "--walks", str(tmp_path / "again"), "--replay", str(folder), "-v"]
    with socket.create_server(("127.0.0.1", 0)) as taken:  # a replay listens nowhere
        assert main(["live", str(toy_package), *words, "--port", str(taken.getsockname()[1])]) == 0
    said = capsys.readouterr().out
    assert "4 latent frames, the same bits" in said
    assert "What computes on" in said
    assert load_walk(tmp_path / "again/walk-1").latent.equal(state.latent)


def test_the_page_replays_a_walk_by_its_name(toy_package, tmp_path):
    with walking(toy_package, tmp_path / "walks") as session:
        session.press("w")
        chunks(session, 3)
    with Server(toy_package, tmp_path / "walks") as server:
        status, body = ask(server, "/walks")
        assert status == 200
        assert [row["name"] for row in json.loads(body)] == ["walk-1"]
        client = server.client(lingbot_world=True, lingbot_replay="walk-1")
        client.chunk(2)
        client.status("ended")
        assert "no walk '../walk-1'" in server.client(lingbot_world=True, lingbot_replay="../walk-1").error()


def test_numbers_and_names_that_are_none_are_refused():
    for wrong in ({"seed": 1.5}, {"lingbot_speed": 3}, {"lingbot_moving": "yes"}, {"lingbot_replay": 3}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            read_init({"type": "init", **wrong})
    with pytest.raises(InputError, match="moving"):
        read_client_events({"type": "event", "kind": "moving", "payload": 3})


def test_a_prompt_that_is_no_text_is_refused(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session, pytest.raises(InputError, match="None"):
        session.prompt(None)


def test_an_address_of_this_machine_needs_no_token():
    assert [is_here(host) for host in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "192.168.1.5")] == [True] * 3 + [
        False
    ] * 2
    assert (bracketed("::1"), bracketed("127.0.0.1")) == ("[::1]", "127.0.0.1")


def test_who_walks_is_told_where_the_walk_is_kept_when_the_server_ends(toy_package, tmp_path):
    with Server(toy_package, tmp_path / "walks") as server:
        client = server.client(lingbot_world=True)
        client.chunk(1)
        folder = client.told[0]["folder"]
    assert f"kept in {folder}" in client.error()
    assert opened(toy_package) is server.loaded
