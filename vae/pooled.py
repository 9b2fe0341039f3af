"""The decoder on GPUs that have kernels of their own for it: no frame is copied to where a convolution takes it.

Every picture lies in memory as model/kernels/convolution.py says: [1, C, H, W] here is a view of it. The layers over
time that see pictures of one size keep their frames in one pool: two slots a layer, and one for the frame that is being
made. A layer writes it there, its convolution reads three slots, and the oldest frame's slot becomes free."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from threading import Thread
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from .network import EPSILON, Decoder
from .stripes import Stripe
from .weights import VAE

OVER_TIME = tuple(f"{layer}.weight" for layer in ("conv1", "residual.2", "residual.6", "time_conv", "head.2"))
_COMPILERS: dict[tuple[torch.device, int], Thread] = {}
"""Threads that compile the kernels for a GPU and a VAE's width."""


class PooledDecoder(Decoder):
    """A `Decoder` whose `past` holds the pools, [slots, C, H + 1, W + 1] each, channels last. Its numbers are those of
    `Decoder` but for rounding: what is added up is rounded once, and an enlarging convolution's kernel is four of 2x2
    pixels, the sums of what falls on the same pixel."""

    def __init__(self, vae: VAE, stripe: Stripe | None = None) -> None:
        from ..model.kernels import convolution

        super().__init__(vae.weights, stripe=stripe)
        self._kernels = convolution
        self._slots: dict[str, list[int]] = {}
        self._layers = Counter(_pool_of(name, weight) for name, weight in vae.weights.items() if _over_time(name))
        self._quarters, self._compiler = vae.quarters, (vae.device, vae.width)
        if vae.device.type == "cuda" and self._compiler not in _COMPILERS:
            _COMPILERS[self._compiler] = Thread(target=self._compile, daemon=True)
            _COMPILERS[self._compiler].start()

    def decode(self, latent: Tensor) -> Iterator[Tensor]:
        if self._compiler in _COMPILERS:
            _COMPILERS[self._compiler].join()
        return super().decode(latent)

    def _compile(self) -> None:
        """Kernels are compiled for the shapes of these weights, some seconds once, while others work."""
        layers = {self.weights[name].shape: name for name in self.weights if name in self._quarters or _over_time(name)}
        with suppress(Exception), torch.cuda.device(self._compiler[0]):  # decoding meets it again
            _convolution_hopper(self._compiler[0])
            for name in layers.values():
                weight, frames, side = self._quarters.get(name), 1, 2
                if weight is None:
                    weight, frames, side = _matrix(self.weights[name]), 3, self.weights[name].shape[-1]
                x = weight.new_zeros(4 * frames, weight.shape[1] // (frames * side**2))
                bias = self.weights[f"{name.removesuffix('weight')}bias"]
                self._kernels.convolve(x, frames * [0], weight, bias, (1, 1), side)
                self._kernels.rms_silu(x, x[0], EPSILON, torch.empty_like(x), (1, 1))

    def _residual(self, name: str, x: Tensor) -> Tensor:
        shortcut = f"{name}.shortcut"
        added = _rows(x)
        if f"{shortcut}.weight" in self.weights:
            added = F.linear(added, _matrix(self.weights[f"{shortcut}.weight"]), self.weights[f"{shortcut}.bias"])
        x = self._activated_conv(f"{name}.residual.0", f"{name}.residual.2", x)
        return self._remembering(f"{name}.residual.6", x, f"{name}.residual.3", added)

    def _activated_conv(self, norm: str, conv: str, x: Tensor) -> Tensor:
        return self._remembering(conv, x, norm)

    def _causal_conv(self, name: str, x: Tensor) -> Tensor:
        return self._remembering(name, x)

    def _remembering(self, name: str, x: Tensor, norm: str | None = None, added: Tensor | None = None) -> Tensor:
        """The layer's convolution over x, or over what `norm` and SiLU make of it, and the two frames before."""
        size, given, weight = (x.shape[2], x.shape[3]), _rows(x), self.weights[f"{name}.weight"]
        pool, slots = self._pool(name, weight, x)
        flat = pool.permute(0, 2, 3, 1).flatten(0, 2)
        room = flat[slots[2] * len(given) :][: len(given)]
        if norm is None:
            room.copy_(given)
        else:
            self._kernels.rms_silu(given, self.weights[f"{norm}.gamma"], EPSILON, room, size)
        starts, side = [slot * len(given) for slot in slots], weight.shape[-1]
        bias = self.weights[f"{name}.bias"]
        return _picture(self._convolved(flat, starts, _matrix(weight), bias, size, side, added), size)

    def _convolved(
        self, x: Tensor, starts: list[int], weight: Tensor, bias: Tensor, size: tuple[int, int], side: int,
        added: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """See kernels/convolution.py. Large pictures by the kernel in CUDA's own language, which loads a pixel less
        often."""
        ours = _convolution_hopper(x.device)
        if ours is not None and ours.suits(x, starts, weight, size, side):
            return ours.convolve(x, starts, weight, bias, size, added)
        return self._kernels.convolve(x, starts, weight, bias, size, side, added)

    def _pool(self, name: str, weight: Tensor, x: Tensor) -> tuple[Tensor, list[int]]:
        """The layer's pool, and the slots of its frames: the one before the last, the last, and the new one."""
        key = _pool_of(f"{name}.weight", weight)
        if key not in self.past:
            height, width = x.shape[2:]
            count = 2 * self._layers[key] + 1
            self.past[key] = [x.new_zeros(count, height + 1, width + 1, x.shape[1]).permute(0, 3, 1, 2)]
            self._slots[key] = list(range(count))
        free = self._slots[key]  # the last of them has held frames, the others are zeros
        before = self._slots.get(name) or [free.pop(0), free.pop(0)]
        slots = [*before, free.pop()]
        self._slots[name] = slots[1:]
        free.append(slots[0])
        return self.past[key][0], slots

    def _double_time(self, name: str, x: Tensor) -> Iterable[Tensor]:
        if f"{name}.weight" not in self.weights:
            return (x,)
        if name not in self._slots:
            self._slots[name] = []
            return (x,)
        return self._causal_conv(name, x).chunk(2, 1)

    def _doubled(self, name: str, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        weight, bias = self._quarters[f"{name}.weight"], self.weights[f"{name}.bias"]
        rows = self._kernels.convolve(_rows(x), [0], weight, bias, (height, width), 2)
        return _picture(rows, (2 * height, 2 * width))


def suits(vae: VAE) -> bool:
    """Whether the kernels compute this VAE where it is: in fp16 on a Hopper GPU, for which their blocks were chosen."""
    if vae.device.type != "cuda" or vae.dtype != torch.float16 or vae.width % 32 or not find_spec("triton"):
        return False
    return torch.cuda.get_device_capability(vae.device)[0] == 9 and _works(vae.device)


@cache
def _works(device: torch.device) -> bool:
    """Whether Triton compiles and runs here what the decoder asks of it; if not, that is logged."""
    try:
        from ..model.kernels import convolution

        x = torch.zeros(50, 32, device=device, dtype=torch.float16)
        convolution.convolve(x, [0], torch.zeros(32, 32, device=device, dtype=torch.float16), x[0], (4, 4), 1)
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:
        logging.warning("the VAE decodes in plain torch, slower: %s", reason)
        return False
    return True


@cache
def _convolution_hopper(device: torch.device) -> ModuleType | None:
    """kernels/convolution_hopper.py, if it is compiled and right here; if it should be and is not, that is logged."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    from ..model.kernels import convolution_hopper
    from ..model.kernels.hopper import is_right

    generator = torch.Generator(device).manual_seed(0)
    frames, weight = (torch.randn(shape, device=device, generator=generator).half()
                      for shape in ((3, 32, 20, 24), (96, 96, 3, 3)))  # fmt: skip
    rows, bias = F.pad(frames, (0, 1, 0, 1)).permute(0, 2, 3, 1).flatten(0, 2).contiguous(), weight[:, 0, 0, 0].clone()
    want, starts = F.conv2d(frames.flatten(0, 1)[None].float(), weight.float(), bias.float(), padding=1), [0, 525, 1050]
    made = partial(convolution_hopper.convolve, rows, starts, _matrix(weight).contiguous(), bias, (20, 24))
    right = is_right("the VAE decodes", lambda: _picture(made(), (20, 24)), want)
    return convolution_hopper if right else None


def _over_time(name: str) -> bool:
    return name.startswith("decoder.") and name.endswith(OVER_TIME)


def _pool_of(name: str, weight: Tensor) -> str:
    """The layers over time of one stage and number of channels share a pool."""
    parts = name.split(".")
    stage = int(parts[2]) // 4 if parts[1] == "upsamples" else 3 if parts[1] == "head" else 0
    return f"stage {stage}, {weight.shape[1] // 3} channels"


def _matrix(weight: Tensor) -> Tensor:
    """[out, h * w * in] of a kernel [out, in, h, w] that lies channels last, as a view."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def _picture(rows: Tensor, size: tuple[int, int]) -> Tensor:
    """[1, C, H, W] of rows [(H + 1) * (W + 1), C], as a view."""
    height, width = size
    return rows.view(height + 1, width + 1, -1)[:height, :width].permute(2, 0, 1)[None]


def _rows(x: Tensor) -> Tensor:
    """The rows of such a view, or of a part of its channels; of another picture a copy in this form."""
    height, width = x.shape[2:]
    if x.stride(1) == 1 and x.stride(2) == (width + 1) * x.stride(3):
        return x.as_strided(((height + 1) * (width + 1), x.shape[1]), (x.stride(3), 1))
    return F.pad(x[0].permute(1, 2, 0), (0, 0, 0, 1, 0, 1)).flatten(0, 1)
