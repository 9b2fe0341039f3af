"""The VAE's decoder with convolution kernels that read stored frames in place (see model/kernels/convolution.py)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from threading import Thread
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.choice.card import card_of
from ..model.choice.table import KITCHEN, OURS, TRITON, serves, triton_loads
from ..model.choice.trials import Size
from .convolutions import (
    SLOT_COLUMNS,
    KitchenDecoder,
    convolution_kernel,
    convolve_by_hopper,
    exact_convolution,
    matrix,
    random_convolution,
    unpad,
)
from .network import EPSILON, Decoder
from .recording import Recording
from .slots import Slots, layers_in_order
from .splitting import Stripe
from .weights import VAE

TEMPORAL_LAYERS = tuple(f"{layer}.weight" for layer in ("conv1", "residual.2", "residual.6", "time_conv", "head.2"))
_COMPILERS: dict[tuple[torch.device, int], Thread] = {}
"""The background threads that compile kernels, by GPU and VAE width."""


class PooledDecoder(Decoder):
    """A `Decoder` that stores the last input frames of its temporal layers in pools, tensors [frames, C, H + 1, W + 1],
    channels last. The extra row and column are zero padding. The results differ from those of `Decoder` by rounding
    only."""

    _next_slots: Iterator[Tensor]  # the slots of the next layers

    def __init__(self, vae: VAE, stripe: Stripe | None = None, *, recorded: bool = False) -> None:
        """Create a decoder of full frames, or of one `stripe` of each frame. If `recorded`, `decode` records and
        replays a CUDA graph. The caller must then not replace the tensors in `self.past`."""
        from ..model.kernels import convolution

        super().__init__(vae.weights, stripe=stripe)
        self._kernels, self._quarters = convolution, vae.quarters
        self._pools = {
            name.removesuffix(".weight"): _pool_of(name, weight)
            for name, weight in vae.weights.items()
            if _is_temporal(name)
        }
        self._slots = Slots(self._pools)
        self._first, self._orders = True, {first: layers_in_order(vae.weights, first) for first in (True, False)}
        self._table = torch.zeros(len(self._orders[False]), SLOT_COLUMNS, dtype=torch.int32, device=vae.device)
        self.recording = Recording(self._frames_kept) if recorded else None
        self._compiler = vae.device, vae.width
        if vae.device.type == "cuda" and self._compiler not in _COMPILERS:
            _COMPILERS[self._compiler] = Thread(target=self._compile, daemon=True)
            _COMPILERS[self._compiler].start()

    def decode(self, latent: Tensor) -> Iterator[Tensor]:
        if self._compiler in _COMPILERS:
            _COMPILERS[self._compiler].join()
        self._first = not self.past
        self._upload_slots([self._slots.take(layer) for layer in self._orders[self._first]])
        if self._first or self.recording is None:
            return self._computed(latent)
        return self.recording.decode(self._computed, latent)

    def _upload_slots(self, slots: list[list[int]]) -> None:
        """Copy the slot numbers of each layer's frames to the GPU, in the layers' order, without waiting."""
        rows = torch.tensor([[*each, 0] for each in slots], dtype=torch.int32)
        if self._table.device.type == "cuda":
            rows = rows.pin_memory()
        self._table[: len(slots)].copy_(rows, non_blocking=True)

    def _frames_kept(self) -> list[Tensor]:
        return [pool for pools in self.past.values() for pool in pools]

    def _computed(self, latent: Tensor) -> Iterator[Tensor]:
        self._next_slots = iter(self._table)
        return super().decode(latent)

    def _compile(self) -> None:
        layers = {
            self.weights[name].shape: name for name in self.weights if name in self._quarters or _is_temporal(name)
        }
        with suppress(Exception), torch.cuda.device(self._compiler[0]):  # decoding raises the error again
            _convolution_hopper(self._compiler[0])
            slots = torch.zeros(SLOT_COLUMNS, dtype=torch.int32, device=self._compiler[0])
            for name in layers.values():
                weight, bias = self.weights[name], self.weights[f"{name.removesuffix('weight')}bias"]
                if (quarters := self._quarters.get(name)) is not None:
                    self._kernels.convolve(weight.new_zeros(4, weight.shape[1]), None, quarters, bias, (1, 1), 2)
                    continue
                x = weight.new_zeros(4, weight.shape[1] // 3)
                self._kernels.convolve(x, slots, matrix(weight), bias, (1, 1), weight.shape[-1])
                for norm in (x[0], None):
                    self._kernels.store(x.clone(), norm, EPSILON, x, slots, (1, 1))

    def _residual(self, name: str, x: Tensor) -> Tensor:
        shortcut = f"{name}.shortcut"
        added = _rows(x)
        if f"{shortcut}.weight" in self.weights:
            added = F.linear(added, matrix(self.weights[f"{shortcut}.weight"]), self.weights[f"{shortcut}.bias"])
        x = self._activated_conv(f"{name}.residual.0", f"{name}.residual.2", x)
        return self._convolve_in_time(f"{name}.residual.6", x, f"{name}.residual.3", added)

    def _activated_conv(self, norm: str, conv: str, x: Tensor) -> Tensor:
        return self._convolve_in_time(conv, x, norm)

    def _causal_conv(self, name: str, x: Tensor) -> Tensor:
        return self._convolve_in_time(name, x)

    def _convolve_in_time(self, name: str, x: Tensor, norm: str | None = None, added: Tensor | None = None) -> Tensor:
        """Store x in the pool of the temporal layer `name`, and return the convolution of the layer's last three input
        frames, plus `added`. If `norm`, the name of an RMSNorm, is given, store SiLU(RMSNorm(x)) instead."""
        size, weight, bias = (x.shape[2], x.shape[3]), self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        pool, slots = self._pool(name, x), next(self._next_slots)
        gamma = None if norm is None else self.weights[f"{norm}.gamma"]
        self._kernels.store(_rows(x), gamma, EPSILON, pool, slots, size)
        return unpad(self._convolved(pool, slots, matrix(weight), bias, size, weight.shape[-1], added), size)

    def _convolved(
        self,
        x: Tensor,
        slots: Tensor,
        weight: Tensor,
        bias: Tensor,
        size: tuple[int, int],
        side: int,
        added: Tensor | None,
    ) -> Tensor:
        """Convolve three frames of the pool x [rows, channels] to one, with windows of `side` x `side` pixels. Return
        it plus `added`, as [(H + 1) * (W + 1), out]. Like x's rows, these are pixels with a padding row and column.

        slots: the frames' indices in the pool, the oldest first.
        size: H and W of a frame.
        """
        ours = _convolution_hopper(x.device)
        if ours is not None and ours.suits(x, weight, size, side):
            return ours.convolve(x, slots, weight, bias, size, added)
        return self._kernels.convolve(x, slots, weight, bias, size, side, added)

    def _pool(self, name: str, x: Tensor) -> Tensor:
        """Return the pool [rows, C] that stores input frames of the temporal layer `name`, with one pixel per row. If
        the pool does not exist, create it; its frames have x's height and width."""
        key = self._pools[name]
        if key not in self.past:
            height, width = x.shape[2:]
            count = 2 * list(self._pools.values()).count(key) + 1
            self.past[key] = [x.new_zeros(count, height + 1, width + 1, x.shape[1]).permute(0, 3, 1, 2)]
        return self.past[key][0].permute(0, 2, 3, 1).flatten(0, 2)

    def _double_time(self, name: str, x: Tensor) -> Iterable[Tensor]:
        if self._first or f"{name}.weight" not in self.weights:
            return (x,)
        return self._causal_conv(name, x).chunk(2, 1)

    def _doubled(self, name: str, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        weight, bias = self._quarters[f"{name}.weight"], self.weights[f"{name}.bias"]
        rows = self._kernels.convolve(_rows(x), None, weight, bias, (height, width), 2)
        return unpad(rows, (2 * height, 2 * width))


def new_decoder(vae: VAE, stripe: Stripe | None, *, recorded: bool) -> Decoder:
    """Return the decoder with the best convolution kernel for the VAE's device: a PooledDecoder, a KitchenDecoder
    (comfy-kitchen's convolutions), or a plain Decoder.

    stripe: the part of each frame to decode; None for full frames.
    recorded: whether a PooledDecoder records a CUDA graph; other decoders never do.
    """
    if suits(vae):
        return PooledDecoder(vae, stripe, recorded=recorded)
    half = vae.device.type == "cuda" and vae.dtype == torch.float16
    if half and convolution_kernel(vae.device) == KITCHEN:
        return KitchenDecoder(vae.weights, stripe)
    return Decoder(vae.weights, stripe)


def suits(vae: VAE) -> bool:
    """Return whether a PooledDecoder supports this VAE, and its Triton kernel works on the VAE's device."""
    return can_record(vae.device, vae.dtype, vae.width) and _works(vae.device)


def can_record(device: torch.device, dtype: torch.dtype | None, width: int) -> bool:
    """Return whether a VAE decoder of this base width can run as a CUDA graph. `dtype` None stands for fp32, which a
    CUDA graph does not support here. The first call may run tests of kernels on the GPU."""
    if device.type != "cuda" or dtype != torch.float16 or width % 32 or not triton_loads():
        return False
    return convolution_kernel(device) in (OURS, TRITON)


@cache
def _works(device: torch.device) -> bool:
    try:
        from ..model.kernels import convolution

        x = torch.zeros(50, 32, device=device, dtype=torch.float16)
        convolution.convolve(x, None, torch.zeros(32, 32, device=device, dtype=torch.float16), x[0], (4, 4), 1)
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:
        logging.warning("the VAE decodes in plain torch, slower: %s", reason)
        return False
    return True


@cache
def _convolution_hopper(device: torch.device) -> ModuleType | None:
    """Return kernels/hopper/convolution.py if its kernel works on this GPU, else None."""
    if device.type != "cuda" or not serves("convolution", OURS, card_of(device)):
        return None
    from ..model.kernels.hopper import convolution as convolution_hopper
    from ..model.kernels.hopper.launch import is_accurate

    arguments = random_convolution(device, Size())
    right = is_accurate("the VAE decodes", lambda: convolve_by_hopper(*arguments), exact_convolution(*arguments))
    return convolution_hopper if right else None


def _is_temporal(name: str) -> bool:
    return name.startswith("decoder.") and name.endswith(TEMPORAL_LAYERS)


def _pool_of(name: str, weight: Tensor) -> str:
    """Return the name of the pool that stores input frames of a temporal layer. `name` is the name of the layer's
    weight. Layers of the same stage (resolution) with equally many input channels share a pool."""
    parts = name.split(".")
    stage = int(parts[2]) // 4 if parts[1] == "upsamples" else 3 if parts[1] == "head" else 0
    return f"stage {stage}, {weight.shape[1] // 3} channels"


def _rows(x: Tensor) -> Tensor:
    """Return the pixels of a feature map [1, C, H, W] as rows [(H + 1) * (W + 1), C]. The map is padded at the bottom
    and right. The rows are a view if x's memory has this padding, else a copy with zeros."""
    height, width = x.shape[2:]
    if x.stride(1) == 1 and x.stride(2) == (width + 1) * x.stride(3):
        return x.as_strided(((height + 1) * (width + 1), x.shape[1]), (x.stride(3), 1))
    return F.pad(x[0].permute(1, 2, 0), (0, 0, 0, 1, 0, 1)).flatten(0, 1)
