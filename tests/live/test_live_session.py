"""A walk without the web: what keys become, what is handed out, and what is kept."""

import errno
import gc
import os
import pickle
import shutil
import threading
import time
import warnings
import weakref
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lingbot_world.camera import continued_poses
from lingbot_world.camera.moves.keys import STEP
from lingbot_world.camera.rotation import from_angles
from lingbot_world.errors import InputError
from lingbot_world.headless.live import opening
from lingbot_world.headless.live.beginning import update_state
from lingbot_world.headless.live.measuring import late_frames
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.run import run
from lingbot_world.live import Controls, Session, Start, load_walk
from lingbot_world.live.camera import WALKING_UNIT, WalkingCamera, relative_poses
from lingbot_world.live.controls import MOST_ROWS, FrameInputs
from lingbot_world.live.pace import MARGIN, Pace
from lingbot_world.live.walk import Walk
from lingbot_world.pipeline.geometry import chunk_conditioning
from lingbot_world.pipeline.state import load_state
from lingbot_world.pipeline.world import World
from lingbot_world.vae import VideoDecoder
from live_cases import PATIENCE, chunks, opened, walking
from rollout_run_cases import small_options


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def controls(clock):
    return Controls(clock)


def test_a_key_that_is_held_counts_for_all_frames_and_stops_when_it_comes_up(controls, clock):
    clock.now += 0.2
    controls.press("w", event=7)
    taken = controls.take(4)
    assert (taken.axes[:, 0] == 1).all()
    assert taken.last_number == 7
    clock.now += 0.1
    controls.release("w", event=8)
    assert not controls.take(4).axes.any()


def test_a_tap_between_two_chunks_is_held_in_the_frames_it_hit(controls, clock):
    clock.now = 100.5
    controls.press("d")
    clock.now = 100.6
    controls.release("d")
    clock.now = 101.0
    assert controls.take(8).axes[:, 1].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert not controls.take(8).axes.any()


@pytest.mark.parametrize("up", [100.2, 100.7])
def test_a_tap_before_a_chunk_without_video_frames_is_held_in_the_next_one(controls, clock, up):
    """The first chunk of one latent frame is the picture alone. The key comes up before it, or while it is made."""
    clock.now = 100.1
    controls.press("w", event=1)
    for at, happens in sorted({up: lambda: controls.release("w"), 100.5: lambda: controls.take(0)}.items()):
        clock.now = at
        happens()
    clock.now = 101.1
    axes = controls.take(4).axes
    assert axes[0, 0] == 1
    assert axes[3, 0] == 0
    assert not controls.take(4).axes.any()


def test_what_the_mouse_asks_for_is_taken_once_and_a_stick_stays(controls):
    controls.look(10, -5)
    controls.look(5, 0)
    controls.stick(0.5, -0.25, 0, 0)
    first, second = controls.take(4), controls.take(4)
    assert (first.look, second.look) == ((15, -5), (0, 0))
    assert second.axes[0].tolist() == [0.5, -0.25, 0, 0]


def test_a_script_goes_latent_frame_by_latent_frame_and_a_key_ends_it(controls):
    controls.script([["w"], ["a", "l"], ["s"]], event=3)
    assert controls.take(8).axes[:, :2].tolist() == [[1, 0]] * 4 + [[0, -1]] * 4
    controls.press("d")
    assert controls.take(4).axes[:, :2].tolist() == [[0, 1]] * 4


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c.press("x"),
        lambda c: c.hold([["w"]]),
        lambda c: c.script([["w"]] * (MOST_ROWS + 1)),
        lambda c: c.look(float("nan"), 0),
        lambda c: c.look("a", 0),
        lambda c: c.stick(1, 2, 3, float("inf")),
    ],
)
def test_what_is_no_control_is_refused_and_changes_nothing(controls, use):
    controls.press("w")
    with pytest.raises(InputError):
        use(controls)
    taken = controls.take(4)
    assert (taken.axes[:, 0] == 1).all()
    assert taken.look == (0, 0)


def held(key, frames):
    axes = np.zeros((frames, 4))
    axes[:, "wdli".index(key)] = 1
    return FrameInputs(axes, (0.0, 0.0), None)


