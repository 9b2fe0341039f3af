"""The checked inputs of a walk (a steered video) inside ComfyUI, and its engine with ComfyUI's VAE and CLIP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import comfy.model_management as management
import torch
from torch import Tensor

from ...camera.path import CameraPath
from ...errors import InputError
from ...live import Engine
from ...live.worlds.example import find_map
from ...options import KeyValueMode
from ...pipeline.geometry import Geometry
from ...pipeline.memory import estimate_decoding
from ...pipeline.world import World
from ...vae import VAE, PreviewDecoder, VideoDecoder, load_tiny_decoder, load_vae, vae_width
from ..checks.conditioning import reduce_for_rollout
from ..checks.text import embedding_warnings
from ..files.folders import resolve_tiny_decoder
from ..prompt.notice import show_warning
from .rollout import NodeRollout
from .rollout_sampler import free_bytes_on

VAE_SHARE = 0.25
"""The VAE decodes in tiles if a whole chunk needs more than this fraction of the available GPU memory."""


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """The checked inputs of a walk (a steered video).

    path: the camera path if no client steers, one pose per frame.
    steered: whether a client may steer; the run then waits for one.
    frames: the walk ends with the chunk that reaches this number.
    text: the prompt, or "" if only its embedding is known.
    moving: whether the video continues while no input comes.
    decoder: the preview's file in models/vae_approx; None for the VAE.
    """

    rollout: NodeRollout
    path: CameraPath | None
    steered: bool
    frames: int
    text: str
    seed: int
    kv_cache: KeyValueMode
    clip: Any = None
    moving: bool = False
    decoder: str | None = None


def make_engine(
    run: LiveRun, image: Tensor, new_world: Callable[[], World], new_vae_decoder: Callable[[bool], VideoDecoder]
) -> Engine:
    """Return a walk's engine. `image` is the start image's latent. `new_world()` returns an empty world.
    `new_vae_decoder(exact)` returns a decoder, in fp32 if `exact`."""
    spec = run.rollout.spec
    return Engine(
        config=spec.config,
        schedule=spec.schedule,
        release=spec.release,
        window=spec.window,
        chunk=spec.chunk,
        size=(spec.geometry.height, spec.geometry.width),
        device=run.rollout.patcher.load_device,
        new_world=new_world,
        new_vae_decoder=new_vae_decoder,
        encode_image=lambda _frame: image,
        encode_prompt=PromptEncoder(run),
        notes=run.rollout.notes,
        dtype=str(run.rollout.patcher.model.get_dtype()).removeprefix("torch."),
        new_tiny_decoder=None if run.decoder is None else _preview(run.decoder, run.rollout.patcher.load_device),
        map=find_map(run.rollout.patcher.model.checkpoint.path),
    )


def _preview(name: str, device: torch.device) -> Callable[[], PreviewDecoder]:
    half = torch.float16 if device.type == "cuda" else torch.float32
    tiny = load_tiny_decoder(resolve_tiny_decoder(name), device=device, dtype=half)
    return lambda: PreviewDecoder(tiny.anew())


class DecoderFactory:
    """A factory of decoders with the weights of ComfyUI's VAE, called with True for fp32.

    nbytes: the GPU memory that a decoder needs; 0 on the CPU.
    """

    def __init__(self, vae, geometry: Geometry, device: torch.device):
        """Raise CheckpointError unless `vae` is the VAE of Wan 2.1. The decoders will use tiles if decoding a chunk
        would need more than the fraction VAE_SHARE of the GPU memory that is free now."""
        weights = vae.get_sd()
        self._size, self._device, self._weights = (geometry.lat_h, geometry.lat_w), device, weights
        self._half = device.type == "cuda" and vae.vae_dtype != torch.float32
        load_vae(weights)  # raises CheckpointError for another VAE
        chunk = replace(geometry, frames=4)
        estimate = partial(estimate_decoding, vae_width(weights), chunk, half=self._half)
        self._tiling = device.type == "cuda" and estimate().total > VAE_SHARE * free_bytes_on(device)
        self.nbytes = estimate(tiling=self._tiling).total if device.type == "cuda" else 0

    def __call__(self, exact: bool) -> VideoDecoder:
        vae = load_vae(self._weights, device=self._device)
        if self._half and not exact:
            vae = vae.decoding_in_half()
        tiling = self._tiling or (exact and self._device.type == "cuda")
        return VideoDecoder(VAE(vae.weights, tiling), *self._size, park=tiling)


class PromptEncoder:
    """A callable that returns the embedding [1, L, D] of a prompt's text, and caches every result."""

    def __init__(self, run: LiveRun):
        self._run, self._cache = run, {run.text: run.rollout.contexts[0].cpu()}

    def __call__(self, text: str) -> Tensor:
        if text not in self._cache:
            self._cache[text] = self._encode(text)
        return self._cache[text]

    def _encode(self, text: str) -> Tensor:
        """Encode with the CLIP, then load the causal model again, because ComfyUI may have unloaded it."""
        run, clip = self._run.rollout, self._run.clip
        if clip is None:
            raise InputError("this walk has no text encoder: connect a clip to the node, and the prompt can be changed")
        show_warning(*embedding_warnings("The new prompt", text))
        made = clip.encode_from_tokens_scheduled(clip.tokenize(text))
        prompt, _ = reduce_for_rollout("prompt", made, run.spec.config)
        model = run.patcher.model
        management.load_models_gpu([run.patcher], max(0, model.last_memory_required - model.key_value_bytes))
        return prompt[0][0][:, : run.spec.config.text_len].float().cpu()
