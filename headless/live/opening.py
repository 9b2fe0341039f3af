"""From options to the Engine and the Start of a walk: the files are checked, then the model is loaded."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from ...errors import InputError
from ...live import Engine, Start
from ...options import CHUNK, RELEASES, ShowProgress
from ...pipeline.geometry import explicit_geometry
from ...pipeline.state import WorldState
from ...pipeline.two_experts import ALONE as TOGETHER_ALONE
from ...pipeline.world import World, check_window
from ...vae import VideoDecoder, encode_first_frame, load_vae
from ...vae.encoding import SETTLED
from ..options import GenerateOptions
from ..plan import make_plan
from ..preparation import prepare
from ..processes import ALONE
from ..profile import StageRecorder, silent
from ..rollout_plan import STANDING_STILL, RolloutPlan
from ..stages import encode_prompts

log = logging.getLogger(__name__)

PLANNED = 72
"""Latent frames that memory is planned for, at least: whole chunks of any size, and more than a release's window."""
KEPT_PROMPTS = 32
"""Prompts whose embeddings are kept."""
LIVE_WINDOW, LIVE_SINK = RELEASES["v2"].window, RELEASES["v2"].sink
"""Of a release that looks back on the whole video: a walk has no end."""


def plan_live(options: GenerateOptions) -> RolloutPlan:
    """Checks what is asked for and opens the files. Raises a LingBotError."""
    window = LIVE_WINDOW if options.window is None else options.window
    if window == 0:
        raise InputError("`window` 0 is the whole video, and a walk has no end; name a window, such as 18")
    plan = make_plan(replace(options, frame_num=4 * PLANNED * -(-window // PLANNED) - 3))
    if not isinstance(plan, RolloutPlan):
        raise InputError(f"`ckpt_dir` {options.ckpt_dir}: the base model makes a video as a whole; a walk takes a "
                         "causal model (LingBot-World Fast or 2.0)")  # fmt: skip
    plan = replace(plan, notes=tuple(note for note in plan.notes if note != STANDING_STILL))
    if plan.window == 0:
        note = f"{plan.release} looks back on the whole video; a walk has no end: window {window}, sink {LIVE_SINK}."
        sink = LIVE_SINK if options.sink is None else options.sink
        return replace(plan, window=window, sink=sink, notes=(*plan.notes, note))
    return plan


class Opened:
    """A model that is loaded, and what makes engines of it."""

    def __init__(self, plan: RolloutPlan, show: ShowProgress = silent) -> None:
        """Loads the model. Raises a LingBotError."""
        self.plan = plan
        with StageRecorder(plan.device, show) as stages:

            def prompt() -> Tensor:
                return encode_prompts([plan.options.prompt], plan, stages.begin("text", "block"))[0]

            self._made = prepare(plan, prompt, stages, ALONE, TOGETHER_ALONE)
        self.encode_prompt = TextEncoder(plan, self._made.context)

    @property
    def start(self) -> Start | WorldState:
        """Where a walk begins that nobody says anything of: at the image, or where the state that was named ends."""
        plan = self.plan
        return plan.state or Start(plan.frame, plan.options.prompt, plan.track.lens, plan.options.seed or 0)

    def engine(
        self, size: tuple[int, int] | None = None, window: int | None = None, sink: int | None = None
    ) -> Engine:
        """For videos of a size (height, width) and a window, the plan's or smaller ones. Raises InputError for larger
        ones: memory was divided for the plan's."""
        plan, planned = self.plan, (self.plan.geometry.height, self.plan.geometry.width)
        height, width = size or planned
        if height * width > planned[0] * planned[1]:
            raise InputError(f"a size of {width}x{height} is larger than {planned[1]}x{planned[0]}, for which memory "
                             "was divided; ask for a smaller one, or start with a larger `size`")  # fmt: skip
        window, sink = window or plan.window, plan.sink if sink is None else sink
        if window > plan.window:
            raise InputError(f"a window of {window} is larger than {plan.window}, for which memory was divided; ask "
                             "for a smaller one, or start with a larger `window`")  # fmt: skip
        check_window(window, sink)
        geometry = explicit_geometry(width, height, plan.geometry.frames)
        plan = replace(plan, geometry=geometry, window=window, sink=sink)
        return Engine(
            config=plan.checkpoint.config, schedule=plan.schedule, release=plan.release, window=plan.window,
            sink=plan.sink, chunk=CHUNK, size=(height, width), device=plan.device,
            new_world=partial(self._world, plan), new_decoder=partial(self._decoder, plan),
            encode_image=self._encode_image, encode_prompt=self.encode_prompt, notes=plan.notes,
        )  # fmt: skip

    def _world(self, plan: RolloutPlan) -> World:
        memory = self._made.memory
        return World(
            self._made.model, plan.cells, plan.window, plan.sink, device=plan.device, **memory.place._asdict(),
            camera_cache_bytes=memory.camera_cache_bytes, graphs=memory.graphs,
        )  # fmt: skip

    def _decoder(self, plan: RolloutPlan, exact: bool) -> VideoDecoder:
        """A decoder by the VAE that is loaded; `exact`: in fp32 by one that is loaded for it, on a GPU in tiles."""
        if not exact:
            assert self._made.decoder is not None  # the only process decodes
            return self._made.decoder.anew(*plan.cells)
        vae = load_vae(plan.vae, device=plan.device)
        vae.use_tiling = plan.device.type == "cuda"
        return VideoDecoder(vae, *plan.cells, park=True)

    def _encode_image(self, frame: Tensor) -> Tensor:
        if frame is self.plan.frame and self._made.image is not None:
            return self._made.image
        vae = load_vae(self.plan.vae, device=self.plan.device)
        vae.use_tiling = self.plan.device.type == "cuda"  # there is little room beside a model
        return encode_first_frame(vae, frame, 4 * SETTLED - 3).cpu()


class TextEncoder:
    """Prompts to embeddings [1, L, D] on the CPU, beside a walk. The last ones are kept."""

    def __init__(self, plan: RolloutPlan, first: Tensor) -> None:
        """`first`: the embedding of the plan's own prompt."""
        self._plan, self._lock = plan, Lock()
        self._kept = {plan.options.prompt: first.cpu()}

    def __call__(self, text: str) -> Tensor:
        with self._lock:
            if text not in self._kept:
                self._kept[text] = self._encoded(text).cpu()
                while len(self._kept) > KEPT_PROMPTS:
                    del self._kept[next(iter(self._kept))]
            return self._kept[text]

    def _encoded(self, text: str) -> Tensor:
        plan, quiet = self._plan, (lambda _done, _total: None)
        if plan.device.type != "cuda":
            return encode_prompts([text], plan, quiet)[0]
        try:
            with torch.cuda.device(plan.device), torch.cuda.stream(torch.cuda.Stream()):
                return encode_prompts([text], plan, quiet)[0].cpu()
        except torch.OutOfMemoryError:
            log.warning("The text encoder did not fit beside the model: the prompt is encoded on the CPU.")
        return encode_prompts([text], replace(plan, device=torch.device("cpu")), quiet)[0]