def test_full_speed_is_the_longest_step_that_a_model_knows_and_a_tap_is_a_nudge():
    camera = WalkingCamera()
    steps = relative_poses(camera.move(held("w", 40))[3::4], np.eye(4), camera.unit)
    assert np.linalg.norm(steps[:, :3, 3], axis=1).max() == pytest.approx(1)
    nudged = WalkingCamera()
    nudged.move(held("w", 1))
    assert 0 < nudged.move(FrameInputs(np.zeros((8, 4)), (0, 0), None))[-1, 2, 3] < STEP


def test_walking_aslant_is_no_faster():
    camera = WalkingCamera()
    both = FrameInputs(held("w", 12).axes + held("d", 12).axes, (0.0, 0.0), None)
    poses = camera.move(both)
    assert np.linalg.norm(poses[-1, :3, 3] - poses[-2, :3, 3]) == pytest.approx(STEP)


def test_pitch_is_held_and_a_look_of_the_mouse_arrives_in_full():
    camera = WalkingCamera()
    up = camera.move(FrameInputs(np.zeros((40, 4)), (90.0, 120.0), None))[-1]
    assert np.allclose(up[:3, :3], from_angles("YX", [[90, 85]])[0], atol=1e-9)


def test_a_walk_goes_on_from_any_pose_with_its_roll():
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = from_angles("YXZ", [[40, -20, 15]])[0], [1, 2, 3]
    assert np.allclose(WalkingCamera(pose).move(FrameInputs(np.zeros((4, 4)), (0, 0), None))[-1], pose, atol=1e-12)


def test_three_minutes_of_walking_leave_the_poses_rigid_and_as_the_model_was_given_them():
    """What the model was given, put together again, is where the camera is, to 1e-9, after 720 latent frames."""
    chance, camera, together = np.random.default_rng(0), WalkingCamera(), np.eye(4)
    for _ in range(60):
        axes = np.repeat(chance.integers(-1, 2, (3, 4)), 16, axis=0).astype(float)
        before, poses = camera.pose, camera.move(FrameInputs(axes, tuple(chance.normal(0, 20, 2)), None))
        for step in relative_poses(poses[3::4], before, camera.unit):
            step[:3, 3] *= camera.unit
            together = together @ step
    assert np.abs(poses[-1, :3, :3].T @ poses[-1, :3, :3] - np.eye(3)).max() < 1e-12
    assert np.abs(together - camera.pose).max() < 1e-9
    assert np.linalg.norm(camera.pose[:3, 3]) > 5


def test_pace_begins_a_chunk_just_before_its_frames_are_due(clock):
    pace = Pace(16, clock)
    pace.record_delivery(1)
    pace.record_delay(0.2)
    pace.record_delivery(15)
    assert pace.seconds_to_wait() == pytest.approx(1 - 0.2 - MARGIN)
    clock.now += 2
    assert pace.seconds_to_wait() == 0
    pace.record_delivery(4)
    assert (pace.stalls, pace.late) == (1, 4)
    assert Pace(0, clock).seconds_to_wait() == 0


def test_how_long_a_walks_first_chunk_takes_says_nothing_of_the_others(clock):
    """It compiles and records. If it counted, chunks would be made far ahead, until it is forgotten; then for as long
    none would be made, and no key answered."""
    pace = Pace(16, clock)
    for begins in (lambda: None, pace.reset):
        begins()
        for seconds in (7.0, 0.1):
            clock.now += seconds
            pace.record_delay(seconds)
            pace.record_delivery(4)
        assert pace.seconds_to_wait() == pytest.approx(0.5 - 0.1 - 0.1 - MARGIN)


@pytest.mark.parametrize(("chunk_frames", "chunks"), [(4, 8), (12, 2), (16, 2)])
def test_a_slow_chunk_is_forgotten_after_two_seconds_of_frames_or_two_chunks(clock, chunk_frames, chunks):
    pace = Pace(16, clock, chunk_frames=chunk_frames)
    pace.record_delivery(1)
    for seconds in (0.5, *[0.1] * (chunks - 1)):
        pace.record_delay(seconds)
    pace.record_delivery(32)
    assert pace.seconds_to_wait() == pytest.approx(33 / 16 - 0.5 - MARGIN)
    pace.record_delay(0.1)
    assert pace.seconds_to_wait() == pytest.approx(33 / 16 - 0.1 - MARGIN)


