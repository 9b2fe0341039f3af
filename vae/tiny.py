"""The tiny decoder taew2_1 (architecture from TAEHV, MIT licence), which previews a latent faster than the VAE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import CheckpointError, InputError
from ..model.host_memory import upload
from ..weights.files import read_tensors
from ..weights.quantized import shape_differences
from .decoding import NOT_FINITE
from .network import LATENT_CHANNELS
from .weights import MEAN, STD, check_values, decode_weights

TINY_DECODER = "taew2_1"
STAGES = ((256, 3, 1), (128, 9, 2), (64, 15, 2))
"""The stages of the tiny decoder. Each has a channel count, the index of its first memory block in the tensor names,
and the number of output frames per input frame."""
LAST = 22
"""The index of the network's last layer in the tensor names."""
EXTRA_FIRST_FRAMES = 3
"""The number of output frames to drop for a video's first latent frame. The network outputs four frames, but the latent
frame encodes one."""
SCALED = "lighttae"
"""The text in a file name that marks a tiny decoder for denormalised latents. Other tiny decoders expect normalised
latents."""


def load_tiny_decoder(
    path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> TinyDecoder:
    """Load the tiny decoder from a `.pth` or `.safetensors` file of taew2_1 or lighttaew2_1. Raise CheckpointError if
    the file has other tensors, NaN or infinity."""
    stored = decode_weights(
        str(path), read_tensors(path), lambda name: name if name.startswith("decoder.") else None, _check
    )
    weights = {
        name: tensor.to(device, dtype, copy=True).contiguous(memory_format=torch.channels_last)
        if tensor.ndim == 4
        else tensor.to(device, dtype, copy=True)
        for name, tensor in stored.items()
    }
    check_values(str(path), weights)
    return TinyDecoder(weights, scaled=SCALED in Path(path).name.lower())


class TinyDecoder:
    """A small, approximate replacement of the VAE's decoder. Each instance decodes one video. Its latent frames may
    arrive in several calls of `decode`."""

    def __init__(self, weights: Mapping[str, Tensor], *, scaled: bool = False) -> None:
        """Create a decoder from a mapping of names to tensors, which must have been checked. `decode` always takes
        normalised latents; if `scaled`, `decode` denormalises them for the network."""
        self._weights, self._scaled = weights, scaled
        self._past: dict[int, Tensor] = {}
        self._first = True

    @property
    def device(self) -> torch.device:
        return self._weights["decoder.1.weight"].device

    @property
    def dtype(self) -> torch.dtype:
        return self._weights["decoder.1.weight"].dtype

    def anew(self) -> TinyDecoder:
        """Return a decoder for another video, with the same weights."""
        return TinyDecoder(self._weights, scaled=self._scaled)

    @torch.no_grad()
    def decode(self, latent: Tensor) -> Tensor:
        """Decode the video's next normalised latent frames [1, 16, f, h, w]. Return frames, float32 [1, 3, n, 8h, 8w]
        from 0 to 1. n is 4f, or 4f - 3 at the video's start. Raise InputError for other latent shapes."""
        if latent.ndim != 5 or latent.shape[:2] != (1, LATENT_CHANNELS):
            raise InputError(f"the latent is {list(latent.shape)}; the tiny decoder takes [1, 16, frames, h, w]")
        if not latent.shape[2]:
            return latent.new_empty(1, 3, 0, *(8 * side for side in latent.shape[3:]), dtype=torch.float32)
        frames = torch.cat([self._frames(each) for each in latent.unbind(2)])
        return frames.transpose(0, 1)[None]

    def _frames(self, latent: Tensor) -> Tensor:
        x = latent.to(self.device, torch.float32)
        if self._scaled:
            mean, std = upload(torch.tensor([MEAN, STD]), self.device)[..., None, None]
            x = x * std + mean
        x = torch.tanh(x / 3).mul(3).to(self.dtype, memory_format=torch.channels_last)
        x = F.relu_(self._conv(1, x))
        for _channels, block, grows in STAGES:
            for number in range(block, block + 3):
                x = self._memory_block(number, x)
            x = F.conv2d(F.interpolate(x, scale_factor=2.0), self._weights[f"decoder.{block + 4}.conv.weight"])
            x = x.reshape(grows * len(x), -1, *x.shape[2:]).contiguous(memory_format=torch.channels_last)
            x = self._conv(block + 5, x)
        frames = self._conv(LAST, F.relu_(x)).float().clamp_(0, 1)
        dropped, self._first = EXTRA_FIRST_FRAMES * self._first, False
        return frames[dropped:]

    def _memory_block(self, number: int, x: Tensor) -> Tensor:
        before = self._past.get(number)
        past = torch.cat([torch.zeros_like(x[:1]) if before is None else before, x[:-1]])
        self._past[number] = x[-1:].clone(memory_format=torch.preserve_format)
        y = torch.cat([x, past], 1)
        for layer in (0, 2, 4):
            name = f"decoder.{number}.conv.{layer}"
            y = F.conv2d(y, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"], padding=1)
            y = F.relu_(y) if layer < 4 else y
        return F.relu_(y + x)

    def _conv(self, number: int, x: Tensor) -> Tensor:
        name = f"decoder.{number}"
        return F.conv2d(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"), padding=1)


class PreviewDecoder:
    """A wrapper of a TinyDecoder with the interface of a VideoDecoder, so that either can decode a live video. `decode`
    does not take VideoDecoder's arguments `progress` and `last`."""

    def __init__(self, decoder: TinyDecoder) -> None:
        self._decoder = decoder
        self._finite: list[Tensor] = []

    @property
    def device(self) -> torch.device:
        return self._decoder.device

    def decode(self, latent: Tensor, *, non_blocking: bool = False) -> Tensor:
        """Decode the next latent frames [1, 16, f, h, w]. Return CPU frames, uint8 [n, H, W, 3]. With `non_blocking`,
        return before the GPU has finished: wait for the GPU and call `check` before reading the frames."""
        frames = self._decoder.decode(latent)[0].mul(255).round_().to(torch.uint8).permute(1, 2, 3, 0).contiguous()
        queued = non_blocking and self.device.type == "cuda"
        pixels = torch.empty(frames.shape, dtype=torch.uint8, pin_memory=queued).copy_(frames, non_blocking=queued)
        self._finite.append(latent.isfinite().all().to("cpu", non_blocking=queued))
        if not non_blocking:
            self.check()
        return pixels

    def check(self) -> None:
        """Raise InputError if a latent decoded since the last check was not finite."""
        finite, self._finite = all(self._finite), []
        if not finite:
            raise InputError(NOT_FINITE)


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tiny decoder's tensors, by name."""
    of_tensors: dict[str, tuple[int, ...]] = {}

    def convolution(number: str, out: int, channels: int, *, bias: bool = True, side: int = 3) -> None:
        of_tensors[f"decoder.{number}.weight"] = (out, channels, side, side)
        if bias:
            of_tensors[f"decoder.{number}.bias"] = (out,)

    convolution("1", STAGES[0][0], LATENT_CHANNELS)
    for (width, block, grows), after in zip(STAGES, (*(stage[0] for stage in STAGES[1:]), STAGES[-1][0]), strict=True):
        for number in range(block, block + 3):
            for layer, channels in ((0, 2 * width), (2, width), (4, width)):
                convolution(f"{number}.conv.{layer}", width, channels)
        convolution(f"{block + 4}.conv", grows * width, width, bias=False, side=1)
        convolution(str(block + 5), after, width, bias=False)
    convolution(str(LAST), 3, STAGES[-1][0])
    return of_tensors


def _check(source: str, found: Mapping[str, tuple[int, ...]]) -> None:
    if differences := shape_differences(found, shapes()):
        raise CheckpointError(
            f"{source}: not the tiny decoder {TINY_DECODER}: {differences}; download taew2_1 (.pth or .safetensors) "
            "or lighttaew2_1"
        )
