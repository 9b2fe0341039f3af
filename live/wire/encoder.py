"""The encoding of a walk's frames in the format that a client has chosen."""

from __future__ import annotations

from fractions import Fraction
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from ...errors import require
from ...pipeline.images.colours import tag_bt709, video_frame
from .protocol import Output

CONTENT_TYPES = {"raw": "application/x-raw-rgb", "webp": "image/webp", "jpeg": "image/jpeg", "h264": "video/h264"}
KEY_FRAMES = 64
"""The maximum number of frames from one H.264 key frame to the next."""


class Encoder:
    """An encoder of frames for one client. Calls of `encode` must not overlap. H.264 without PyAV raises
    DependencyError."""

    def __init__(self, output: Output, fps: float) -> None:
        self.output, self._fps = output, fps
        self._stream: Any = None
        if output.format == "h264":
            require("av", '"lingbot-world[live]"')

    def encode(self, pixels: np.ndarray) -> tuple[dict[str, Any], bytes]:
        """Return (header, data) for frames, uint8 [n, H, W, 3], reduced to the output's width. The header has their
        format, size and lengths in bytes."""
        pixels = self._resize(pixels)
        count, height, width = pixels.shape[:3]
        name = self.output.format
        header = {
            "content_type": CONTENT_TYPES[name],
            "num_frames": count,
            "width": width,
            "height": height,
            "encoding": name,
            "channels": 3,
        }
        if name == "raw":
            payload = pixels.tobytes()
            sizes = {"bytes_per_frame": 3 * width * height, "raw_size": len(payload)}
            return header | {"format": "rgb24"} | sizes, payload
        parts = self._h264(pixels) if name == "h264" else [self._image(frame) for frame in pixels]
        header |= {
            "format": "h264_annexb" if name == "h264" else name,
            "payload_lengths": [len(part) for part in parts],
        }
        return header, b"".join(parts)

    def _resize(self, pixels: np.ndarray) -> np.ndarray:
        height, width = pixels.shape[1:3]
        if not self.output.width or width <= self.output.width:
            return pixels
        across = max(2, self.output.width // 2 * 2)
        size = across, max(2, round(height * across / width) // 2 * 2)
        return np.stack([np.array(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR)) for frame in pixels])

    def _image(self, frame: np.ndarray) -> bytes:
        file, options = BytesIO(), {"quality": self.output.quality}
        if self.output.format == "webp":
            Image.fromarray(frame).save(file, "WEBP", method=0, **options)
        else:
            Image.fromarray(frame).save(file, "JPEG", subsampling=0 if self.output.quality >= 90 else 2, **options)
        return file.getvalue()

    def _h264(self, pixels: np.ndarray) -> list[bytes]:
        """Return one H.264 access unit (Annex B) per frame, decodable without later frames."""
        if self._stream is None:
            self._stream = self._new_stream(*pixels.shape[1:3])
        units = []
        for frame in pixels:
            packets = self._stream.encode(video_frame(frame))
            units.append(b"".join(bytes(packet) for packet in packets))
        return units

    def _new_stream(self, height: int, width: int) -> Any:
        import av

        stream = av.CodecContext.create("libx264", "w")
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        tag_bt709(stream)
        stream.framerate = Fraction(self._fps).limit_denominator(1000)
        stream.time_base = 1 / stream.framerate
        crf = str(round(40 - 0.25 * self.output.quality))  # quality 90 gives crf 18
        stream.options = {
            "preset": "ultrafast",
            "tune": "zerolatency",
            "crf": crf,
            "profile": "baseline",
            "x264-params": f"keyint={KEY_FRAMES}:repeat-headers=1",
        }
        return stream
