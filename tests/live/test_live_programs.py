"""Sessions of programs: several threads, errors in the middle of a chunk, what does not fit."""

import errno
import threading

import numpy as np
import pytest
import torch
from lingbot_world.camera.moves.keys import STEP
from lingbot_world.errors import CameraError, InputError
from lingbot_world.headless.command.cli import build_parser
from lingbot_world.headless.command.flags import read_prompt
from lingbot_world.headless.live.beginning import find_beginning
from lingbot_world.live import Session, Start, load_walk
from lingbot_world.live.camera import WALKING_UNIT
from lingbot_world.pipeline.state import load_state
from lingbot_world.pipeline.world import World
from live_cases import PATIENCE, chunks, opened, wait_for, walking


@pytest.fixture
def saved(toy_package, tmp_path):
    """A state of two chunks."""
    with walking(toy_package, tmp_path / "before") as session:
        chunks(session, 2)
        session.state().save(tmp_path / "walk.state")
    return tmp_path / "walk.state"


def fails_once(monkeypatch, error, method="chunk"):
    """The next call of a World's method ends with this error."""
    plain = getattr(World, method)

    def failing(*given, **more):
        monkeypatch.setattr(World, method, plain)
        raise error

    monkeypatch.setattr(World, method, failing)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_after_an_error_in_a_chunk_the_walk_stands_where_the_last_whole_one_ended(
    toy_package, tmp_path, monkeypatch, error
):
    with walking(toy_package, tmp_path) as session:
        session.press("w")
        chunks(session, 3)
        fails_once(monkeypatch, error)
        with pytest.raises(type(error)):
            next(session)
        made = chunks(session, 2)
        poses = session.walk.store.poses()
        assert made[0].chunk == 3
        assert made[0].first == 9
        assert session.state().chunks == 5
        given = session.walk.store.relative_poses(1, 5)[:, 2, 3]
    steps = np.diff(poses[:, 2, 3])
    assert steps.max() <= STEP + 1e-9, "no jump in the path"
    assert np.allclose(given, np.diff(poses[::4, 2, 3]) / WALKING_UNIT), "what the model was given is what is kept"


