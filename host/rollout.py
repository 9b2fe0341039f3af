"""A rollout of a causal model as a node runs it: checked, sampled chunk by chunk, decoded, and kept as a state."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import comfy.samplers
import comfy.utils
import latent_preview
import numpy as np
import torch
from torch import Tensor

from ..camera import CameraTrack, begin_track, pose_embedding
from ..camera.path import CameraPath
from ..errors import CameraError, InputError
from ..options import CELL, CHUNK, KeyValueMode
from ..pipeline.geometry import STEP, explicit_geometry
from ..pipeline.state import WorldState, grow
from ..pipeline.world import World, check_causal, chosen_window, chunk_conditioning, held_frames
from ..sampling import FewStepSchedule, few_step_schedule, release_of
from ..vae.decoding import REACH
from ..vae.encoding import SETTLED
from .base_model import is_causal
from .before_rollout import check_start
from .rollout_inputs import rollout_inputs
from .rollout_sampler import LATENT_CHANNELS, RolloutSampler, draws, plan_key_values

STANDING_STILL = "No camera is connected: it stands still."


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """A rollout that can start. `frame` [3, H, W], -1..1: the video's first. `latent_frames` and `video_frames` count
    what this run makes, `made` the latent frames of the state that it goes on from; `release` names the model's;
    `notes` are for the user. With `start`, a latent [1, 16, n, h, w] as VAEs take it, `frame` is that video's last one,
    which is there when `run_rollout` has decoded it."""

    patcher: object
    positive: list
    frame: Tensor
    latent_frames: int
    track: CameraTrack
    schedule: FewStepSchedule
    window: int
    sink: int
    state: WorldState | None
    release: str
    notes: tuple[str, ...]
    start: Tensor | None = None

    @property
    def context(self) -> Tensor:
        """The prompt's embedding [1, L, D], as long as the model reads it."""
        return self.positive[0][0][:, : self.patcher.model.diffusion_model.config.text_len].float()

    @property
    def made(self) -> int:
        return 0 if self.state is None else self.state.latent.shape[2]

    @property
    def video_frames(self) -> int:
        return self.frames_until(self.latent_frames)

    def frames_until(self, latent_frames: int) -> int:
        """Frames that the first so many of this run's latent frames make."""
        return max(0, 4 * latent_frames - (0 if self.made else 3))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the latent."""
        return self.frame.shape[1] // CELL, self.frame.shape[2] // CELL

    @property
    def held(self) -> tuple[int, int]:
        """Latent frames whose keys and values are held, and how many of them stay for good."""
        return held_frames(self.window, self.sink, self.made + self.latent_frames)


class Made(NamedTuple):
    """What a rollout leaves: the LATENT of the whole video, the IMAGE [n, H, W, 3] of the new frames, the state."""

    latent: dict
    images: Tensor
    state: WorldState


def plan_rollout(
    patcher, positive: list, image: Tensor | None, camera: CameraPath | None, state: WorldState | None, *, frames: int,
    indices: tuple[int, ...] | None, shift: float, window: int | None, sink: int | None, latent: dict | None = None,
) -> RolloutPlan:  # fmt: skip
    """Checks what a rollout is asked for; None stands for what the model was made for, or what the state has. The video
    begins with an image, with the last frame of a LATENT, or goes on from a state.

    Raises InputError and CameraError before anything is loaded."""
    config = _config(patcher)
    patcher, positive, notes = rollout_inputs(patcher, positive, image)
    if camera is not None and config.control != 6:
        raise CameraError("this checkpoint has no camera layers that take a path: disconnect the camera, or load a "
                          "LingBot-World model that takes one")  # fmt: skip
    checkpoint = patcher.model.checkpoint
    release = release_of(checkpoint.names)
    window, sink = chosen_window(window, sink, state or release)
    if state is not None:
        state.check(config)
    check_start(image is not None, latent is not None, state is not None)
    start = None if latent is None else _video_latent(latent["samples"])
    frame = _first_frame(image, state) if start is None else torch.zeros(3, *(CELL * side for side in start.shape[3:]))
    poses, lens = (None, None) if camera is None else (camera.c2w, camera.intrinsics[0])
    height, width = frame.shape[1:]
    geometry = explicit_geometry(width, height, frames, None if poses is None else len(poses), chunk=CHUNK)
    track = begin_track(poses, lens, frames, CHUNK) if state is None else state.continue_track(poses, lens, frames)
    plan = RolloutPlan(
        patcher=patcher, positive=positive, frame=frame, latent_frames=geometry.lat_f, track=track,
        schedule=few_step_schedule(release.indices if indices is None else indices, shift),
        window=window, sink=sink, state=state, release=release.name,
        notes=notes, start=start,
    )  # fmt: skip
    return _with_notes(plan, camera, frames)


def run_rollout(plan: RolloutPlan, vae, seed: int, mode: KeyValueMode = "auto") -> Made:
    """Samples and decodes. ComfyUI shows the newest frame after each chunk, and can interrupt every forward."""
    if plan.start is not None:
        plan = replace(plan, frame=_as_frame(_decode_last(vae, plan.start, 1)[-1:]))
    model = plan.patcher.model
    key_values = plan_key_values(plan.patcher, plan.held[0], plan.size, mode)
    conditioning = chunk_conditioning(_encode_image(plan, vae))
    chunks = _Chunks(plan, conditioning, seed)
    guider = comfy.samplers.CFGGuider(plan.patcher)
    guider.inner_set_conds({"positive": plan.positive})
    sampler = RolloutSampler(chunks.make, plan.schedule, plan.size, plan.held, key_values.place)
    chunk = torch.zeros(1, 16, CHUNK, *plan.size)
    sigmas = torch.tensor([*plan.schedule.sigmas, 0.0], dtype=torch.float32)
    model.key_value_bytes = key_values.on_device
    try:
        guider.sample(chunk, chunk, sampler, sigmas, disable_pbar=True, seed=seed)
    finally:
        model.key_value_bytes = 0
    state = grow(
        plan.state, torch.cat(chunks.latents, dim=2), plan.track, "", plan.context, frame=plan.frame,
        window=plan.window, sink=plan.sink, config=model.diffusion_model.config, release=plan.release,
    )  # fmt: skip
    whole = model.process_latent_out(state.latent.clone())
    return Made({"samples": whole}, _decode(plan, vae, whole), state)


class _Chunks:
    """The chunks of a rollout, made one after the other on a World."""

    def __init__(self, plan: RolloutPlan, conditioning, seed: int):
        self._plan, self._conditioning = plan, conditioning
        self._noise, self._renoise = draws(seed, plan.latent_frames, plan.size)
        self._dtype = plan.patcher.model.get_dtype_inference()
        self.latents: list[Tensor] = []

    def make(self, world: World) -> None:
        """Remember the chunks of the state, then make the new ones."""
        plan, bar = self._plan, comfy.utils.ProgressBar(self._plan.video_frames)
        previewer = _previewer(plan.patcher)
        if plan.state is not None:
            world.continue_from(plan.state, self._conditioning, self._camera, bar.update_absolute)
        world.prompt = plan.context
        forwards = len(plan.schedule.timesteps) + 1
        for chunk in range(plan.latent_frames // CHUNK):
            part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            first, last = map(plan.frames_until, (part.start, part.stop))

            def told(forward: int, first=first, last=last) -> None:
                bar.update_absolute(first + (last - first) * forward // forwards, plan.video_frames)

            camera = self._camera(plan.track.poses[part], plan.track.lens[None])
            latent = world.chunk(
                self._noise[:, :, part], next(self._conditioning), camera, plan.schedule, self._renoise, told
            )
            self.latents.append(latent.cpu())
            picture = previewer.decode_latent_to_preview_image("JPEG", latent[:, :, -1:])
            bar.update_absolute(last, plan.video_frames, picture)

    def _camera(self, poses: np.ndarray, lens: np.ndarray) -> Tensor | None:
        if self._plan.patcher.model.diffusion_model.config.control is None:
            return None
        height, width = self._plan.frame.shape[1:]
        # In the model's dtype from the start: the camera cache knows a tensor that comes back from one that is new.
        return pose_embedding(poses, lens, height=height, width=width).to(self._dtype)


def _previewer(patcher) -> latent_preview.LatentPreviewer:
    """The one that ComfyUI is set to; where its previews are off the cheapest, as it serves once a chunk."""
    space = patcher.model.latent_format
    chosen = latent_preview.get_previewer(patcher.load_device, space)
    return chosen or latent_preview.Latent2RGBPreviewer(space.latent_rgb_factors, space.latent_rgb_factors_bias)


def _config(patcher):
    causal = is_causal(patcher)
    if causal is None:
        raise InputError("model is not a LingBot-World model: connect Load LingBot-World Causal Model")
    config = patcher.model.diffusion_model.config
    check_causal(config)
    if config.control == 7:
        raise CameraError("this is a causal model that takes actions; only those that take a camera work")
    return config


def _first_frame(image: Tensor | None, state: WorldState | None) -> Tensor:
    """The first frame as the VAE is given it, [3, H, W], -1..1."""
    if image is not None:
        height, width = image.shape[1:3]
        if height % STEP or width % STEP:
            raise InputError(f"start_image is {width}x{height}, and both have to be multiples of {STEP}: put "
                             "LingBot-World Prepare Image before it")  # fmt: skip
    if state is None:
        return _as_frame(image)
    made = tuple(state.frame.shape[1:])
    if image is not None and (height, width) != made:
        raise InputError(f"the state is of {made[1]}x{made[0]}, start_image is {width}x{height}: disconnect the image, "
                         "or resize it")  # fmt: skip
    return state.frame


def _as_frame(image: Tensor) -> Tensor:
    """The first of an IMAGE as [3, H, W], -1..1."""
    return image[0, ..., :3].permute(2, 0, 1).float().cpu() * 2 - 1


def _video_latent(samples: Tensor) -> Tensor:
    """`samples` if they are a video's [1, 16, n, h, w], of a size that can be made. Raises InputError."""
    shape = list(samples.shape)
    if len(shape) != 5 or shape[:2] != [1, LATENT_CHANNELS] or 0 in shape:
        raise InputError(f"start_latent is {shape}, expected [1, {LATENT_CHANNELS}, frames, height, width]: connect "
                         "the latent of one video, which the VAE of Wan 2.1 can decode")  # fmt: skip
    height, width = (CELL * side for side in shape[3:])
    if height % STEP or width % STEP:
        raise InputError(f"start_latent is of {width}x{height}, and both have to be multiples of {STEP}")
    return samples