def test_frames_are_late_against_those_that_were_played_since_the_walk_began():
    """Not against the moment from which it is counted: frames of then may have come early."""
    regular = [(0.25 * number + (0.1 if number == 0 else 0), 4) for number in range(12)]
    early = [(at - (0.05 if number == 4 else 0), frames) for number, (at, frames) in enumerate(regular)]
    assert late_frames(early, 16, since=early[4][0]) == (0, 0)
    held_up = [(at + (0.5 if number >= 8 else 0), frames) for number, (at, frames) in enumerate(regular)]
    assert late_frames(held_up, 16, since=held_up[4][0]) == (1, 4)
    assert late_frames(held_up, 16, since=held_up[8][0]) == (0, 0)


def test_the_first_latent_frame_is_handed_out_before_the_others(toy_package, tmp_path):
    with walking(toy_package, tmp_path, chunk=3) as session:
        made = [next(iter(session)), next(iter(session))]  # a program may stop asking in the middle of a chunk
        assert session.state().chunks == 1
        made += chunks(session, 1)
    assert [(frames.chunk, frames.part, frames.first, len(frames.pixels)) for frames in made] == [
        (0, 0, 0, 1),
        (0, 1, 1, 8),
        (1, 0, 9, 4),
        (1, 1, 13, 8),
    ]
    assert made[0].pixels.shape == (1, 32, 48, 3)
    assert made[0].pixels.dtype == np.uint8


@pytest.mark.parametrize("chunk", [1, 3])
def test_keys_steer_from_the_next_chunk_on_and_are_kept_as_they_were_given(toy_package, tmp_path, chunk):
    with walking(toy_package, tmp_path, chunk=chunk) as session:
        chunks(session, 1)
        session.press("w", event=5)
        assert {frames.event for frames in chunks(session, 3)} == {5}
        state, poses = session.state(), session.walk.store.poses()
    assert len(poses) == state.frames
    assert state.chunk == chunk
    assert state.scale == WALKING_UNIT
    world = poses[::4]
    given, _ = continued_poses(world, len(world) - 1, before=world[0], scale=state.scale)
    assert np.abs(state.poses[1:].numpy() - given).max() < 1e-6
    assert poses[-1, 2, 3] > 0
    assert np.array_equal(poses[-1], state.last_pose.numpy())


def test_a_walk_and_a_video_go_on_from_the_state_of_another(toy_package, tmp_path):
    state_file = tmp_path / "walk.state"
    with walking(toy_package, tmp_path, chunk=3) as session:
        session.press("l")
        chunks(session, 2)
        state = session.state()
        state.save(state_file)
        with walking(toy_package, tmp_path / "other", begin=state, chunk=3) as other:
            again = chunks(other, 1)
            assert again[0].first == state.frames == 21
            longer = other.state()
    assert longer.latent.shape[2] == 9
    assert torch.equal(longer.latent[:, :, :6], state.latent)
    with pytest.raises(InputError, match="the state was made in chunks of 3 latent frames"):
        Session(opened(toy_package).engine(), state, folder=tmp_path, fps=0)
    on = small_options(toy_package, tmp_path, image=None, width=None, height=None, action_path=None, frame_num=12)
    on = replace(on, continue_from=state_file, output=tmp_path / "next.mp4")
    assert run(make_plan(on)).path.stat().st_size > 0


def test_a_step_back_makes_the_same_again(toy_package, tmp_path):
    """The noise goes on, so the frames after it are others; the frames before are the same to the bit."""
    with walking(toy_package, tmp_path) as session:
        session.press("d")
        chunks(session, 5)
        before = session.state()
        session.back(3)
        again = chunks(session, 1)
        after = session.state()
        assert again[0].first == 9
        assert again[0].chunk == 3
        assert torch.equal(after.latent[:, :, :3], before.latent[:, :, :3])
        assert np.allclose(after.poses[:3], before.poses[:3])
        session.back(99)
        with pytest.raises(InputError, match="expected 0 to 4"):
            chunks(session, 1)


