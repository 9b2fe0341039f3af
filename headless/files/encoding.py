"""Frames as H.264, as a whole video or part by part."""

from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import require
from .video_reader import on_disk

CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""By the suffixes of videos."""
RECIPE = "lingbot_world"
"""The key in a video's or a PNG file's metadata under which the record of its run is kept, as JSON."""


class WholeVideo:
    """A video in a file, for a name with that suffix."""

    def __init__(self, file: Path, suffix: str, fps: int, recipe: str = "") -> None:
        av = require("av", '"lingbot-world[cli]"')
        self._frame = av.VideoFrame.from_ndarray
        container = CONTAINERS[suffix.lower()]
        # Matroska's tracks get random numbers without the flag.
        own = {"fflags": "+bitexact"} if container == "matroska" else {"movflags": "+faststart+use_metadata_tags"}
        self._container = av.open(on_disk(file), "w", format=container, options=own)
        self._container.metadata.update({RECIPE: recipe} if recipe else {})
        self._stream = self._container.add_stream("libx264", rate=fps, options=_encoding())
        self._stream.pix_fmt = "yuv420p"

    def write(self, frames: np.ndarray) -> None:
        """Encodes frames uint8 [F, H, W, 3]."""
        if not self._stream.is_open:
            self._stream.height, self._stream.width = frames.shape[1:3]
        for frame in frames:
            self._container.mux(self._stream.encode(self._frame(frame, format="rgb24")))

    def close(self) -> None:
        """Writes what is left."""
        self._container.mux(self._stream.encode())
        self._container.close()

    def abandon(self) -> None:
        """Closes the file as it is."""
        self._container.close()


class VideoParts:
    """A video into a pipe or a file: each part can be played when it is written.

    libx264 looks 40 frames ahead, and cannot go on once it was asked for the last of them. So each part gets an encoder
    of its own and begins with a key frame. The container's writer closes a frame's fragment when the next frame comes:
    the last frame of a part waits for the part that follows."""

    def __init__(self, pipe: IO[bytes], fps: int, preset: str = "medium", recipe: str = "") -> None:
        av = require("av", '"lingbot-world[cli]"')
        self._frame, self._new_encoder = av.VideoFrame.from_ndarray, av.CodecContext.create
        self._options = {**_encoding(), "preset": preset}
        self._pipe, self._made, self._fps, self.frames = pipe, BytesIO(), fps, 0
        flags = "+frag_every_frame+empty_moov+default_base_moof+skip_trailer+use_metadata_tags"
        options = {"movflags": flags, "flush_packets": "1"}
        self._container = av.open(_Written(self._made), "w", format="mp4", options=options)
        self._container.metadata.update({RECIPE: recipe} if recipe else {})
        self._stream = self._container.add_stream("libx264", rate=fps, options=self._options)
        self._stream.pix_fmt = "yuv420p"

    def write(self, frames: np.ndarray) -> None:
        """Encodes frames uint8 [F, H, W, 3], a part."""
        if not self._stream.is_open:
            self._stream.height, self._stream.width = frames.shape[1:3]
        # An encoder like the stream's own, which only writes the video's header.
        encoder, like, packets = self._new_encoder("libx264", "w"), self._stream.codec_context, []
        encoder.width, encoder.height, encoder.pix_fmt = like.width, like.height, like.pix_fmt
        encoder.framerate, encoder.time_base = Fraction(self._fps), Fraction(1, self._fps)
        encoder.flags, encoder.options = like.flags, self._options
        for pixels in frames:
            frame = self._frame(pixels, format="rgb24")
            frame.pts, frame.time_base = self.frames, Fraction(1, self._fps)
            packets += encoder.encode(frame)
            self.frames += 1
        packets += encoder.encode()
        for packet in packets:
            packet.stream = self._stream
        self._container.mux(packets)
        self._send()

    def _send(self) -> None:
        """What the container's writer has made goes into the pipe. It cannot write there itself, since it does not tell
        why a pipe is broken."""
        self._pipe.write(self._made.getvalue())
        self._pipe.flush()
        self._made.seek(0)
        self._made.truncate()

    def close(self) -> None:
        """Sends what is left."""
        self._container.close()
        self._send()


class _Written:
    """A file that can only be written to, like a pipe, so that nobody goes back in it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def _encoding() -> dict[str, str]:
    """Options of libx264 by which the same frames become the same bytes. Its AVX-512 code (for macroblock trees) reads
    memory that it has not written, so that frame types and sizes depend on what lay there; its AVX2 code does not."""
    import torch

    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return {"crf": "17"} | ({"x264-params": "asm=avx2"} if avx512 else {})
