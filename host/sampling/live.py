"""The execution of the Live node: a walk (a video that is generated while the user steers) inside ComfyUI's own
sampling.

The user steers from ComfyUI's page, or the camera follows a recorded path.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import comfy.model_management as management
import comfy.utils
import folder_paths
import torch
from torch import Tensor

from ...camera.path import CameraPath
from ...camera.poses import frame_count
from ...errors import InputError
from ...live import Engine, Frames, Session, Start
from ...live.kept import Kept
from ...live.planned import check_walkable, latent_frames, without_end
from ...live.worlds.example import find_events, find_map
from ...options import FPS, KeyValueMode
from ...pipeline.geometry import Geometry
from ...pipeline.memory import estimate_vae
from ...pipeline.spec import RolloutRequest
from ...pipeline.state import WorldState
from ...pipeline.world import CausalModel, World
from ...vae import TINY_DECODER, VAE, PreviewDecoder, VideoDecoder, load_tiny_decoder, load_vae, vae_width
from ..checks.conditioning import text_of_rollout, without_events
from ..checks.text import embedding_words
from ..files.folders import resolve_tiny_decoder
from ..prompt.notice import show_warning
from .live_view import LiveView
from .rollout import NodeRollout, encode_image, prepare_rollout
from .rollout_sampler import plan_memory, room_on, run_prepared

FOLDER = "walks"
"""The name of the folder for saved walks (steered videos) in ComfyUI's output folder.

It keeps each walk's state, camera path and latents, even if the run fails.
"""
VAE_SHARE = 0.25
"""A share of the GPU memory that ComfyUI can free. A VAE decoder that needs more than this decodes in tiles."""


class WalkOutputs(NamedTuple):
    """The results of a walk (a steered video).

    images: all frames, an IMAGE [n, H, W, 3].
    latent: the LATENT of the whole video.
    state: the state, from which a video can be continued.
    camera: the camera path, with one pose per frame.
    """

    images: Tensor
    latent: dict
    state: WorldState
    camera: CameraPath


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """The checked inputs of a walk (a steered video).

    rollout: the checked inputs for making the video chunk by chunk.
    path: the camera path to follow if nobody steers, with one pose per frame, or None.
    steered: whether a client may steer; the run then waits for one.
    frames: the largest number of frames.
    text: the prompt, or "" if only its embedding is known.
    seed: the seed of the noise.
    kv_cache: the location and number format of cached keys and values.
    clip: the CLIP for new prompts from the client, or None.
    moving: whether the video continues without input.
    decoder: the file name in models/vae_approx of the preview's decoder, or None.
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


def first_prompt(positive: list | None, clip: Any, prompt: str, state: WorldState | None) -> tuple[list, str]:
    """Return the CONDITIONING and the text of a walk's first prompt.

    They come from the first argument that is present: `positive` (with an empty text), `prompt` encoded by `clip`, then
    the last prompt of `state`. Raises InputError if all are missing.
    """
    if positive is not None:
        return positive, ""
    if clip is not None and prompt.strip():
        return clip.encode_from_tokens_scheduled(clip.tokenize(prompt)), prompt
    if state is not None:
        return [[state.prompts[-1].context, {}]], state.prompts[-1].text
    raise InputError("positive is missing: connect a text node's output, or a clip, and write the prompt here")


