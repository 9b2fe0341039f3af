"""The network of Wan 2.1's VAE (arXiv 2503.20314, section 4.1), which processes one frame at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.ops.pointwise import rms_silu
from .splitting import Stripe

LATENT_CHANNELS = 16
EPSILON = 1e-24  # the norm of a pixel of zeros is zeros, not NaN


class Network:
    """The base class of the VAE's encoder and decoder: their common layers, and their state for one video.

    past: by layer name, the list of a temporal layer's last input frames, each [1, C, H, W].
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights, self.past = weights, dict[str, list[Tensor]]()

    def _conv(self, name: str, x: Tensor, stride: int = 1, padding: int | None = None) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.conv2d(x, weight, bias, stride, weight.shape[-1] // 2 if padding is None else padding)

    def _causal_conv(self, name: str, x: Tensor) -> Tensor:
        before = self.past.get(name) or 2 * [torch.zeros_like(x)]
        frames = [*before, x]
        self.past[name] = frames[1:]
        return self._conv(name, torch.cat(frames, 1))

    def _activated_conv(self, norm: str, conv: str, x: Tensor) -> Tensor:
        x = self._activated(norm, x)
        return self._causal_conv(conv, x)

    def _activated(self, norm: str, x: Tensor) -> Tensor:
        pixels = x.movedim(1, -1)
        activated = rms_silu(pixels.flatten(0, 2), self.weights[f"{norm}.gamma"], EPSILON)
        return activated.view(pixels.shape).movedim(-1, 1)

    def _residual(self, name: str, x: Tensor) -> Tensor:
        # Nested calls and unrolled loops over blocks, so that no name holds a tensor longer than needed.
        change = self._activated_conv(
            f"{name}.residual.3",
            f"{name}.residual.6",
            self._activated_conv(f"{name}.residual.0", f"{name}.residual.2", x),
        )
        return change.add_(self._conv(f"{name}.shortcut", x) if f"{name}.shortcut.weight" in self.weights else x)

    def _middle(self, side: str, x: Tensor) -> Tensor:
        x = self._residual(f"{side}.middle.0", x)
        x = self._attention(f"{side}.middle.1", x)
        return self._residual(f"{side}.middle.2", x)

    def _attention(self, name: str, x: Tensor) -> Tensor:
        gamma = self.weights[f"{name}.norm.gamma"]
        qkv = self._conv(f"{name}.to_qkv", F.rms_norm(x.movedim(1, -1), gamma.shape, gamma, EPSILON).movedim(-1, 1))
        query, key, value = qkv.flatten(2).transpose(1, 2)[None].chunk(3, dim=-1)
        out = F.scaled_dot_product_attention(query, key, value)[0].transpose(1, 2).unflatten(2, x.shape[2:])
        return self._conv(f"{name}.proj", out).add_(x)


class Decoder(Network):
    """A VAE decoder. It decodes full frames, or only the band `stripe` of rows or columns of every frame."""

    def __init__(self, weights: Mapping[str, Tensor], stripe: Stripe | None = None) -> None:
        super().__init__(weights)
        self._stripe = stripe

    def decode(self, latent: Tensor) -> Iterator[Tensor]:
        """Yield the frames [1, 3, 8h, 8w], about -1 to 1, of the next denormalised latent frame [1, 16, h, w]. A
        video's first latent frame yields one frame, others four."""
        x = self._causal_conv("decoder.conv1", self._conv("conv2", latent))
        return self._stage(0, self._middle("decoder", x))

    def _stage(self, index: int, x: Tensor) -> Iterator[Tensor]:
        """Yield the frames that the stage at layer `index` and all later stages compute from x."""
        for block in range(3):
            x = self._residual(f"decoder.upsamples.{index + block}", x)
        name = f"decoder.upsamples.{index + 3}"
        if f"{name}.resample.1.weight" not in self.weights:
            picture = self._activated_conv("decoder.head.0", "decoder.head.2", x)
            yield picture if self._stripe is None else self._stripe.own(picture)
            return
        for frame in self._double_time(f"{name}.time_conv", x):
            yield from self._stage(index + 4, self._upsample(index + 4, f"{name}.resample.1", frame))

    def _upsample(self, index: int, name: str, x: Tensor) -> Tensor:
        """Return x upsampled by 2, then convolved by the convolution `name`. If this decoder decodes a stripe, crop the
        result to the stripe and its margin. `index`, the next stage's first layer, determines the resolution."""
        x = self._doubled(name, x)
        if self._stripe is None:
            return x
        return self._stripe.crop(x, 2 ** (index // 4)).contiguous(memory_format=torch.channels_last)

    def _doubled(self, name: str, x: Tensor) -> Tensor:
        return self._conv(name, F.interpolate(x, scale_factor=2.0, mode="nearest"))

    def _double_time(self, name: str, x: Tensor) -> Iterable[Tensor]:
        """Double the frame rate: return two feature maps for x, computed by the temporal convolution `name`. Return
        only x if the weights lack this convolution, or for the video's first frame."""
        if f"{name}.weight" not in self.weights:
            return (x,)
        if name not in self.past:
            self.past[name] = 2 * [torch.zeros_like(x)]
            return (x,)
        return (half.contiguous(memory_format=torch.channels_last) for half in self._causal_conv(name, x).chunk(2, 1))


class Encoder(Network):
    """The VAE's encoder for the frames of one video. For repeated frames, pass the same tensor object each time. A
    layer reuses its last result after enough repetitions to fill its temporal receptive field."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__(weights)
        self._repeats: dict[str, tuple[Tensor, int]] = {}
        self._results: dict[str, Tensor] = {}

    def encode(self, frame: Tensor) -> Tensor | None:
        """Encode a frame [1, 3, H, W]. Return the latent frame [1, 16, H / 8, W / 8], not normalised, or None if more
        frames are needed."""
        x = frame
        for stage in range(3):
            halved = self._halve_time(stage, self._halve_size(stage, x))
            if halved is None:
                return None
            x = halved
        return self._unless_repeated("encoder.head", self._repeated("encoder.head", x) > 2 * 9 + 1, self._finish, x)

    def _halve_size(self, stage: int, x: Tensor) -> Tensor:
        name = f"encoder.downsamples.{3 * stage + 2}.resample.1"
        convolutions = 5 if stage == 0 else 4  # each stores two frames
        return self._unless_repeated(name, self._repeated(name, x) > 2 * convolutions + 1, self._stage, stage, x)

    def _stage(self, stage: int, x: Tensor) -> Tensor:
        if stage == 0:
            x = self._causal_conv("encoder.conv1", x)
        for block in range(2):
            x = self._residual(f"encoder.downsamples.{3 * stage + block}", x)
        return self._conv(f"encoder.downsamples.{3 * stage + 2}.resample.1", F.pad(x, (0, 1, 0, 1)), 2, 0)

    def _halve_time(self, stage: int, x: Tensor) -> Tensor | None:
        """Halve the frame rate of a video's successive feature maps x by the temporal convolution of the encoder's
        stage `stage`. Return the first x of a video unchanged. Of each later pair, return None for the first x, and the
        merged map for the second. Without temporal convolution, return x."""
        name = f"encoder.downsamples.{3 * stage + 2}.time_conv"
        if f"{name}.weight" not in self.weights:
            return x
        repeated = self._repeated(name, x) > 4  # two frames ago the layer had seen three of these
        frames = [*self.past.get(name, ()), x]
        self.past[name] = frames if len(frames) == 2 else [x]
        if len(frames) < 3:
            return x if len(frames) == 1 else None
        return self._unless_repeated(name, repeated, self._conv, name, torch.cat(frames, 1))

    def _finish(self, x: Tensor) -> Tensor:
        for block in (9, 10):
            x = self._residual(f"encoder.downsamples.{block}", x)
        x = self._activated_conv("encoder.head.0", "encoder.head.2", self._middle("encoder", x))
        return self._conv("conv1", x)[:, :LATENT_CHANNELS]

    def _repeated(self, name: str, x: Tensor) -> int:
        """Return how many times in a row the layer `name` has received the same tensor object x. The count includes
        this call."""
        last, times = self._repeats.get(name, (None, 0))
        self._repeats[name] = x, times + 1 if x is last else 1
        return self._repeats[name][1]

    def _unless_repeated(self, name: str, repeated: bool, step: Callable[..., Tensor], *arguments: object) -> Tensor:
        if not repeated:
            self._results[name] = step(*arguments)
        return self._results[name]
