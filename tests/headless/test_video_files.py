"""Videos as phones and cameras store them, and as players show them."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from lingbot_world.errors import InputError
from lingbot_world.headless.files import video_reader
from lingbot_world.headless.files.encoding import VideoEncoder
from lingbot_world.headless.files.pictures import colour_frames, frame_rate, grey_frames
from lingbot_world.headless.files.recipe import read_recipe
from lingbot_world.headless.files.video_reader import video_notes

av = pytest.importorskip("av")

HEIGHT, WIDTH = 96, 160
TURNS = {
    "a quarter right": ([0, 1, -1, 0], lambda shown: np.rot90(shown)),
    "a quarter left": ([0, -1, 1, 0], lambda shown: np.rot90(shown, -1)),
    "half": ([-1, 0, 0, -1], lambda shown: np.rot90(shown, 2)),
    "mirrored": ([-1, 0, 0, 1], lambda shown: shown[:, ::-1]),
    "upside down": ([1, 0, 0, -1], lambda shown: shown[::-1]),
    "transposed": ([0, 1, 1, 0], lambda shown: shown.swapaxes(0, 1)),
    "transversed": ([0, -1, -1, 0], lambda shown: np.rot90(shown, 2).swapaxes(0, 1)),
}


def picture(number=0) -> np.ndarray:
    """Four patches, the upper left of which is bright, and a bar that tells the frame's number."""
    shown = np.full((HEIGHT, WIDTH), 60, np.uint8)
    shown[: HEIGHT // 2, : WIDTH // 2] = 200
    shown[HEIGHT // 2 :, WIDTH // 2 :] = 120
    shown[-16:, :16] = 10 * number
    return shown


def write(file, greys, times=None, aspect=None, codec="libx264", pixels="yuv420p", transfer=None, tags=None):
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=24)
        stream.height, stream.width = greys[0].shape[:2]
        stream.pix_fmt = pixels
        stream.metadata.update(tags or {})
        if codec == "libx264":
            stream.options = {"crf": "4", "preset": "veryfast"}
        if aspect is not None:
            stream.sample_aspect_ratio = aspect
        if transfer is not None:
            stream.codec_context.color_trc = transfer
        if times is not None:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for number, grey in enumerate(greys):
            array = grey if grey.ndim == 3 else np.repeat(grey[..., None], 3, axis=2)
            kind = "rgba" if array.shape[2] == 4 else "rgb24"
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format=kind)
            if times is not None:
                frame.pts, frame.time_base = round(1000 * times[number]), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def turn(file, matrix, height, width) -> None:
    """Writes a display matrix into an MP4's track header."""
    data = bytearray(file.read_bytes())
    fields = data.index(b"tkhd") + 8
    times = 32 if data[fields - 4] == 1 else 20
    a, b, c, d = (value << 16 for value in matrix)
    corner = [(height if c < 0 else width if a < 0 else 0) << 16, (width if b < 0 else height if d < 0 else 0) << 16]
    struct.pack_into(">9i", data, fields + times + 16, a, b, 0, c, d, 0, *corner, 1 << 30)
    file.write_bytes(data)


@pytest.mark.parametrize("name", TURNS)
def test_display_matrices(tmp_path, name):
    matrix, store = TURNS[name]
    stored = np.ascontiguousarray(store(picture()))
    write(tmp_path / "a.mp4", [stored] * 3)
    turn(tmp_path / "a.mp4", matrix, *stored.shape)
    for frames in (grey_frames, colour_frames):
        (first, *_) = frames(tmp_path / "a.mp4")
        assert first.shape[:2] == (HEIGHT, WIDTH)
        grey = first if first.ndim == 2 else first[..., 1]
        assert np.abs(grey.astype(int) - picture())[8:40, 8:72].max() < 12
        assert np.abs(grey.astype(int) - picture())[56:72, 88:150].max() < 12
    assert "rotated by its display matrix" in video_notes(tmp_path / "a.mp4")[0]


def test_pixels_that_are_not_square(tmp_path):
    write(tmp_path / "a.mp4", [picture()] * 3, aspect=Fraction(4, 3))
    assert next(iter(grey_frames(tmp_path / "a.mp4"))).shape == (HEIGHT, round(WIDTH * 4 / 3))
    assert "1.333 times as wide" in video_notes(tmp_path / "a.mp4")[0]


def test_a_turn_and_pixels_that_are_not_square(tmp_path):
    write(tmp_path / "a.mp4", [np.ascontiguousarray(np.rot90(picture()))] * 3, aspect=Fraction(2, 1))
    turn(tmp_path / "a.mp4", [0, 1, -1, 0], WIDTH, HEIGHT)
    assert next(iter(grey_frames(tmp_path / "a.mp4"))).shape == (2 * HEIGHT, WIDTH)


def numbers(file) -> list[int]:
    return [round(float(frame[-8, 8]) / 10) for frame in grey_frames(file)]


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_uneven_times_become_even(tmp_path, suffix):
    times = np.array([0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14]) / 20
    file = tmp_path / f"a.{suffix}"
    write(file, [picture(number) for number in range(12)], times)
    found = numbers(file)
    assert len(found) == 15
    assert found == sorted(found)
    assert found[:5] == [0, 1, 2, 3, 4]
    assert found[-7:] == [5, 6, 7, 8, 9, 10, 11]
    assert frame_rate(file) == pytest.approx(20, rel=0.01)
    assert "frame rate varies" in video_notes(file)[0]


@pytest.mark.parametrize("rate", [24, 29.97])
def test_even_times_stay(tmp_path, rate):
    write(tmp_path / "a.mkv", [picture(number) for number in range(12)], np.arange(12) / rate)
    assert numbers(tmp_path / "a.mkv") == list(range(12))
    assert video_notes(tmp_path / "a.mkv") == []


