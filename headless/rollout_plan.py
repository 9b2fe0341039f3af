"""The plan of a run with a causal model (LingBot-World Fast or 2.0)."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..camera.pose_folder import PoseFolder
from ..errors import CameraError, InputError, LingBotError
from ..loaders import Checkpoint
from ..model.attention.choose_8bit import check_8_bits
from ..model.config import ModelConfig
from ..options import SIZE, Release
from ..pipeline.geometry import Geometry, first_frame
from ..pipeline.rollout_memory import DecoderSettings, RolloutWork
from ..pipeline.rollout_planner import RolloutPlanner
from ..pipeline.spec import RolloutRequest, RolloutSpec, chunk_of, plan_rollout
from ..pipeline.state import WorldState, last_prompt, load_state
from ..sampling import guide_scales, step_indices
from ..text.events import changes_by_chunk, check_times, prompts_by_second, read_events
from ..vae import can_record, vae_width
from . import checks, devices
from .camera_path import camera_of
from .checks import Plan, RunInputs
from .files.existing import refuse_existing
from .files.pictures import image_notes
from .files.target import Target, check_folder, check_name
from .options import BASE_OPTIONS, GUIDED_OPTIONS, UNGUIDED_ONLY, GenerateOptions


@dataclass(frozen=True, kw_only=True)
class RolloutPlan(Plan):
    """The plan of a run with a causal model.

    prompts: pairs (index of the first chunk with the prompt, the prompt's text).
    """

    checkpoint: Checkpoint
    spec: RolloutSpec
    prompts: tuple[tuple[int, str], ...]

    @property
    def prompts_by_chunk(self) -> tuple[tuple[int, str], ...]:
        return self.prompts

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def guided(self) -> bool:
        return self.spec.guided

    @property
    def decoding_device(self) -> torch.device:
        return devices.find_decoding_device(self.options.decoder_device, self.device)

    @property
    def amount(self) -> str:
        """The number of chunks as text, such as "7 chunks"."""
        return checks.pluralize(self.spec.geometry.lat_f // self.spec.chunk, "chunk")

    @property
    def chunk_geometry(self) -> Geometry:
        return replace(self.geometry, frames=4 * self.spec.chunk)

    @property
    def frames_before(self) -> int:
        return 0 if self.spec.state is None else self.spec.state.frames

    def planner(self, processes: int = 1) -> RolloutPlanner:
        """Return the memory planner of the run. `processes`: the number of processes that share the run."""
        spec = self.spec
        held, precision = spec.cache_window.frames, self.precision(processes)
        work = RolloutWork(self.config, self.cells, spec.chunk, held, precision, spec.guided)
        width, device = vae_width(self.vae), self.decoding_device
        recorded = can_record(device, self.half, width)
        decoder = DecoderSettings(width, self.half is not None, device != self.device, recorded)
        return RolloutPlanner(work, self.checkpoint, decoder, self.memory_options, self.device)


def plan_causal(inputs: RunInputs, checkpoint: Checkpoint, image: np.ndarray | None) -> RolloutPlan:
    """Return the plan of a run with a causal model. `image`: uint8 [H, W, 3], or None for a continued state."""
    options, release = inputs.options, checkpoint.release
    assert release is not None  # a causal model has a release
    if release.guided:
        checks.refuse_options(options, UNGUIDED_ONLY, f"{release.name} takes `sampling_steps` guided steps a chunk")
    of_others = [name for name in BASE_OPTIONS if not (release.guided and name in GUIDED_OPTIONS)]
    checks.refuse_options(options, of_others, "a causal model takes a few unguided steps a chunk, and is one model")
    eight_bit = check_8_bits(options.arithmetic, options.attention, inputs.device, checkpoint.config)
    devices.find_decoding_device(options.decoder_device, inputs.device)  # raises
    state = None if options.continue_from is None else load_state(options.continue_from)
    chunk = chunk_of(options.chunk, release, state)
    if options.save_state is not None:
        check_saved(Path(options.save_state), options, inputs.target)
    folder = _camera(options, checkpoint, chunk)
    frame = None
    if state is not None:
        _check_size(options, state)
    elif image is not None:
        frame = first_frame(image, checks.geometry_of(options, image, None, chunk))
    spec = plan_rollout(checkpoint.config, release, _request(options, release), folder, frame, state)
    own = () if folder is None else folder.notes
    prompts, event_notes = _prompts_by_chunk(options, spec)
    return RolloutPlan(
        **vars(inputs),
        checkpoint=checkpoint,
        frame=spec.frame,
        geometry=spec.geometry,
        spec=spec,
        prompts=prompts,
        notes=(
            *checkpoint.release_lines,
            *image_notes(options.image),
            *checks.lora_notes(options),
            *checks.text_notes(options, release.guided),
            *eight_bit,
            *own,
            *spec.notes,
            *_state_notes(options, spec),
            *event_notes,
        ),
    )


def check_saved(saved: Path, options: GenerateOptions, target: Target) -> None:
    """Raise InputError if the run's state cannot or must not be written to the file `saved`. This file must differ from
    the output video `target`."""
    if saved.is_dir():
        raise InputError(f"`save_state` {saved} is a folder; name a file in it")
    if saved.absolute() in (target.path.absolute(), target.playable_copy.absolute()):
        raise InputError(f"`save_state` {saved} is the video's file; give the state its own")
    before = options.continue_from
    goes_on = before is not None and saved.exists() and saved.samefile(before)
    image = options.image if isinstance(options.image, str | Path) else None
    refuse_existing(saved, options.overwrite or goes_on, image)
    if saved.exists() and not goes_on:
        _refuse_foreign(saved)
    check_folder("save_state", saved, saved.parent)
    check_name("save_state", saved)


def _refuse_foreign(saved: Path) -> None:
    try:
        if not saved.is_file() or saved.stat().st_size:
            last_prompt(saved)
    except LingBotError as error:
        raise InputError(
            f"`save_state` {saved} exists and is not a state; `overwrite` replaces only states: write elsewhere"
        ) from error


def _request(options: GenerateOptions, release: Release) -> RolloutRequest:
    scales = guide_scales(options.guide_scale)
    if release.guided and scales.high != scales.low:
        raise InputError(f"`guide_scale` {options.guide_scale}: {release.name} is one model, give one number")
    return RolloutRequest(
        frames=options.frame_num,
        chunk=options.chunk,
        window=options.window,
        sink=options.sink,
        indices=step_indices(options.schedule, release),
        shift=options.shift,
        steps=options.sampling_steps,
        guide_scale=scales.low,
        solver=options.solver,
    )


def _camera(options: GenerateOptions, checkpoint: Checkpoint, chunk: int) -> PoseFolder | None:
    camera, fewest = camera_of(options, checkpoint), 4 * chunk - 3
    if camera is not None and len(camera.c2w) < fewest:
        given = f"`action_path` {options.action_path}" if options.action_path is not None else "the camera path"
        raise CameraError(
            f"{given}: {len(camera.c2w)} poses; a causal model needs at least {fewest}, a chunk of "
            f"{chunk} latent frames"
        )
    return camera


def _check_size(options: GenerateOptions, state: WorldState) -> None:
    height, width = state.frame.shape[1:]
    if (options.width, options.height) not in ((None, None), (width, height)):
        raise InputError(f"`width` and `height`: the state is of {width}x{height}; leave them out")


def _prompts_by_chunk(
    options: GenerateOptions, spec: RolloutSpec
) -> tuple[tuple[tuple[int, str], ...], tuple[str, ...]]:
    """Return the prompts, each as (index of its first chunk, text), and at most one note. The note lists the events
    that have no effect for lack of a start time."""
    if options.events is None:
        return ((0, options.prompt),), ()
    events = read_events(Path(options.events))
    chunks, seconds = spec.geometry.lat_f // spec.chunk, 4 * spec.chunk / options.fps
    check_times(events, chunks, seconds)
    prompts = changes_by_chunk(prompts_by_second(events, options.prompt), chunks, seconds)
    keyed = ", ".join(event.name for event in events if event.start is None)
    return tuple(prompts), (f"`events`: without a start, and so without effect: {keyed}.",) if keyed else ()


def _state_notes(options: GenerateOptions, spec: RolloutSpec) -> tuple[str, ...]:
    if spec.state is None:
        return ()
    frames = spec.geometry.frames
    after = f"{options.continue_from} holds {spec.state.frames} frames; this video has the {frames} that follow."
    if options.image is not None:
        after += " `image` is not needed: the size and the finished frames stay."
    if options.max_area != SIZE[0] * SIZE[1]:
        after += " `size` has no effect."
    return (after,)
