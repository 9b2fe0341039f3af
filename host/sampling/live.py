"""The execution of the Live node, which makes a walk (a video steered while it is generated) in ComfyUI's sampling."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
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
from ...live.planned import check_walkable, latent_frames, plan_endless
from ...live.worlds.example import find_events
from ...options import FPS
from ...pipeline.spec import RolloutRequest
from ...pipeline.state import WorldState
from ...pipeline.world import CausalModel
from ..checks.conditioning import without_events
from ..prompt.notice import show_warning
from .live_album import Album, cut_to_saved, decode_with_vae
from .live_engine import DecoderFactory, LiveRun, make_engine
from .live_view import LiveView
from .rollout import encode_image, prepare_rollout
from .rollout_sampler import plan_memory, run_with_model

FOLDER = "walks"
"""The folder in ComfyUI's output folder for each walk's state, camera path and latents."""


class WalkOutputs(NamedTuple):
    """The results of a walk (a steered video).

    images: all frames, an IMAGE [n, H, W, 3].
    latent: the LATENT of the whole video.
    camera: the camera path, with one pose per frame.
    """

    images: Tensor
    latent: dict
    state: WorldState
    camera: CameraPath


def first_prompt(positive: list | None, clip: Any, prompt: str, state: WorldState | None) -> tuple[list, str]:
    """Return a walk's first CONDITIONING and text. The first present source is used: `positive` (its text is ""),
    `prompt` encoded by `clip`, or `state`. Raise InputError if there is none."""
    if prompt.strip() and (positive is not None or clip is None):
        instead = "positive is connected" if positive is not None else "connect a clip, which encodes it"
        show_warning(f"The node's prompt has no effect: {instead}.")
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
    request: RolloutRequest,
    *,
    image: Tensor | None,
    state: WorldState | None,
    path: CameraPath | None,
    steered: bool,
    **more: Any,
) -> LiveRun:
    """Check and return the inputs of a walk (a live video, steered by a client or along a path), before any file is
    loaded. Raise InputError or CameraError for invalid inputs.

    image: the start image as an IMAGE.
    path: the camera path if no client steers; required if `steered` is False.
    steered: whether a client may steer.
    more: the other fields of the LiveRun.
    """
    frames = request.frames
    positive, event_notes = without_events(positive)
    if steered:
        planned = 4 * latent_frames(request.window) - (3 if state is None else 0)
        run = prepare_rollout(patcher, (positive, None), replace(request, frames=planned), image=image, state=state)
        spec, notes = plan_endless(run.spec, run.notes, request.window, request.sink)
        run = replace(run, spec=spec, notes=notes)
    else:
        request = replace(request, frames=min(frames, len(path)))
        run = prepare_rollout(patcher, (positive, None), request, image=image, camera=path, state=state)
    check_walkable(run.spec, "model")
    run = replace(run, notes=(*run.notes, *event_notes))
    if path is not None:  # resampled to a pose for each frame, at the positions of a Rollout's latent frames
        made = frame_count(request.frames, len(path), run.spec.chunk)
        if run.spec.state is not None:
            path = path[: request.frames].resampled(made + 4)
        else:
            path = path[: frame_count(request.frames, len(path))].resampled(made)
    return LiveRun(rollout=run, path=path, steered=steered, frames=frames, **more)


def run_live(run: LiveRun, vae, view: LiveView) -> WalkOutputs:
    """Run a walk until it is stopped, its path ends, or it has `run.frames` frames. Raise InputError if it has neither
    client nor path, or makes no frame."""
    spec, patcher = run.rollout.spec, run.rollout.patcher
    frames = DecoderFactory(vae, spec.geometry, patcher.load_device)
    memory, on_device = plan_memory(patcher, spec, run.kv_cache, frames.nbytes)
    image = encode_image(run.rollout, vae)
    made: list[WalkOutputs] = []

    def walk(model: CausalModel, device: torch.device) -> None:
        new_world, lost = partial(spec.loop.world, model, device, memory), list[str]()
        with _open_session(run, make_engine(run, image, new_world, frames), view, _recorded_path(run, view)) as session:
            made.append(_run_session(run, session, view, lost))
        for reason in lost:
            show_warning(f"This part of the walk is not kept: {reason}.")

    try:
        run_with_model(patcher, run.rollout.prompts[0], spec.loop, walk, seed=run.seed, held=on_device)
    finally:
        management.soft_empty_cache()
    return made[0]


def _recorded_path(run: LiveRun, view: LiveView) -> CameraPath | None:
    if run.steered and view.wait_for_client(alone=run.path is not None):
        return None
    if run.path is None:
        raise InputError(view.no_client_message)
    return run.path


@contextmanager
def _open_session(run: LiveRun, engine: Engine, view: LiveView, path: CameraPath | None) -> Iterator[Session]:
    """Yield the session of a walk, and close it even after an interrupt, so that its files are complete."""
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
            session.update_events()
        view.begin(session, steered=path is None, prompts=run.clip is not None)
        yield session
    finally:
        with suppress(InputError):  # a failed restart left no walk
            logging.info("The walk is kept in %s", session.walk.store.folder)
        session.close()


def _run_session(run: LiveRun, session: Session, view: LiveView, lost: list[str]) -> WalkOutputs:
    """Run a walk's session to its end, and return its outputs. The reason for each file that could not be written is
    appended to `lost`, until the caller has closed the session."""
    callbacks = _WalkCallbacks(run, session, view, lost)
    session.run(callbacks.deliver, callbacks.tell, view.poll_client)
    album, store = callbacks.album, session.walk.store
    if run.decoder is not None and album.frames:
        album = decode_with_vae(session)
    if store.failure:
        lost[:] = [reason for reason in lost if reason != store.failure]  # reported below
        cut_to_saved(album, store)
    if not album.frames:
        raise InputError("the walk was stopped before it began: there is nothing to hand out")
    state = session.state()
    latent = run.rollout.patcher.model.process_latent_out(state.latent.clone())
    return WalkOutputs(album.images(), {"samples": latent}, state, CameraPath(store.poses(), store.lens, FPS))


class _WalkCallbacks:
    def __init__(self, run: LiveRun, session: Session, view: LiveView, lost: list[str]):
        self._run, self._session, self._view, self._lost = run, session, view, lost
        self.album, self._bar = Album(), comfy.utils.ProgressBar(run.frames)
        self._prompt = run.text

    def deliver(self, frames: Frames) -> None:
        self.album.add(frames)
        self._view.deliver(frames)
        self._bar.update_absolute(min(self.album.frames, self._bar.total))
        store = self._session.walk.store
        all_lost = store.failure and not store.chunks  # later frames would be lost too
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
