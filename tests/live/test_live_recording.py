"""A walk's video: a frame for each pose that is kept, also after a step back, a slow encoder and a full disk."""

import errno
import logging
import os
import threading

import numpy as np
import pytest
from lingbot_world.headless.live import recording as module
from lingbot_world.headless.live.recording import MAX_QUEUED_BATCHES, PART, WalkRecording
from lingbot_world.live import Frames
from live_cases import PATIENCE, Server, ask, wait_for

av = pytest.importorskip("av")
HEIGHT, WIDTH = 32, 48


def shade(number, take=0):
    """A grey that tells which frame it is, and in which take."""
    return (number * 3 + take * 90) % 230


def frames(first, count, take=0):
    greys = [np.full((HEIGHT, WIDTH, 3), shade(number, take), np.uint8) for number in range(first, first + count)]
    return Frames(np.stack(greys), first, first, 0, 1, None, 0.1)


def greys(file, fps=16):
    """The grey of each frame of a video, whose times have no gaps."""
    with av.open(str(file)) as video:
        read = [(frame.time, frame.to_ndarray(format="rgb24").mean()) for frame in video.decode(video=0)]
    times = np.array([at for at, _ in read])
    assert np.allclose(np.diff(times), 1 / fps, atol=1e-4)
    return np.array([grey for _, grey in read])


def written(recording):
    """Waits until nothing waits to be written."""
    wait_for(recording._queue.empty)


@pytest.mark.parametrize("first", [0, 21])
@pytest.mark.parametrize("backs", [[70], [64], [48 + 5, 17], [3], [1], [0], [90, 40, 41]])
def test_frames_that_somebody_goes_back_on_are_cut(tmp_path, backs, first):
    """Where the cut lies in what is written, at its parts' ends and in what waits; a walk may begin in a video."""
    recording, expected = WalkRecording(tmp_path / "walk.mp4", 16, first=first), []
    for take, back in enumerate([*backs, None]):
        while len(expected) < 85 + take:
            count = 4 if expected else 1
            recording.add(frames(first + len(expected), count, take))
            expected += [shade(first + len(expected) + more, take) for more in range(count)]
            wait_for(lambda: recording._queue.qsize() < MAX_QUEUED_BATCHES // 2)
        if back is not None:
            recording.cut(first + back)
            del expected[back:]
    recording.close()
    assert (recording.failure, recording.left_out) == ("", 0)
    found = greys(tmp_path / "walk.mp4")
    assert len(found) == len(expected)
    assert np.abs(found - expected).max() < 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["walk.mp4"]


def test_a_walk_that_ends_behind_a_step_back_has_no_frame_too_many(tmp_path):
    recording = WalkRecording(tmp_path / "walk.mp4", 16)
    recording.add(frames(0, 41))
    recording.cut(21)
    written(recording)
    recording.close()
    assert len(greys(tmp_path / "walk.mp4")) == 21


def test_what_is_cut_can_be_played_at_once(tmp_path):
    recording = WalkRecording(tmp_path / "walk.mp4", 16)
    recording.add(frames(0, 100))
    recording.cut(50)
    recording.add(frames(50, 40, take=1))
    written(recording)
    wait_for(lambda: len(greys(tmp_path / "walk.mp4")) >= 50)
    found = greys(tmp_path / "walk.mp4")
    assert np.abs(found - [shade(number, number >= 50) for number in range(len(found))]).max() < 4
    recording.close()


def test_others_stand_in_place_of_frames_for_which_the_encoder_was_too_slow(tmp_path, monkeypatch, caplog):
    """So no frame has another's number, and who walks is told once."""
    go_on, write, told = threading.Event(), module._Parts.write, []

    def slow(parts, pixels):
        assert go_on.wait(PATIENCE)
        write(parts, pixels)

    monkeypatch.setattr(module._Parts, "write", slow)
    recording = WalkRecording(tmp_path / "walk.mp4", 16, tell=told.append)
    recording.add(frames(0, PART))
    written(recording)
    for number in range(MAX_QUEUED_BATCHES + 3):
        recording.add(frames(PART + 4 * number, 4))
    go_on.set()
    written(recording)
    made = PART + 4 * (MAX_QUEUED_BATCHES + 3)
    recording.add(frames(made, 4))
    recording.cut(made + 2)
    recording.close()
    assert recording.left_out == 12
    found = greys(tmp_path / "walk.mp4")
    assert len(found) == made + 2
    expected = [shade(made if made - 12 <= number < made else number) for number in range(made + 2)]
    assert np.abs(found - expected).max() < 4
    assert len(told) == 1
    assert "some are replaced by later ones" in told[0]
    assert told[0] in caplog.text


def test_frames_that_are_left_out_at_the_end_are_there_too(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_QUEUED_BATCHES", 0)
    recording = WalkRecording(tmp_path / "walk.mp4", 16)
    recording._queue.put(frames(0, 1))
    recording.add(frames(1, 4))
    recording.close()
    assert len(greys(tmp_path / "walk.mp4")) == 5


def test_after_a_step_back_there_is_a_frame_for_each_pose(toy_package, tmp_path):
    with Server(toy_package, tmp_path) as server:
        client = server.client(lingbot_world=True)
        token = client.status("started")["resume"]
        client.chunk(12)
        client.event("back", 3)
        client.status("back")
        client.chunk(8)
        status, video = ask(server, f"/walk/video?walk={token}")
        assert status == 200
        client.event("back", 4)
        client.status("back")
        client.close()
        wait_for(lambda: server.server.visit is None)
    walk = next(tmp_path.iterdir())
    poses = np.load(walk / "camera" / "poses.npy")
    assert len(greys(walk / "walk.mp4", fps=60)) == len(poses) >= 13
    (tmp_path / "fetched.mp4").write_bytes(video)
    assert len(greys(tmp_path / "fetched.mp4", fps=60)) > 13


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's full disk")
def test_a_recording_ends_on_a_disk_that_is_full_at_its_end(tmp_path):
    """The frames still wait to be written when the walk ends."""
    (tmp_path / "walk.mp4").symlink_to("/dev/full")
    recording = WalkRecording(tmp_path / "walk.mp4", 16)
    recording.add(frames(0, PART // 2))
    ending = threading.Thread(target=recording.close, daemon=True)
    ending.start()
    ending.join(PATIENCE)
    assert not ending.is_alive()
    assert "walk.mp4 ends here: No space left" in recording.failure


def test_a_full_disk_ends_the_video_and_who_walks_is_told_once(toy_package, tmp_path, monkeypatch, caplog):
    """The walk goes on, and is kept."""
    write = module._Parts.write

    def full(parts, pixels):
        if parts.frames >= PART:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(parts, pixels)

    monkeypatch.setattr(module._Parts, "write", full)
    with Server(toy_package, tmp_path) as server, caplog.at_level(logging.WARNING):
        client = server.client(lingbot_world=True)
        reason = client.status("kept")["reason"]
        assert "walk.mp4 ends here: No space left" in reason
        client.chunk(client.batches[-1]["chunk_index"] + 20)
        assert [message.get("content") for message in client.told].count("kept") == 1
        assert server.server.visit.session.video.failure == reason
        client.close()
        wait_for(lambda: server.server.visit is None)
    assert caplog.text.count(reason) == 1
    assert len(np.load(next(tmp_path.iterdir()) / "camera" / "poses.npy")) > PART