def prepare_live(
    patcher,
    positive: list,
    wanted: RolloutRequest,
    *,
    image: Tensor | None,
    state: WorldState | None,
    path: CameraPath | None,
    steered: bool,
    **more: Any,
) -> LiveRun:
    """Check the inputs of a walk (a steered video) and return them as a LiveRun, before any file is loaded.

    patcher: the MODEL.
    positive: the CONDITIONING of the first prompt.
    wanted: the node's settings; `wanted.frames` is the largest number of frames.
    image: the start image as an IMAGE, or None.
    state: the state of an earlier video to continue, or None.
    path: the camera path to follow, or None.
    steered: whether a client may steer.
    more: the other fields of the LiveRun, except `rollout` and `frames`.

    Raises InputError for a model with guidance or without camera input, and for inputs that a rollout rejects. Raises
    CameraError for a camera path that does not fit.
    """
    frames = wanted.frames
    positive, event_notes = without_events(positive)
    if steered:
        planned = 4 * latent_frames(wanted.window) - (3 if state is None else 0)
        run = prepare_rollout(patcher, (positive, None), replace(wanted, frames=planned), image=image, state=state)
        spec, notes = without_end(run.spec, run.notes, wanted.window, wanted.sink)
        run = replace(run, spec=spec, notes=notes)
    else:
        wanted = replace(wanted, frames=min(frames, len(path)))
        run = prepare_rollout(patcher, (positive, None), wanted, image=image, camera=path, state=state)
    check_walkable(run.spec, "model")
    run = replace(run, notes=(*run.notes, *event_notes))
    if path is not None:  # resampled to a pose for each frame, at the positions of a Rollout's latent frames
        made = frame_count(wanted.frames, len(path), run.spec.chunk)
        if run.spec.state is not None:
            path = path[: wanted.frames].resampled(made + 4)
        else:
            path = path[: frame_count(wanted.frames, len(path))].resampled(made)
    return LiveRun(rollout=run, path=path, steered=steered, frames=frames, **more)


def run_live(run: LiveRun, vae, view: LiveView) -> WalkOutputs:
    """Run a walk (a steered video) and return its results.

    vae: ComfyUI's VAE, which decodes the frames.
    view: the connection to the client.

    The walk ends when the client stops it, when the path ends, or after `run.frames` frames. If ComfyUI interrupts the
    run, the walk ends at the next forward, and the video so far stays in its folder. Raises InputError if no client
    connects, and if no frame was made or written.
    """
    spec, patcher = run.rollout.spec, run.rollout.patcher
    frames = _Decoders(vae, spec.geometry, patcher.load_device)
    memory, on_device = plan_memory(patcher, spec, run.kv_cache, frames.nbytes)
    image = encode_image(run.rollout, vae)
    made: list[WalkOutputs] = []

    def walk(model: CausalModel, device: torch.device) -> None:
        new_world, lost = partial(spec.loop.world, model, device, memory), list[str]()
        with _session(run, _engine(run, image, new_world, frames), view, _path(run, view)) as session:
            made.append(_walk(run, session, view, lost))
        for reason in lost:
            show_warning(f"This part of the walk is not kept: {reason}.")

    try:
        run_prepared(patcher, run.rollout.prompts[0], spec.loop, walk, seed=run.seed, held=on_device)
    finally:
        management.soft_empty_cache()
    return made[0]


def _path(run: LiveRun, view: LiveView) -> CameraPath | None:
    """Return None if a client steers the walk, else the recorded camera path of `run`.

    Raises InputError if there is neither a client nor a path.
    """
    if run.steered and view.somebody(alone=run.path is not None):
        return None
    if run.path is None:
        raise InputError(view.nobody)
    return run.path


def _engine(
    run: LiveRun, image: Tensor, new_world: Callable[[], World], frames: Callable[[bool], VideoDecoder]
) -> Engine:
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
        encode_prompt=_Prompts(run),
        notes=run.rollout.notes,
        dtype=str(run.rollout.patcher.model.get_dtype()).removeprefix("torch."),
        decoder="vae" if run.decoder is None else TINY_DECODER,
        new_preview=None if run.decoder is None else _preview(run.decoder, run.rollout.patcher.load_device),
        map=find_map(run.rollout.patcher.model.checkpoint.path),
    )


def _preview(name: str, device: torch.device) -> Callable[[], PreviewDecoder]:
    """Return a function that creates preview decoders from the file `name` in models/vae_approx.

    Raises a LingBotError for an unusable file.
    """
    half = torch.float16 if device.type == "cuda" else torch.float32
    tiny = load_tiny_decoder(resolve_tiny_decoder(name), device=device, dtype=half)
    return lambda: PreviewDecoder(tiny.anew())


