"""Load a model for walks: from a user's options to an Engine and a Start."""

import logging
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import InputError
from ...live import Engine, Start
from ...live.camera import WALKING_SPEED
from ...live.folder.replay import Replay
from ...live.planned import check_walkable, latent_frames, off_release_notes, plan_endless
from ...live.worlds.example import find_map
from ...model.attention.exact import multiplies_bf16
from ...options import CELL, ShowProgress, VaeDtype, Window
from ...pipeline.chunk_loop import ChunkLoop
from ...pipeline.geometry import Geometry, explicit_geometry
from ...pipeline.world import World
from ...text import load_tokenizer
from ...text.events import WorldEvent
from ...typed import check_types
from ...vae import (
    TINY_DECODER,
    PreviewDecoder,
    TinyDecoder,
    VideoDecoder,
    encode_first_frame,
    load_tiny_decoder,
    load_vae,
)
from ...vae.encoding import SETTLED
from ..devices import find_device
from ..options import GenerateOptions, ImageInput
from ..plan import make_plan
from ..preparation import prepare
from ..process.profile import StageRecorder, silent
from ..prompt_cache import NO_CACHE
from ..rollout_plan import RolloutPlan
from ..stages import RunContext, encode_prompts
from .beginning import find_beginning, find_tiny_decoder
from .recording import WalkRecording

log = logging.getLogger(__name__)

MAX_CACHED_PROMPTS = 32
"""The maximum number of prompt embeddings that a server caches."""


class WalkSettings(NamedTuple):
    """The settings of a walk that a client may choose. None selects the server's setting.

    size: (height, width) in pixels.
    window: the attention window in latent frames.
    sink: the number of first latent frames that stay in the window.
    chunk: the number of latent frames in a chunk.
    """

    size: tuple[int, int] | None = None
    window: int | None = None
    sink: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class LiveSettings:
    """A server's settings for all walks (steered videos).

    speed: the speed of the key W, above 0; values above 1 exceed those in training.
    moving: whether generation goes on while the camera rests without input.
    decoder: the file or name of a tiny decoder; None for the VAE.
    restart_on_drift: whether a walk restarts from its image when the video degrades.
    events: named additions to the prompt, such as rain, for clients to select.
    stop_when_stuck: whether the camera stops when the frames no longer change.
    """

    speed: float = WALKING_SPEED
    moving: bool = False
    decoder: str | Path | None = None
    restart_on_drift: bool = False
    events: tuple[WorldEvent, ...] = ()
    stop_when_stuck: bool = False


def open_live(
    ckpt_dir: str | Path,
    *,
    image: ImageInput | None = None,
    prompt: str | None = None,
    decoder: str | Path | None = None,
    **options: Any,
) -> tuple[Engine, Start]:
    """Load a model and return the Engine and the Start for `live.Session`. Raises a LingBotError for invalid options
    and files.

    image, prompt: the start image and prompt; None selects those of the continued state or of the package's example.
    decoder: the file or name of a tiny decoder for previews; None for the VAE.
    options: other fields of GenerateOptions, except `output`.
    """
    loaded = LoadedModel(plan_start(ckpt_dir, image=image, prompt=prompt, **options))
    loaded.settings = LiveSettings(decoder=decoder)
    return loaded.engine(), loaded.start


def plan_start(ckpt_dir: str | Path, **options: Any) -> RolloutPlan:
    """Return the plan that `open_live` makes from the same arguments. No model is loaded."""
    check_types({"ckpt_dir": ckpt_dir}, {"ckpt_dir": str | Path})
    known = {field.name for field in fields(GenerateOptions)} - {"output"}
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise InputError(f"no option {unknown!r:.40}; expected fields of GenerateOptions, such as `width` and `chunk`")
    values = {**options, **find_beginning(ckpt_dir, options)}
    return plan_live(GenerateOptions(output=None, **values))