def test_a_prompt_switches_between_chunks_and_refreshes_the_window(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session:
        chunks(session, 4)
        session.prompt("a forest at night")
        chunks(session, 2)
        session.prompt("a sea", refresh=True)
        chunks(session, 2)
        told = [(prompt.text, prompt.chunks) for prompt in session.state().prompts]
        with pytest.raises(InputError, match="empty"):
            session.prompt("  ")
    assert told == [("a castle", 4), ("a forest at night", 2), ("a sea", 2)]


@pytest.fixture
def given(monkeypatch):
    """What Worlds are given of the picture, in order: (how, y)."""
    noted = []

    def noting(name):
        call = getattr(World, name)

        def run(world, latent, y, *more):
            noted.append((name, y.clone()))
            return call(world, latent, y, *more)

        return run

    for name in ("chunk", "replay"):
        monkeypatch.setattr(World, name, noting(name))
    return noted


@pytest.mark.parametrize(
    ("how", "window"), [("refresh", (6, 2)), ("back", (6, 0)), ("back on from a state", (6, 2))], ids=str
)
def test_chunks_that_are_seen_again_get_what_they_had_and_so_does_the_next_one(
    toy_package, tmp_path, monkeypatch, given, how, window
):
    """Of the window's chunks alone, whose numbers jump. What is given of the picture changes for 30 latent frames."""
    monkeypatch.setattr("lingbot_world.live.worlds.world.MOST_REPLAYED", 4)
    changes, begin, before = {"window": window[0], "sink": window[1]}, None, 0
    if how == "back on from a state":
        with walking(toy_package, tmp_path / "first", **changes) as session:
            chunks(session, 3)
            begin, before = session.state(), 3
    engine = opened(toy_package, **changes).engine()
    image = engine.encode_image(opened(toy_package, **changes).start.frame)
    expected = list(islice(chunk_conditioning(image, 1), 13))
    assert not any(torch.equal(one, other) for one, other in pairwise(expected))
    with walking(toy_package, tmp_path / "second", begin, **changes) as session:
        chunks(session, 8)
        given.clear()
        if how == "refresh":
            session.prompt("a sea", refresh=True)
        else:
            session.back(8)
        chunks(session, 2)
    seen = sorted({*range(window[1]), *range(8 - (window[0] - window[1]), 8)})
    numbers = [("replay", number) for number in (*range(before), *(before + number for number in seen))]
    numbers += [("chunk", before + 8), ("chunk", before + 9)]
    assert [name for name, _ in given] == [name for name, _ in numbers]
    for (_, y), (name, number) in zip(given, numbers, strict=True):
        assert torch.equal(y, expected[number]), (name, number)


def test_a_refresh_changes_what_the_next_chunk_is_made_with(toy_package, tmp_path):
    """With another prompt, and with nothing else: by the same prompt the next chunk is as it would have been, where the
    window has all that was made."""
    made = {}
    for text in ("a castle", "a sea"):
        for refresh in (False, True):
            with walking(toy_package, tmp_path / f"{text} {refresh}") as session:
                chunks(session, 5)
                session.prompt(text, refresh=refresh)
                chunks(session, 1)
                made[text, refresh] = session.state().latent[:, :, 5]
    far = (made["a sea", True] - made["a sea", False]).abs().max()
    assert (made["a castle", True] - made["a castle", False]).abs().max() < 1e-3 * far
    assert far > 1e-3


def test_frames_are_not_late_for_what_it_took_to_see_the_window_again(toy_package, tmp_path):
    """The frames that were made before it count no more."""
    loaded = opened(toy_package)
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=1) as session:
        chunks(session, 4)
        session.prompt("a forest")
        chunks(session, 1)
        assert session.pace.seconds_to_wait() > 10
        session.prompt("a sea", refresh=True)
        chunks(session, 1)
        assert session.pace.seconds_to_wait() < 4


