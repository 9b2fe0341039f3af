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
from ...pipeline.memory import estimate_vae
from ...pipeline.world import World
from ...vae import TINY_DECODER, VAE, PreviewDecoder, VideoDecoder, load_tiny_decoder, load_vae, vae_width
from ..checks.conditioning import reduce_for_rollout
from ..checks.text import embedding_warnings
from ..files.folders import resolve_tiny_decoder
from ..prompt.notice import show_warning
from .rollout import NodeRollout
from .rollout_sampler import free_bytes_on

VAE_SHARE = 0.25
"""The VAE decodes in tiles if decoding a chunk in one piece needs more than this fraction of the available GPU memory.
Available is the memory that is free after ComfyUI has unloaded all its models."""


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """The checked inputs of a walk (a steered video).

    rollout: the checked inputs for generating the video chunk by chunk.
    path: the camera path to follow if no client steers, with one pose per frame, or None.
    steered: whether a client may steer; the run then waits for a client.
    frames: the walk ends with the chunk that reaches this number of frames.
    text: the prompt, or "" if only its embedding is known.
    seed: the seed of the noise.
    kv_cache: the location and number format of cached keys and values.
    clip: the CLIP that encodes new prompts of the client, or None.
    moving: whether the video continues while the client sends no input.
    decoder: the file name in models/vae_approx of the tiny decoder for the preview, or None for the VAE.
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
    run: LiveRun, image: Tensor, new_world: Callable[[], World], frames: Callable[[bool], VideoDecoder]
) -> Engine:
    """Return the engine of a walk.

    image: the start image's latent.
    new_world: a function that returns a new World with the model.
    frames: a function that returns a new decoder, in fp32 for the argument True, such as a DecoderFactory.
    """
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
        new_decoder=frames,
        encode_image=lambda _frame: image,
        encode_prompt=PromptEncoder(run),
        notes=run.rollout.notes,
        dtype=str(run.rollout.patcher.model.get_dtype()).removeprefix("torch."),
        decoder="vae" if run.decoder is None else TINY_DECODER,
        new_preview=None if run.decoder is None else _preview(run.decoder, run.rollout.patcher.load_device),
        map=find_map(run.rollout.patcher.model.checkpoint.path),
    )


def _preview(name: str, device: torch.device) -> Callable[[], PreviewDecoder]:
    half = torch.float16 if device.type == "cuda" else torch.float32
    tiny = load_tiny_decoder(resolve_tiny_decoder(name), device=device, dtype=half)
    return lambda: PreviewDecoder(tiny.anew())


class DecoderFactory:
    """A factory of decoders that decode chunk by chunk with the weights of ComfyUI's VAE.

    A call with True returns a decoder in fp32, which on a CUDA device always decodes in tiles. A call with False
    returns a decoder in fp16, or in fp32 if the device is not a CUDA device or ComfyUI's VAE is in fp32. `nbytes` is
    the number of bytes that a decoder of the second kind needs on a CUDA device, or 0 on other devices.
    """

    def __init__(self, vae, geometry: Geometry, device: torch.device):
        """Use the weights of `vae`, and decide by the free memory whether videos of this `geometry` are decoded in
        tiles. Raises CheckpointError for a VAE other than Wan 2.1's."""
        weights = vae.get_sd()
        self._size, self._device, self._weights = (geometry.lat_h, geometry.lat_w), device, weights
        self._half = device.type == "cuda" and vae.vae_dtype != torch.float32
        load_vae(weights)  # raises CheckpointError for another VAE
        chunk = replace(geometry, frames=4)
        bytes_of = partial(estimate_vae, vae_width(weights), chunk, half=self._half)
        self._tiling = device.type == "cuda" and bytes_of()[1].total > VAE_SHARE * free_bytes_on(device)
        self.nbytes = bytes_of(tiling=self._tiling)[1].total if device.type == "cuda" else 0

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
        """Return the embedding [1, L, D] of `text` by the CLIP. Afterwards load the causal model again, because ComfyUI
        may have unloaded it to make room for the CLIP. Raises InputError without a CLIP."""
        run, clip = self._run.rollout, self._run.clip
        if clip is None:
            raise InputError("this walk has no text encoder: connect a clip to the node, and the prompt can be changed")
        show_warning(*embedding_warnings("The new prompt", text))
        made = clip.encode_from_tokens_scheduled(clip.tokenize(text))
        prompt, _ = reduce_for_rollout("prompt", made, run.spec.config)
        model = run.patcher.model
        management.load_models_gpu([run.patcher], max(0, model.last_memory_required - model.key_value_bytes))
        return prompt[0][0][:, : run.spec.config.text_len].float().cpu()