def test_transparent_video_is_put_on_white(tmp_path):
    rgba = np.dstack([np.repeat(picture()[..., None], 3, 2), np.full((HEIGHT, WIDTH), 255, np.uint8)])
    rgba[:16, :, 3] = 0
    write(tmp_path / "a.mov", [rgba] * 2, codec="qtrle", pixels="argb")
    frame = next(iter(colour_frames(tmp_path / "a.mov")))
    assert (frame[:16] == 255).all()
    assert tuple(frame[24, 24]) == (200, 200, 200)
    assert next(iter(grey_frames(tmp_path / "a.mov")))[4, 4] == 255
    assert "put on white" in video_notes(tmp_path / "a.mov")[0]


def test_hdr_is_reported(tmp_path):
    write(tmp_path / "a.mkv", [picture()] * 2, transfer=16)
    notes = video_notes(tmp_path / "a.mkv")
    assert notes == ["The video is HDR (PQ), which is not mapped: its frames look pale."]


def test_frames_of_two_sizes_are_refused(tmp_path):
    """As streams have whose quality adapts to the line."""
    for name, side in (("a.ts", 96), ("b.ts", 64)):
        write(tmp_path / name, [picture()[:side]] * 3)
    (tmp_path / "a.ts").write_bytes((tmp_path / "a.ts").read_bytes() + (tmp_path / "b.ts").read_bytes())
    with pytest.raises(InputError, match="160x96 pixels, and 160x64 after 3 frames"):
        list(colour_frames(tmp_path / "a.ts"))


def test_two_views_are_reported(tmp_path):
    write(tmp_path / "a.mkv", [picture()] * 2, tags={"stereo_mode": "left_right"})
    assert any("3D, with a view for each eye" in note for note in video_notes(tmp_path / "a.mkv"))


def test_webms_alpha_is_reported(tmp_path):
    """FFmpeg's own decoders of VP8 and VP9 leave it out."""
    shown = np.dstack([np.repeat(picture()[..., None], 3, 2), np.full((HEIGHT, WIDTH), 100, np.uint8)])
    write(tmp_path / "v.webm", [shown] * 3, codec="libvpx-vp9", pixels="yuva420p")
    assert any("transparent in places, which is not read" in note for note in video_notes(tmp_path / "v.webm"))


@pytest.mark.parametrize("size", [(720, 1280), (96, 128)])
def test_colours_are_a_players_with_tags_and_without(tmp_path, size):
    """Players take a video without tags for BT.709 from 720 lines on. A video of the command has tags."""
    red = np.zeros((2, *size, 3), np.uint8)
    red[..., 0] = 255
    whole = VideoEncoder(tmp_path / "ours.mp4", ".mp4", 16)
    whole.write(red)
    whole.close()
    with av.open(str(tmp_path / "ours.mp4")) as container:
        frame = next(container.decode(video=0))
        assert (frame.colorspace, frame.color_primaries, frame.color_trc, frame.color_range) == (1, 1, 1, 1)
    with av.open(str(tmp_path / "untagged.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=16, options={"crf": "5"})
        stream.height, stream.width = size
        taken = "ITU709" if size[0] >= 720 else "ITU601"
        frames = (av.VideoFrame.from_ndarray(each, format="rgb24") for each in red)
        for frame in (each.reformat(format="yuv420p", dst_colorspace=taken) for each in frames):
            frame.colorspace = 2
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    for name in ("ours.mp4", "untagged.mp4"):
        assert np.abs(next(iter(colour_frames(tmp_path / name)))[8, 8].astype(int) - [255, 0, 0]).max() <= 5, name


def test_a_broken_time_stamp_is_no_endless_video(tmp_path):
    write(tmp_path / "a.mkv", [picture(number) for number in range(4)], times=[0, 0.04, 0.08, 9000])
    with pytest.raises(InputError, match="time stamps jump from 0.08 to 9000 s"):
        list(colour_frames(tmp_path / "a.mkv"))


def test_a_title_in_another_encoding_is_no_fault(tmp_path):
    file = tmp_path / "a.mkv"
    write(file, [picture(number) for number in range(3)], tags={"title": "Ferien in Koeln"})
    file.write_bytes(file.read_bytes().replace(b"Koeln", "Kölln".encode("latin-1")))
    assert len(list(colour_frames(file))) == 3
    assert (frame_rate(file), video_notes(file)) == (24, [])
    with pytest.raises(InputError, match="no record of a run"):
        read_recipe(file)


def test_a_stream_is_not_read_after_its_file_is_closed(tmp_path, monkeypatch):
    """Its memory is freed then, and what it says is often still there, and sometimes is not."""

    class Guarded:
        def __init__(self, stream, container):
            vars(self).update(stream=stream, container=container)

        def __getattr__(self, name):
            assert self.container.open, f"{name} is read after the end"
            return getattr(self.stream, name)

    class Opened:
        def __init__(self, path):
            self.inside, self.open = av.open(str(path)), True
            self.streams = self

        def best(self, kind):
            return Guarded(self.inside.streams.best(kind), self)

        def demux(self, guarded):
            return self.inside.demux(guarded.stream)

        def decode(self, guarded):
            return self.inside.decode(guarded.stream)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.open = False
            self.inside.close()

    write(tmp_path / "a.mkv", [picture(number) for number in range(4)], times=[0, 0.04, 0.08, 0.3])
    monkeypatch.setattr(video_reader, "open_video", Opened)
    assert len(list(colour_frames(tmp_path / "a.mkv"))) == 9
    assert frame_rate(tmp_path / "a.mkv") == pytest.approx(25)
    assert "frame rate varies" in video_notes(tmp_path / "a.mkv")[0]