def test_another_picture_is_another_walk_in_its_own_folder(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session:
        chunks(session, 2)
        first = session.walk.store.folder
        session.restart(Start(torch.zeros(3, 32, 48), "nothing"))
        assert chunks(session, 1)[0].first == 0
        assert session.walk.store.folder != first
    assert load_walk(first).chunks == 2


def test_a_folder_of_a_killed_process_is_a_state_up_to_the_last_whole_chunk(toy_package, tmp_path):
    with walking(toy_package, tmp_path) as session:
        chunks(session, 4)
        folder, whole = session.walk.store.folder, session.state()
    with (folder / "poses.f64").open("r+b") as file:
        file.truncate(128 * 6)  # the process ended while it wrote
    left = load_walk(folder)
    assert left.chunks == 2
    assert torch.equal(left.latent, whole.latent[:, :, :2])
    with pytest.raises(InputError, match=r"walk\.json"):
        load_walk(tmp_path)


@pytest.mark.parametrize("left", ["killed", "saved and killed", "ended"])
def test_the_command_makes_state_and_camera_of_a_folder_that_was_left(toy_package, tmp_path, left):
    """A state that was saved on the way is not the walk's; one that was written at its end is."""
    with walking(toy_package, tmp_path) as session:
        chunks(session, 2)
        folder = session.walk.store.folder
        if left == "saved and killed":
            session.state().save(folder / "walk.state")
        session.press("w")
        chunks(session, 2)
        state, poses = session.state(), session.walk.store.poses()
        session.close(whole=left == "ended")
    before = (folder / "walk.state").stat().st_mtime_ns if left == "ended" else None
    path = update_state(str(folder))
    assert torch.equal(load_state(path).latent, state.latent)
    assert np.array_equal(np.load(folder / "camera" / "poses.npy"), poses)
    assert np.load(folder / "camera" / "intrinsics.npy").shape == (len(poses), 4)
    assert before is None or path.stat().st_mtime_ns == before
    (folder / "walk.json").unlink()  # a state alone is enough
    shutil.rmtree(folder / "camera")
    assert update_state(str(folder)) == path


def test_each_walk_leaves_a_state_and_a_camera_path_where_the_session_keeps_them(toy_package, tmp_path):
    loaded = opened(toy_package)
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0, whole=True) as session:
        session.press("w")
        chunks(session, 3)
        session.restart()
        chunks(session, 2)
    for walk, chunk in (("walk-1", 3), ("walk-2", 2)):
        assert load_state(tmp_path / walk / "walk.state").chunks == chunk
        assert len(np.load(tmp_path / walk / "camera" / "poses.npy")) == 4 * chunk - 3


def test_world_and_decoder_are_given_back_before_a_walk_is_written(toy_package, tmp_path, monkeypatch):
    """A long walk's state takes seconds to write. Nothing has to collect garbage for it."""
    parts, held, loaded = {}, {}, opened(toy_package, chunk=3)

    def noted(folder):
        held[folder.name] = [part() is not None for part in parts[folder.name]]

    def note(session):
        walk = session.walk
        parts[walk.store.folder.name] = weakref.ref(walk._world), weakref.ref(walk._decoder)

    monkeypatch.setattr("lingbot_world.live.walks.write_state_and_camera", noted)
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0, whole=True) as session:
        gc.disable()
        try:
            chunks(session, 1)
            note(session)
            session.restart()
            chunks(session, 1)
            note(session)
            assert next(session).part == 0  # a chunk is under way when the session is closed
            session.close()
        finally:
            gc.enable()
    assert held == {"walk-1": [False, False], "walk-2": [False, False]}


def test_another_walk_does_not_wait_until_the_one_before_is_written(toy_package, tmp_path, monkeypatch):
    written = threading.Event()
    monkeypatch.setattr("lingbot_world.live.walks.write_state_and_camera", lambda _folder: written.wait(PATIENCE))
    loaded = opened(toy_package)
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0, whole=True) as session:
        chunks(session, 1)
        session.restart()
        chunks(session, 1)
        assert not written.is_set()
        assert session.walk.store.folder.name == "walk-2"
        written.set()


def test_who_walks_is_told_that_a_walk_could_not_be_written(toy_package, tmp_path, monkeypatch):
    """The next one goes on."""

    def full(_folder):
        raise InputError("No space left on device")

    monkeypatch.setattr("lingbot_world.live.walks.write_state_and_camera", full)
    told, loaded = [], opened(toy_package)
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0, whole=True) as session:
        session._notify = lambda kind, facts: told.append((kind, facts))
        chunks(session, 1)
        session.restart()
        chunks(session, 1)
        session.close()
    reasons = [facts["reason"] for kind, facts in told if kind == "kept"]
    assert reasons == ["No space left on device"] * 2


def test_a_full_disk_ends_the_keeping_and_not_the_walk(toy_package, tmp_path, monkeypatch):
    with walking(toy_package, tmp_path) as session:
        chunks(session, 3)

        def full(_part):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        store = session.walk.store
        file = store._files["steps.f64"]
        store._files["steps.f64"] = SimpleNamespace(
            write=full, truncate=file.truncate, seek=file.seek, close=file.close
        )
        made = chunks(session, 2)
        assert len(made) == 2
        assert "No space left" in store.failure
        assert session.state().chunks == 3