def test_a_recorded_path_has_no_hole_after_an_error(toy_package, tmp_path, monkeypatch):
    loaded, path = opened(toy_package), np.tile(np.eye(4), (13, 1, 1))
    path[:, 2, 3] = np.linspace(0, 1, 13)
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0, path=path) as session:
        chunks(session, 2)
        fails_once(monkeypatch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            next(session)
        for _ in session:
            pass
        assert np.allclose(session.walk.store.poses(), path)


def test_a_session_is_closed_by_another_thread_while_it_makes_a_chunk(toy_package, tmp_path, monkeypatch):
    under_way, chunk = threading.Event(), World.chunk

    def until_it_is_closed(*given, **more):
        made = chunk(*given, **more)
        under_way.set()
        wait_for(lambda: session._closing)
        return made

    monkeypatch.setattr(World, "chunk", until_it_is_closed)
    with walking(toy_package, tmp_path) as session:
        closer = threading.Thread(target=lambda: (under_way.wait(PATIENCE), session.close()))
        closer.start()
        assert len(list(session)) <= 1
        closer.join(PATIENCE)
        assert not closer.is_alive()
    assert load_walk(tmp_path / "walk-1").chunks == 1


@pytest.mark.parametrize("what", ["stop", "close"])
def test_a_session_is_ended_by_who_is_given_its_frames(toy_package, tmp_path, monkeypatch, what):
    """On a processor that is the thread that decodes."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    ended = threading.Event()
    with walking(toy_package, tmp_path) as session:

        def deliver(frames):
            if frames.chunk == 2 and frames.last:
                getattr(session, what)()
                ended.set()

        session.start(deliver)
        assert ended.wait(PATIENCE)
        session._thread.join(PATIENCE)
        assert not session.running
        assert session.failure == ""


def test_sessions_that_begin_at_once_have_folders_of_their_own(toy_package, tmp_path, monkeypatch):
    loaded, both = opened(toy_package), threading.Barrier(2)
    engine, encode = loaded.engine(), type(loaded)._encode_image

    def together(self, frame):
        both.wait(PATIENCE)
        return encode(self, frame)

    monkeypatch.setattr(type(loaded), "_encode_image", together)
    found = []

    def walk():
        with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0) as session:
            found.append(session.walk.store.folder)

    others = [threading.Thread(target=walk) for _ in range(2)]
    for each in others:
        each.start()
    for each in others:
        each.join(PATIENCE)
    assert len(set(found)) == 2
    assert engine.chunk == 1


def test_a_folder_that_cannot_be_made_is_named(toy_package, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    loaded = opened(toy_package)
    with pytest.raises(InputError, match="walk-1: Not a directory"):
        Session(loaded.engine(), loaded.start, folder=tmp_path / "file", fps=0)


def test_a_state_stays_when_the_walk_goes_on(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session:
        chunks(session, 2)
        before = session.state()
        context = before.prompts[-1].context.clone()
        session.back(0)
        session.prompt("snow")
        chunks(session, 1)
        assert torch.equal(before.prompts[-1].context, context)
        assert not torch.equal(session.state().prompts[-1].context, context)


def test_after_a_path_one_may_go_back_or_begin_again(toy_package, tmp_path):
    """With the largest seed that ComfyUI draws."""
    loaded, path = opened(toy_package), np.tile(np.eye(4), (9, 1, 1))
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0, path=path, seed=2**64 - 1) as session:
        assert [each.chunk for each in session] == [0, 1, 2]
        session.back(1)
        assert [each.chunk for each in session] == [1, 2]
        session.restart()
        assert [each.chunk for each in session] == [0, 1, 2]


def test_what_does_not_fit_is_refused_and_the_walk_goes_on(toy_package, tmp_path, saved):
    large = Start(torch.zeros(3, 64, 64), "nothing")
    with walking(toy_package, tmp_path / "walks", chunk=3) as session:
        chunks(session, 1)
        for wrong, message in ((large, r"\[3, 64, 64\].*\[3, 32, 48\]"), (load_state(saved), "chunk")):
            session.restart(wrong)
            with pytest.raises(InputError, match=message):
                next(session)
            assert chunks(session, 1)[0].chunk > 0
        session.restart()
        assert chunks(session, 1)[0].chunk == 0
        engine = session.engine
    with pytest.raises(InputError, match="bring it to 48x32"):
        Session(engine, large, folder=tmp_path / "walks", fps=0)
    pixels = torch.full((3, 32, 48), 255)
    for seed in (2**64, -(2**70)):
        with pytest.raises(InputError, match="`seed`"):
            Session(engine, Start(torch.zeros(3, 32, 48), "nothing", seed=seed), fps=0)
        with pytest.raises(InputError, match="`seed`"):
            Session(engine, Start(torch.zeros(3, 32, 48), "nothing"), fps=0, seed=seed)
    for frame in (pixels, pixels.float(), pixels * torch.nan, np.zeros((3, 32, 48), np.float32)):
        with pytest.raises(InputError, match=r"frame"):
            Session(engine, Start(frame, "nothing"), folder=tmp_path / "walks", fps=0)
    for path in (np.eye(4), [[1, 2], [3, 4]]):
        with pytest.raises(CameraError, match="path"):
            Session(engine, opened(toy_package, chunk=3).start, folder=tmp_path / "walks", fps=0, path=path)
    assert sorted(each.name for each in (tmp_path / "walks").iterdir()) == ["walk-1", "walk-2"], "nothing empty is left"


def test_what_a_session_cannot_do_is_said(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session:
        session.start(lambda _frames: None)
        with pytest.raises(InputError, match="before"):
            session.start(lambda _frames: None)
        with pytest.raises(InputError, match="deliver"):
            next(session)
    with pytest.raises(InputError, match="ended"):
        session.prompt("snow")
    assert list(session) == []
    session.close()


def test_a_state_goes_on_with_another_prompt_and_seed(toy_package, tmp_path, saved):
    pictures = {}
    for prompt, seed in (("", 0), ("snow", 0), ("snow", 1)):
        begin = Start.after(load_state(saved), prompt, seed)
        with walking(toy_package, tmp_path / "walks", begin) as session:
            pictures[prompt, seed] = np.concatenate([each.pixels for each in chunks(session, 1)])
            session.restart()
            chunks(session, 1)
            assert [each.text for each in session.state().prompts] == ["a castle", prompt or "a castle"]
    first, *others = pictures.values()
    assert all(not np.array_equal(first, other) for other in others)
    assert not np.array_equal(*others)


def test_the_command_goes_on_with_the_prompt_that_a_state_ends_with(toy_package, tmp_path, saved):
    def prompt(*words):
        arguments = build_parser().parse_args(["live", str(toy_package), "--continue_from", *words])
        return find_beginning(arguments.ckpt, vars(arguments) | {"prompt": read_prompt(arguments)})["prompt"]

    assert prompt(str(saved)) == "a castle"
    assert prompt(str(saved), "--prompt", "snow") == "snow"
    with pytest.raises(InputError, match="nothing"):
        prompt(str(tmp_path / "nothing"))


def test_a_disk_that_is_full_from_the_beginning_is_said_before_anything_is_made(toy_package, tmp_path, monkeypatch):
    def full(*_given):
        raise OSError(errno.ENOSPC, "No space left on device")

    loaded = opened(toy_package)
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="cannot be kept in .*walk-1: No space left"):
        Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0)


def test_a_prompt_at_once_takes_chunks_that_are_kept(toy_package, tmp_path, caplog):
    with walking(toy_package, tmp_path) as session:
        chunks(session, 3)
        session.walk.store.failure = "the disk is full"
        session.prompt("snow", refresh=True)
        with pytest.raises(InputError, match="the disk is full"):
            next(session)
        assert chunks(session, 1)[0].chunk == 3
        session._warn_unsaved("the disk is full")
    assert "the disk is full" in caplog.text