def plan_live(options: GenerateOptions) -> RolloutPlan:
    """Return the plan of a walk, with a limited attention window. Raises InputError for a model that cannot walk, such
    as the base model."""
    frames = 4 * latent_frames(options.window) - (3 if options.continue_from is None else 0)
    plan = make_plan(replace(_with_bf16_on_cpu(options), frame_num=frames))
    name = f"`ckpt_dir` {options.ckpt_dir}"
    if not isinstance(plan, RolloutPlan):
        raise InputError(
            f"{name}: a walk takes a causal model of a few steps (LingBot-World Fast or 2.0); this one takes many"
        )
    check_walkable(plan.spec, name)
    of_video = f"this video has the {plan.geometry.frames} that follow"  # the frames that memory is planned for
    said = [note.replace(of_video, "the walk continues from there") for note in plan.notes]
    spec, notes = plan_endless(plan.spec, said, options.window, options.sink)
    release = plan.checkpoint.release
    off = () if release is None else off_release_notes(release, spec)
    return replace(plan, spec=spec, notes=(*notes, *off))


def _with_bf16_on_cpu(options: GenerateOptions) -> GenerateOptions:
    """Return the options with unset dtypes set to bf16 if the model runs on a CPU with fast bf16. Otherwise return the
    options unchanged."""
    if find_device(options.device).type != "cpu" or not multiplies_bf16():
        return options
    decoding: VaeDtype = "bf16" if options.vae_dtype == "auto" else options.vae_dtype
    return replace(options, dtype=options.dtype or "bf16", vae_dtype=decoding)


class LoadedModel:
    """A loaded model and the server's settings. The model's engines, which generate the walks, share its weights."""

    def __init__(self, plan: RolloutPlan, show: ShowProgress = silent) -> None:
        self.plan, self.settings = plan, LiveSettings()
        with StageRecorder(plan.device, show) as stages:

            def prompts() -> list[Tensor]:
                return encode_prompts([plan.options.prompt], plan, stages.begin("text", "block"))

            self._made = prepare(plan, prompts, RunContext(stages))
        self.encode_prompt = TextEncoder(plan, self._made.contexts[0])
        self._tiny: TinyDecoder | None = None

    @property
    def start(self) -> Start:
        """The default Start of a walk: the plan's image, or the end of the state that the plan continues."""
        spec, options = self.plan.spec, self.plan.options
        if spec.state is not None:
            return Start.after(spec.state, options.prompt, options.seed or 0)
        return Start(spec.frame, options.prompt, spec.track.lens, options.seed or 0)

    def engine(self, settings: WalkSettings | None = None) -> Engine:
        """Return a new engine for a walk with these `settings`; None selects the server's settings. Raises InputError
        for settings that need more memory than the server has planned."""
        spec, wish = self.plan.spec, settings or WalkSettings()
        height, width = wish.size or (spec.geometry.height, spec.geometry.width)
        chunk = wish.chunk or spec.chunk
        window = spec.window.changed(wish.window, wish.sink, chunk)
        for name, wanted, most in (
            ("size", height * width, spec.geometry.height * spec.geometry.width),
            ("window", window.frames, spec.window.frames),
            ("chunk", chunk, spec.chunk),
        ):
            if not 0 < wanted <= most:
                raise InputError(
                    f"`{name}` is larger than memory was planned for; the server was started with "
                    f"{spec.geometry.width}x{spec.geometry.height}, window {spec.window.frames} and chunks of "
                    f"{spec.chunk}: request at most these, or start it with more"
                )
        geometry = explicit_geometry(width, height, spec.geometry.frames, chunk=chunk)
        return Engine(
            config=spec.config,
            schedule=spec.schedule,
            release=spec.release,
            window=window,
            chunk=chunk,
            size=(height, width),
            device=self.plan.device,
            new_world=partial(self._world, geometry, window, chunk),
            new_vae_decoder=partial(self._decoder, geometry),
            encode_image=self._encode_image,
            encode_prompt=self.encode_prompt,
            notes=self.plan.notes,
            dtype=str(self.plan.dtype).removeprefix("torch."),
            new_tiny_decoder=None if self.settings.decoder is None else self._preview,
            record=WalkRecording,
            map=find_map(self.plan.options.ckpt_dir),
        )

    def engine_of(self, walk: Path) -> Engine:
        """Return an engine that can repeat the saved walk in the folder `walk`."""
        replay = Replay(walk)
        height, width = (CELL * side for side in replay.settings["cells"])
        window, sink, chunk = (replay.settings[name] for name in ("window", "sink", "chunk"))
        settings = WalkSettings((height, width), window, sink, chunk)
        return replace(self.engine(settings), schedule=replay.schedule())

    def _preview(self) -> PreviewDecoder:
        if self._tiny is None:
            device, half = self.plan.decoding_device, self.plan.half
            file = find_tiny_decoder(self.settings.decoder or TINY_DECODER, self.plan.options.ckpt_dir)
            self._tiny = load_tiny_decoder(file, device=device, dtype=half or torch.float32)
        return PreviewDecoder(self._tiny.anew())

    def _world(self, geometry: Geometry, window: Window, chunk: int) -> World:
        loop = ChunkLoop((geometry.lat_h, geometry.lat_w), window, chunk, self.plan.spec.schedule)
        return loop.world(self._made.model, self.plan.device, self._made.memory.world)

    def _decoder(self, geometry: Geometry, exact: bool) -> VideoDecoder:
        """Return a new decoder for the size of `geometry`: in fp32 with a newly loaded VAE if `exact`, else with the
        shared VAE."""
        size = geometry.lat_h, geometry.lat_w
        if not exact:
            assert self._made.decoder is not None  # a single process always has a decoder
            return self._made.decoder.anew(*size)
        vae = load_vae(self.plan.vae, device=self.plan.decoding_device)
        vae.use_tiling = vae.device.type == "cuda"
        return VideoDecoder(vae, *size, park=True)

    def _encode_image(self, frame: Tensor) -> Tensor:
        if frame is self.plan.spec.frame and self._made.image is not None:
            return self._made.image
        vae = load_vae(self.plan.vae, device=self.plan.device)
        vae.use_tiling = self.plan.device.type == "cuda"  # there is little memory next to a model
        return encode_first_frame(vae, frame, 4 * SETTLED - 3).cpu()