def test_a_thread_makes_frames_as_they_are_played_and_pauses(toy_package, tmp_path):
    loaded, made, told = opened(toy_package), [], []
    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=40, moving=True) as session:
        enough = threading.Event()

        def deliver(frames):
            made.append(frames)
            if len(made) > 8:
                enough.set()

        session.start(deliver, lambda kind, facts: told.append(kind))
        assert enough.wait(PATIENCE)
        session.pause()
        under_way = session.walk.chunks
        time.sleep(0.3)  # enough for three chunks
        assert made[-1].chunk <= under_way
        session.resume()
        session.prompt("a sea")
        deadline = time.monotonic() + PATIENCE
        while "prompt" not in told and time.monotonic() < deadline:
            time.sleep(0.02)
    assert told == ["paused", "resumed", "prompt"]
    assert not session.running


def test_on_a_processor_a_chunk_is_decoded_while_the_next_one_is_made(toy_package, tmp_path, monkeypatch):
    """The first chunk's frames wait until the second chunk is made; all come in order, and the cores are given back."""
    made, frames, decode = threading.Event(), [], VideoDecoder.decode
    make = Walk.chunk_ahead

    def make_and_tell(walk):
        if walk.chunks == 1:
            made.set()
        return make(walk)

    def wait_and_decode(*arguments, **options):
        assert made.wait(PATIENCE)
        return decode(*arguments, **options)

    monkeypatch.setattr(Walk, "chunk_ahead", make_and_tell)
    monkeypatch.setattr(VideoDecoder, "decode", wait_and_decode)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    cores = []
    monkeypatch.setattr(torch, "set_num_threads", cores.append)
    with walking(toy_package, tmp_path) as session:
        session.start(frames.append)
        while len(frames) < 4 and session.running:
            time.sleep(0.02)
        session.stop()
        assert session.failure == ""
        assert session.walk.frames == sum(len(each.pixels) for each in frames)
    assert [each.first for each in frames] == [0, *np.cumsum([len(each.pixels) for each in frames])[:-1]]
    assert cores == [1, 1, 2]


def test_what_is_replayed_is_asked_for_before_frames_are_waited_for(toy_package, tmp_path, monkeypatch):
    """The clean forward of a chunk is queued behind its decoding, and the frames are the same."""
    order, frames = [], {}
    remember, decode = World.remember, VideoDecoder.decode

    def noted(name, call):
        def run(*arguments, **options):
            order.append(name)
            return call(*arguments, **options)

        return run

    monkeypatch.setattr(World, "remember", noted("remember", remember))
    monkeypatch.setattr(VideoDecoder, "decode", noted("decode", decode))
    for replays in (False, True):
        monkeypatch.setattr(World, "graphs_recorded", property(lambda _, replays=replays: replays))
        order.clear()
        with walking(toy_package, tmp_path) as session:
            frames[replays] = [each.pixels for each in chunks(session, 3)]
        first = "remember" if replays else "decode"
        assert order[:4] == [first, *{"remember", "decode"} - {first}] * 2
    for before, ahead in zip(*frames.values(), strict=True):
        assert np.array_equal(before, ahead)


needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_a_gpu
def test_on_a_gpu_a_chunk_waits_for_its_frames_alone(toy_package, tmp_path):
    """CUDA is not asked to wait for anything else, which would leave the GPU without work."""
    with walking(toy_package, tmp_path, device="cuda") as session:
        chunks(session, 12)
        assert session.walk._world.graphs_recorded
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as waits:
                warnings.simplefilter("always")
                chunks(session, 3)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert [f"{each.filename}:{each.lineno}: {each.message}" for each in waits] == []


@needs_a_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("chunk", [1, 3])
def test_another_gpu_decodes_to_the_same_frames(toy_package, tmp_path, chunk):
    frames = []
    for other in (None, "cuda:1"):
        with walking(toy_package, tmp_path, device="cuda", chunk=chunk, decoder_device=other) as session:
            assert session.walk._decoder.device.index == int(other is not None)
            frames.append(np.concatenate([each.pixels for each in chunks(session, 12)]))
    assert np.array_equal(*frames)


def test_memory_does_not_grow_with_the_walk(toy_package, tmp_path):
    """Neither in tensors nor in files and lists: as much after 16 chunks as after 8."""

    def held():
        gc.collect()
        tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor]
        return len(tensors), sum(tensor.nbytes for tensor in tensors), len(pickle.dumps(session.walk.store._prompts))

    with walking(toy_package, tmp_path) as session:
        chunks(session, 8)
        before = held()
        chunks(session, 8)
        assert held() == before


