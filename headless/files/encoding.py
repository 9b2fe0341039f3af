"""Encode frames as H.264, into a video file or in parts into a pipe."""

from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import require
from ...pipeline.images.colours import tag_bt709, video_frame
from .video_reader import absolute_path

CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""FFmpeg's container format for each suffix."""
RECIPE = "lingbot_world"
"""The metadata key of the run's record in a video or PNG file."""


class VideoEncoder:
    """An encoder that writes an H.264 video to `file`. Raises DependencyError without PyAV.

    suffix: selects the container, such as ".mp4"; `file` may end in .part.
    """

    def __init__(self, file: Path, suffix: str, fps: int, recipe: str = "") -> None:
        av = require("av", '"lingbot-world[cli]"')
        container = CONTAINERS[suffix.lower()]
        # Without the flag Matroska's tracks get random numbers.
        own = {"fflags": "+bitexact"} if container == "matroska" else {"movflags": "+faststart+use_metadata_tags"}
        self._container = av.open(absolute_path(file), "w", format=container, options=own)
        self._container.metadata.update({RECIPE: recipe} if recipe else {})
        self._stream = self._container.add_stream("libx264", rate=fps, options=_encoding())
        self._stream.pix_fmt = "yuv420p"
        tag_bt709(self._stream.codec_context)

    def write(self, frames: np.ndarray) -> None:
        """Encode and append frames, uint8 [F, H, W, 3]."""
        if not self._stream.is_open:
            self._stream.height, self._stream.width = frames.shape[1:3]
        for frame in frames:
            self._container.mux(self._stream.encode(video_frame(frame)))

    def close(self) -> None:
        self._container.mux(self._stream.encode())
        self._container.close()

    def abandon(self) -> None:
        """Close an incomplete file, without the frames that are still in the encoder."""
        self._container.close()


class PartEncoder:
    """An encoder that writes an H.264 video in parts to a pipe or a file. A written part can be played at once, except
    its last frame. Raises DependencyError without PyAV."""

    def __init__(self, pipe: IO[bytes], fps: int, preset: str = "medium", recipe: str = "") -> None:
        av = require("av", '"lingbot-world[cli]"')
        self._new_encoder = av.CodecContext.create
        self._options = {**_encoding(), "preset": preset}
        self.pipe, self._made, self._fps, self.frames = pipe, BytesIO(), fps, 0
        flags = "+frag_every_frame+empty_moov+default_base_moof+skip_trailer+use_metadata_tags"
        options = {"movflags": flags, "flush_packets": "1"}
        self._container = av.open(_WriteOnly(self._made), "w", format="mp4", options=options)
        self._container.metadata.update({RECIPE: recipe} if recipe else {})
        self._stream = self._container.add_stream("libx264", rate=fps, options=self._options)
        self._stream.pix_fmt = "yuv420p"
        tag_bt709(self._stream.codec_context)

    def write(self, frames: np.ndarray) -> None:
        """Encode and write frames, uint8 [F, H, W, 3], as one part of the video."""
        if not self._stream.is_open:
            self._stream.height, self._stream.width = frames.shape[1:3]
        # A flushed encoder cannot continue: each part gets a new one, with the settings of the stream's.
        encoder, like, packets = self._new_encoder("libx264", "w"), self._stream.codec_context, []
        encoder.width, encoder.height, encoder.pix_fmt = like.width, like.height, like.pix_fmt
        tag_bt709(encoder)
        encoder.framerate, encoder.time_base = Fraction(self._fps), Fraction(1, self._fps)
        encoder.flags, encoder.options = like.flags, self._options
        for pixels in frames:
            frame = video_frame(pixels)
            frame.pts, frame.time_base = self.frames, Fraction(1, self._fps)
            packets += encoder.encode(frame)
            self.frames += 1
        packets += encoder.encode()
        for packet in packets:
            packet.stream = self._stream
        self._container.mux(packets)
        self._send()

    def _send(self) -> None:
        """Move the MP4 muxer's buffered output to the pipe. If the muxer wrote to the pipe itself, it would hide the
        reason for a broken pipe."""
        self.pipe.write(self._made.getvalue())
        self.pipe.flush()
        self._made.seek(0)
        self._made.truncate()

    def close(self) -> None:
        self._container.close()
        self._send()


class _WriteOnly:
    """A file without `seek`, to which the muxer writes as to a pipe."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def _encoding() -> dict[str, str]:
    """Return libx264's options for reproducible output: without AVX-512, because that code reads uninitialised
    memory."""
    import torch

    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return {"crf": "17"} | ({"x264-params": "asm=avx2"} if avx512 else {})
