"""How frames are written: into pipes that are read meanwhile, and while somebody interrupts."""

import contextlib
import os
import select
import signal
import sys
import time

import av
import numpy as np
import pytest
from lingbot_world.errors import InputError
from lingbot_world.headless.files import video
from lingbot_world.headless.files.pictures import colour_frames, frame_rate
from lingbot_world.headless.files.target import find_target
from lingbot_world.headless.files.video import FrameWriter, write_frames
from PIL import Image

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has neither named pipes nor these signals")

CHUNK = 12


def pictures(count: int) -> np.ndarray:
    """Frames uint8 [count, 64, 96, 3] of a picture that moves."""
    picture = np.kron(np.random.default_rng(1).uniform(0, 255, (16, 40, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    return np.stack([picture[index : index + 64, 2 * index : 2 * index + 96] for index in range(count)])


@pytest.fixture
def pipe(tmp_path):
    """A named pipe, and its reading end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # the other end is opened later
    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb", buffering=0) as file:
        yield find_target(path), file


def frames_in(file) -> int:
    with av.open(str(file)) as video:
        return sum(1 for _ in video.decode(video=0))


def test_a_pipe_gives_the_frames_of_each_chunk_before_the_next_one_is_made(pipe, tmp_path):
    """All but the last frame of a chunk."""
    frames, taken = pictures(9 + 2 * CHUNK), tmp_path / "taken.mp4"
    target, reader = pipe
    with FrameWriter(target) as writer, taken.open("wb", buffering=0) as file:
        for start, end in ((0, 9), (9, 21), (21, 33)):
            writer.write(frames[start:end])
            assert select.select([reader], [], [], 120)[0], "nothing came"
            file.write(reader.read(1 << 16))
            assert frames_in(taken) == end - 1
    pictured = [frame.to_ndarray(format="rgb24") for frame in av.open(taken).decode(video=0)]
    assert np.abs(np.stack(pictured).astype(int) - frames[:32]).mean() < 12


def test_a_pipe_gives_the_same_bytes_again_and_all_frames(pipe, tmp_path):
    target, reader = pipe
    found = []
    for name in "ab":
        with FrameWriter(target) as writer:
            writer.write(pictures(9))
        found.append(reader.read(1 << 16))
        (tmp_path / name).write_bytes(found[-1])
        assert frames_in(tmp_path / name) == 9
    assert found[0] == found[1]


def test_a_reader_that_is_gone_is_noticed_with_the_next_chunks(pipe):
    target, reader = pipe
    made = []

    def write():
        with FrameWriter(target, keep_partial=True) as writer:
            reader.close()
            for _ in range(9):
                made.append(writer.write(pictures(CHUNK)))

    with pytest.raises(BrokenPipeError):
        write()
    assert len(made) <= 4


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("already", [True, False], ids=["a second one", "the first one"])
def test_an_interrupt_while_a_file_is_closed_waits_until_it_is_whole(tmp_path, monkeypatch, already):
    close, target = video._VideoFile.close, find_target(tmp_path / "cut.mp4")

    def interrupted(file):
        signal.raise_signal(signal.SIGINT)
        return close(file)

    monkeypatch.setattr(video._VideoFile, "close", interrupted)

    def write():
        with FrameWriter(target, keep_partial=True) as writer:
            writer.write(pictures(CHUNK))
            if already:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert frames_in(target.path) == CHUNK
    assert os.listdir(tmp_path) == ["cut.mp4"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
def test_a_container_is_asked_for_nothing_that_it_does_not_know(tmp_path, suffix, capfd, caplog):
    write_frames(np.zeros((2, 32, 48, 3), np.uint8), find_target(tmp_path / f"video{suffix}"))
    assert (capfd.readouterr().err, caplog.records) == ("", [])


@pytest.mark.parametrize("name", ["12:30.mp4", "file:walk.mp4"])
@pytest.mark.parametrize("partial", [False, True])
def test_a_name_with_a_colon_is_written_and_read_from_the_folder_one_is_in(tmp_path, monkeypatch, name, partial):
    monkeypatch.chdir(tmp_path)
    with FrameWriter(find_target(name), fps=10, keep_partial=partial) as writer:
        writer.write(pictures(3))
    assert os.listdir() == [name]
    assert len(list(colour_frames(name))) == 3
    assert frame_rate(name) == 10


def test_a_video_that_grows_can_be_watched_meanwhile(tmp_path):
    target = find_target(tmp_path / "a.mp4")
    with FrameWriter(target, keep_partial=True) as writer:
        for done in (9, 21, 33):
            writer.write(pictures(33)[done - 9 if done == 9 else done - 12 : done])
            wait_for(lambda done=done: frames_in(tmp_path / "a.part.mp4") == done - 1)
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert frames_in(target.path) == 33


def wait_for(condition) -> None:
    """A thread of its own encodes."""
    for _ in range(2400):
        with contextlib.suppress(av.FFmpegError):  # of a file that has no frames yet
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError("it did not come")


def test_a_growing_video_is_the_one_that_is_written_at_once(tmp_path):
    made = []
    for partial in (False, True):
        target = find_target(tmp_path / f"{partial}.mp4")
        with FrameWriter(target, keep_partial=partial) as writer:
            writer.write(pictures(9))
            writer.write(pictures(21)[9:])
        made.append(target.path.read_bytes())
    assert made[0] == made[1]


def test_png_files_that_come_one_by_one_are_there_at_once(tmp_path):
    with FrameWriter(find_target(tmp_path / "a"), keep_partial=True) as writer:
        writer.write(pictures(3))
        wait_for(lambda: sorted(os.listdir(tmp_path / "a")) == [f"frame_{index:05}.png" for index in range(3)])


def test_the_pictures_of_a_folder_come_in_the_order_of_their_numbers(tmp_path):
    """As `--output 'video/%d.png'` numbers them, and many programs."""
    frames = np.arange(12, dtype=np.uint8).repeat(16 * 16 * 3).reshape(12, 16, 16, 3)
    write_frames(frames, find_target(tmp_path / "%d.png"))
    assert [int(frame[0, 0, 0]) for frame in colour_frames(tmp_path)] == [*range(12)]
    Image.new("RGB", (7, 5)).save(tmp_path / "12.png")
    with pytest.raises(InputError, match=r"12.png: 7x5 pixels, but 0.png has 16x16; a video has one size"):
        list(colour_frames(tmp_path))


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.mov", "png"])
@pytest.mark.parametrize("partial", [False, True])
def test_a_disk_that_is_full_leaves_no_half_file(tmp_path, monkeypatch, name, partial):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    target = find_target(tmp_path / name)
    with pytest.raises(OSError, match="No space"), FrameWriter(target, keep_partial=partial) as writer:
        writer.write(pictures(3))
    left = [file.name for file in tmp_path.rglob("*") if file.is_file()]
    assert left == (["a.part.mp4"] if partial and name != "png" else [])


def test_png_files_that_cannot_be_written_whole_get_no_names_and_end_the_video(tmp_path, monkeypatch):
    """Nor do those of the parts that come after, which would leave a gap."""
    save = Image.Image.save

    def full(picture, file, **options):
        save(picture, file, **options)
        if file.name.startswith("frame_00004.png"):
            file.write_bytes(b"")
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    target = find_target(tmp_path / "a")
    writer = FrameWriter(target, keep_partial=True)

    def write():
        with writer:
            for _ in range(3):
                writer.write(pictures(3))

    with pytest.raises(OSError, match="No space") as error:
        write()
    assert sorted(os.listdir(target.path)) == [f"frame_{index:05}.png" for index in range(3)]
    assert (writer.parts, error.value.filename) == (1, str(target.path))