@contextmanager
def _session(run: LiveRun, engine: Engine, view: LiveView, path: CameraPath | None) -> Iterator[Session]:
    """Yield the session of a walk, and close it at the end.

    After that, the walk's files in ComfyUI's output folder are complete, even after an interrupt.
    """
    spec = run.rollout.spec
    lens = None if path is None else path.intrinsics[0]
    folder = Path(folder_paths.get_output_directory()) / FOLDER
    session = Session(
        engine,
        spec.state or Start(spec.frame, run.text, lens),
        folder=folder,
        seed=run.seed,
        fps=FPS if path is None else 0,
        path=None if path is None else path.c2w,
        whole=True,
        moving=run.moving,
        events=find_events(run.rollout.patcher.model.checkpoint.path) if run.clip is not None and run.text else (),
    )
    try:
        if spec.state is not None:
            session.walk.prompt(run.text, run.rollout.contexts[0])
        view.begin(session, steered=path is None, prompts=run.clip is not None)
        yield session
    finally:
        with suppress(InputError):  # a failed restart left no walk
            logging.info("The walk is kept in %s", session.walk.kept.folder)
        session.close()


def _walk(run: LiveRun, session: Session, view: LiveView, lost: list[str]) -> WalkOutputs:
    """Run the session and return the walk's results. Raises InputError if no frame was made or written.

    The list `lost` collects reasons why files could not be written, also while the session closes.
    """
    walking = _Walking(run, session, view, lost)
    session.run(walking.deliver, walking.tell, view.watch)
    album, kept = walking.album, session.walk.kept
    if run.decoder is not None and album.frames:
        album = _album_by_vae(session)
    if kept.failure:
        lost[:] = [reason for reason in lost if reason != kept.failure]  # reported below
        _cut(album, kept)
    if not album.frames:
        raise InputError("the walk was stopped before it began: there is nothing to hand out")
    state = session.state()
    latent = run.rollout.patcher.model.process_latent_out(state.latent.clone())
    return WalkOutputs(album.images(), {"samples": latent}, state, CameraPath(kept.poses(), kept.lens, FPS))


def _album_by_vae(session: Session) -> "_Album":
    """Return the frames of the session's walk, decoded again by the VAE, because the shown frames came from a tiny
    decoder.

    If values are too large for fp16, fp32 is used. Raises ComfyUI's interrupt exception.
    """
    for exact in (False, True):
        album = _Album()
        try:
            for frames in session.walk.decode_again(exact=exact):
                management.throw_exception_if_processing_interrupted()
                album.add(frames)
        except OverflowError as error:
            logging.warning("The walk is decoded again in fp32: %s.", error)
        else:
            break
    return album


def _cut(album: "_Album", kept: Kept) -> None:
    """Remove the frames that could not be saved from the album, and show a warning on the node.

    The album then has as many frames as the saved state and path in the folder `kept`. Raises InputError if no frame
    was saved.
    """
    made = album.frames
    album.cut(kept.chunks)
    if not album.frames:
        raise InputError(f"there is nothing to hand out: {kept.failure}")
    show_warning(f"Of {made} frames the first {album.frames} are output: {kept.failure}.")