class TextEncoder:
    """A thread-safe text encoder with a cache. A call with a prompt returns its embedding, [1, L, D] on the CPU.
    `first`: the embedding of the plan's prompt, which is the first cached one."""

    def __init__(self, plan: RolloutPlan, first: Tensor) -> None:
        self._plan, self._lock = plan, Lock()
        self._cached = {plan.options.prompt: first.cpu()}

    def __call__(self, text: str) -> Tensor:
        with self._lock:
            if text not in self._cached:
                self._cached[text] = self._encoded(text).cpu()
                while len(self._cached) > MAX_CACHED_PROMPTS:
                    del self._cached[next(iter(self._cached))]
            return self._cached[text]

    def _encoded(self, text: str) -> Tensor:
        if isinstance(self._plan.tokenizer, Path) and not self._plan.prompt_cache.has(text):
            self._plan = replace(self._plan, tokenizer=load_tokenizer(self._plan.tokenizer))
        plan, quiet = self._plan, (lambda _done, _total: None)
        if plan.device.type != "cuda":
            return encode_prompts([text], plan, quiet)[0]
        try:
            with torch.cuda.device(plan.device), torch.cuda.stream(torch.cuda.Stream()):
                return encode_prompts([text], plan, quiet)[0].cpu()
        except torch.OutOfMemoryError:
            log.warning("The text encoder did not fit next to the model: the prompt is encoded on the CPU.")
        return encode_prompts([text], replace(plan, device=torch.device("cpu"), prompt_cache=NO_CACHE), quiet)[0]