def forward(frames):
    """A path that goes ahead, faster and faster."""
    poses = np.tile(np.eye(4), (frames, 1, 1))
    poses[:, 2, 3] = np.linspace(0, 1, frames) ** 2
    return poses


def test_a_path_is_walked_to_its_last_whole_chunk_whatever_is_pressed(toy_package, tmp_path):
    """Its longest step is the unit, and its noise that of a rollout: drawn before all else."""
    engine, start = opened(toy_package, chunk=2).engine(), opened(toy_package, chunk=2).start
    with Session(engine, start, folder=tmp_path, fps=0, path=forward(16)) as session:
        session.press("a")
        frames = [part.pixels for part in session]
        state, poses = session.state(), session.walk.store.poses()
    assert len(np.concatenate(frames)) == state.frames == 13
    assert np.array_equal(poses, forward(16)[:13])
    assert np.linalg.norm(state.poses[:, :3, 3], axis=1).max() <= 1
    assert state.scale == pytest.approx(forward(16)[12, 2, 3] - forward(16)[8, 2, 3])


def test_the_thread_that_runs_a_walk_watches_it_and_is_told_what_was_asked_in_vain(toy_package, tmp_path):
    """Prompts are encoded in it too; what `watch` raises ends the walk."""
    loaded, told, made, looks = opened(toy_package), [], [], []

    def watch():
        looks.append(threading.get_ident())
        if len(made) == 1 and not told:
            session.prompt("a lake")
        if session.walk.store.last_prompt[0] == "a lake" and len(made) > 2:
            session.back(1000)
        if told and told[-1][0] == "failed":
            raise KeyboardInterrupt

    with Session(loaded.engine(), loaded.start, folder=tmp_path, fps=0) as session:
        session.moving = True
        with pytest.raises(KeyboardInterrupt):
            session.run(made.append, lambda *what: told.append(what), watch)
        session.close(whole=True)  # asks for it: the session was not told to keep whole walks
    assert {*looks} == {threading.get_ident()}
    assert ("prompt", {"text": "a lake", "events": []}) in told
    assert "back to chunk 1000" in told[-1][1]["reason"]
    assert (tmp_path / "walk-1" / "walk.state").is_file()
    assert (tmp_path / "walk-1" / "camera" / "poses.npy").is_file()


@pytest.mark.parametrize("able", [True, False])
def test_a_processor_that_multiplies_bf16_walks_in_it_unless_something_else_is_asked_for(
    toy_package, monkeypatch, able
):
    monkeypatch.setattr(opening, "multiplies_bf16", lambda: able)
    asked = small_options(toy_package, Path(), action_path=None, output="unused.mp4")
    plan = opening.plan_live(asked)
    assert (plan.dtype, plan.half) == ((torch.bfloat16, torch.bfloat16) if able else (torch.float32, None))
    exact = opening.plan_live(replace(asked, dtype="fp32", vae_dtype="fp32"))
    assert (exact.dtype, exact.half) == (torch.float32, None)


def test_a_walk_needs_no_place_for_a_video_in_the_folder_one_is_in(toy_package, tmp_path, monkeypatch):
    """What is kept of it lies in the session's folder, which its own options name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "walks").write_text("a file")
    asked = {"width": 48, "height": 32, "chunk": 1, "device": "cpu"}
    image = toy_package / "example/image.png"
    engine, _ = opening.open_live(toy_package / "lingbot_world_fast", image=image, prompt="a", **asked)
    assert engine.size == (32, 48)


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_walk_that_goes_on_is_told_of_no_video_with_an_end(toy_package, tmp_path, chunk):
    state = tmp_path / "before.state"
    with walking(toy_package, tmp_path, chunk=chunk) as session:
        made = chunks(session, 2)[-1]
        session.state().save(state)
    asked = {"ckpt_dir": toy_package / "lingbot_world_fast", "prompt": "a", "device": "cpu", "continue_from": state}
    notes = opening.plan_live(GenerateOptions(**asked, output="unused.mp4")).notes
    assert [note for note in notes if "frames" in note.lower()] == [
        f"{state} holds {made.first + len(made.pixels)} frames; the walk continues from there."
    ]