class _Walking:
    """The callbacks of a running walk (a steered video).

    They collect the frames in an album, and forward frames and events to the client's view.
    """

    def __init__(self, run: LiveRun, session: Session, view: LiveView, lost: list[str]):
        self._run, self._session, self._view, self._lost = run, session, view, lost
        self.album, self._bar = _Album(), comfy.utils.ProgressBar(run.frames)
        self._prompt = run.text

    def deliver(self, frames: Frames) -> None:
        self.album.add(frames)
        self._view.deliver(frames)
        self._bar.update_absolute(min(self.album.frames, self._bar.total))
        kept = self._session.walk.kept
        all_lost = kept.failure and not kept.chunks  # later frames would be lost too
        if frames.last and (all_lost or self.album.frames >= self._run.frames):
            self._session.stop()

    def tell(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "prompt":
            self._prompt = facts["text"]
        if kind == "kept":
            self._lost.append(facts["reason"])
        if kind in ("back", "restarted"):
            self.album.cut(facts.get("chunk", 0))
        if kind == "restarted":  # the view still shows the latest prompt
            self._session.walk.prompt(self._prompt, self._session.engine.encode_prompt(self._prompt))
            self._session.update_events()
        self._view.tell(kind, facts)


class _Album:
    """A collection of a walk's frames. If the user goes back in the video, the later frames are removed."""

    def __init__(self) -> None:
        self._parts: list[Frames] = []

    @property
    def frames(self) -> int:
        return sum(len(part.pixels) for part in self._parts)

    def add(self, frames: Frames) -> None:
        self._parts.append(frames)

    def cut(self, chunks: int) -> None:
        self._parts = [part for part in self._parts if part.chunk < chunks]

    def images(self) -> Tensor:
        """Return all frames as an IMAGE, float32 [n, H, W, 3], values 0 to 1."""
        images, first = torch.empty(self.frames, *self._parts[0].pixels.shape[1:]), 0
        for part in self._parts:
            images[first : first + len(part.pixels)] = torch.from_numpy(part.pixels)
            first += len(part.pixels)
        return images.div_(255)


class _Decoders:
    """A factory of decoders that decode chunk by chunk with the weights of ComfyUI's VAE.

    `nbytes` is the number of bytes that one decoder needs on a GPU.
    """

    def __init__(self, vae, geometry: Geometry, device: torch.device):
        """Use the weights of `vae`, and decide by the free memory whether videos of this `geometry` are decoded in
        tiles.

        Raises CheckpointError for a VAE other than Wan 2.1's.
        """
        weights = vae.get_sd()
        self._size, self._device, self._weights = (geometry.lat_h, geometry.lat_w), device, weights
        self._half = device.type == "cuda" and vae.vae_dtype != torch.float32
        load_vae(weights)  # raises CheckpointError for another VAE
        chunk = replace(geometry, frames=4)
        bytes_of = partial(estimate_vae, vae_width(weights), chunk, half=self._half)
        self._tiling = device.type == "cuda" and bytes_of()[1].total > VAE_SHARE * room_on(device)
        self.nbytes = bytes_of(tiling=self._tiling)[1].total if device.type == "cuda" else 0

    def __call__(self, exact: bool) -> VideoDecoder:
        vae = load_vae(self._weights, device=self._device)
        if self._half and not exact:
            vae = vae.decoding_in_half()
        tiling = self._tiling or (exact and self._device.type == "cuda")
        return VideoDecoder(VAE(vae.weights, tiling), *self._size, park=tiling)


class _Prompts:
    """A function object that returns the embedding [1, L, D] of a prompt, encoded or from its cache.

    The cache begins with the walk's first prompt and keeps every result.
    """

    def __init__(self, run: LiveRun):
        self._run, self._kept = run, {run.text: run.rollout.contexts[0].cpu()}

    def __call__(self, text: str) -> Tensor:
        if text not in self._kept:
            self._kept[text] = self._encoded(text)
        return self._kept[text]

    def _encoded(self, text: str) -> Tensor:
        """Return the embedding of `text` by the CLIP. Raises InputError without a CLIP.

        The model is then loaded again, because ComfyUI may have unloaded it to make room for the CLIP.
        """
        run, clip = self._run.rollout, self._run.clip
        if clip is None:
            raise InputError("this walk has no text encoder: connect a clip to the node, and the prompt can be changed")
        for words in embedding_words("The new prompt", text):
            show_warning(words)
        made = clip.encode_from_tokens_scheduled(clip.tokenize(text))
        prompt, _ = text_of_rollout("prompt", made, run.spec.config)
        model = run.patcher.model
        management.load_models_gpu([run.patcher], max(0, model.last_memory_required - model.key_value_bytes))
        return prompt[0][0][:, : run.spec.config.text_len].float().cpu()