def _with_notes(plan: RolloutPlan, camera: CameraPath | None, frames: int) -> RolloutPlan:
    notes = [*plan.notes] if camera is not None else [*plan.notes, STANDING_STILL]
    if plan.video_frames != frames:
        reason = "Frames come in whole chunks: 9, 21, 33 and so on, and 12 a chunk where a video goes on"
        if camera is not None and len(camera) < frames:
            reason = f"The camera path has {len(camera)} poses"
        notes.append(f"{reason}. This video has {plan.video_frames} frames, not {frames}.")
    notes += plan.track.notes
    if plan.state is not None:
        notes += plan.state.notes(plan.release, plan.window, plan.sink)
    given, read = plan.positive[0][0].shape[1], plan.context.shape[1]
    if given > read:
        notes.append(f"The prompt has {given} tokens; a rollout reads the first {read}.")
    return replace(plan, notes=tuple(notes))


def _encode_image(plan: RolloutPlan, vae) -> Tensor:
    """The start image and grey frames after it as a normalised latent [1, 16, n, h, w], up to where they repeat."""
    frames = 4 * min(plan.made + plan.latent_frames, SETTLED) - 3
    pixels = torch.full((frames, *plan.frame.shape[1:], 3), 0.5)
    pixels[0] = (plan.frame.permute(1, 2, 0) + 1) / 2
    return plan.patcher.model.process_latent_in(vae.encode(pixels).float().cpu())


def _decode(plan: RolloutPlan, vae, whole: Tensor) -> Tensor:
    """The new frames, IMAGE [n, H, W, 3], of the whole video's LATENT."""
    return _decode_last(vae, whole, plan.latent_frames)[-plan.video_frames :]


def _decode_last(vae, whole: Tensor, latent_frames: int) -> Tensor:
    """Frames, IMAGE [n, H, W, 3], that end with those of the last so many latent frames, as in the whole video."""
    images = vae.decode(whole[:, :, -(latent_frames + REACH) :])
    return images.reshape(-1, *images.shape[-3:])
