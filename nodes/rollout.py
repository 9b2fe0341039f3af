"""LingBotWorldRollout: a causal model's video, generated chunk by chunk, that can continue later."""

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..errors import InputError
from ..host.prompt.notice import show_warning
from ..host.prompt.queue import known_inputs
from ..options import CAUSAL_SHIFT, FAST_INDICES, GUIDE_SCALE, RELEASES, V2_INDICES
from ..options import STEPS as GUIDED_STEPS
from .inputs import (
    AS_TRAINED,
    UNSET,
    Camera,
    State,
    choice,
    chunk_input,
    frames_input,
    kv_cache_input,
    latent_frames_input,
    number,
    seed_input,
    whole,
)
from .refusal import refusal

if TYPE_CHECKING:
    from ..pipeline.spec import RolloutRequest

CUSTOM = "custom"
STEPS = {AS_TRAINED: None, "Fast": FAST_INDICES, "2.0": V2_INDICES}
THE_RELEASES = 0.0
"""The value of `shift` that selects the release's own."""


def request(frames: int, chunk: str, window: int, sink: int, **others: Any) -> "RolloutRequest":
    """Build the RolloutRequest of a node's inputs; AS_TRAINED and UNSET become None."""
    from ..pipeline.spec import RolloutRequest

    return RolloutRequest(
        frames=frames,
        chunk=None if chunk == AS_TRAINED else int(chunk),
        window=None if window == UNSET else window,
        sink=None if sink == UNSET else sink,
        **others,
    )


class LingBotWorldRollout(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        v2 = RELEASES["v2"]
        return io.Schema(
            node_id="LingBotWorldRollout",
            display_name="LingBot-World Rollout",
            category="LingBot-World/sampling",
            description="Makes a video with LingBot-World Fast or 2.0: a few latent frames at a time, in a few "
            "steps, for as long as you like. The newest frame is shown after every chunk. Wire the state into "
            "another Rollout to go on with another camera and prompt.",
            search_aliases=[
                "lingbot",
                "fast",
                "causal",
                "autoregressive",
                "sampler",
                "long video",
                "infinite",
                "world",
            ],
            inputs=[
                io.Model.Input("model", tooltip="Load LingBot-World Causal Model, with its LoRAs if you use any."),
                io.Conditioning.Input("positive", tooltip="The prompt, straight from the text node."),
                io.Vae.Input("vae", tooltip="The VAE of Wan 2.1."),
                io.Image.Input(
                    "start_image",
                    display_name="start image",
                    optional=True,
                    tooltip="The video's first frame, from Prepare Image; its size is the video's. Not needed where a "
                    "state is connected.",
                ),
                Camera.Input(
                    "camera",
                    optional=True,
                    tooltip="The camera path of these frames. Without one the camera stands still.",
                ),
                State.Input(
                    "state",
                    optional=True,
                    tooltip="What another Rollout has made: the video goes on from there, with this camera and prompt.",
                ),
                io.Latent.Input(
                    "start_latent",
                    display_name="start latent",
                    optional=True,
                    tooltip="In place of a start image: the video begins with the last frame of this video. A state "
                    "remembers more of it.",
                ),
                frames_input(
                    "Frames to make, in whole chunks: of three latent frames 9, 21, 33, ... 81, and twelve more each. "
                    "A shorter camera path shortens the video.",
                    least=9,
                ),
                seed_input(
                    "The noise to start from. The same seed gives the same video; while it stays, a shot is kept and "
                    "those that go on from it can be tried again."
                ),
                choice(
                    "steps",
                    [*STEPS, CUSTOM],
                    f"The steps of a chunk. Fast: {_told(FAST_INDICES)}. 2.0: {_told(V2_INDICES)}. Which of "
                    f"them the model was trained for is told by its folder's name. {CUSTOM}: the indices below.",
                ),
                number(
                    "shift",
                    (THE_RELEASES, THE_RELEASES, 100.0),
                    "Moves the steps towards strong noise. 0: what the model was made for, 10 for Fast and 2.0 "
                    "14B, 5 for 2.0 1.3B.",
                    step=0.1,
                    round=0.0001,
                ),
                io.String.Input(
                    "indices",
                    default=_told(V2_INDICES),
                    advanced=True,
                    tooltip=f"For steps {CUSTOM}: rising numbers from 0 to 999, of the schedule of 1,000 steps.",
                ),
                latent_frames_input(
                    "window",
                    "Latent frames (four frames each) that a chunk looks back on, itself included. 0: the whole video, "
                    f"which takes more and more memory. {UNSET}: as the model was trained, for 2.0 {v2.window.frames}.",
                ),
                latent_frames_input(
                    "sink",
                    f"Of the window, the video's first latent frames, which stay for good. {UNSET}: as the model was "
                    f"trained, for 2.0 {v2.window.sink}.",
                ),
                kv_cache_input(
                    "Where the keys and values of the frames before lie: on the gpu, there in 8bit (half the memory, "
                    "nearly the same video), or in host memory (the same video). auto: by what is free."
                ),
                chunk_input(
                    "Latent frames, of four frames each, made at a time. More cost less a frame. A state goes on in "
                    "chunks of its own size.",
                    advanced=True,
                    optional=True,  # prompts and workflows of earlier versions lack it
                ),
                whole(
                    "guided_steps",
                    (1, GUIDED_STEPS, 1000),
                    "For causal-pretrain alone: steps of each chunk, in place of the few of `steps`.",
                    optional=True,  # prompts and workflows of earlier versions lack it
                    advanced=True,
                ),
                number(
                    "guide_scale",
                    (0.0, GUIDE_SCALE, 100.0),
                    "For causal-pretrain alone: how far the video is led from the negative prompt; 1 leaves it "
                    "out and halves the work.",
                    display_name="guidance scale",
                    step=0.1,
                    optional=True,  # prompts and workflows of earlier versions lack it
                    advanced=True,
                ),
                io.Conditioning.Input(
                    "negative",
                    optional=True,
                    tooltip="For causal-pretrain alone: the negative prompt, straight from the text node.",
                ),
            ],
            outputs=[
                io.Latent.Output(
                    "latent", display_name="latent", tooltip="The whole video's latent, from its very first frame on."
                ),
                io.Image.Output("images", display_name="images", tooltip="The frames that this node made."),
                State.Output("out_state", display_name="state", tooltip="For another Rollout that goes on from here."),
            ],
        )

    @classmethod
    def validate_inputs(cls, model=None):
        return refusal(_check)

    @classmethod
    def execute(
        cls,
        model,
        positive,
        vae,
        frames,
        seed,
        steps,
        shift,
        indices,
        window,
        sink,
        kv_cache,
        chunk=AS_TRAINED,
        guided_steps=GUIDED_STEPS,
        guide_scale=GUIDE_SCALE,
        start_image=None,
        camera=None,
        state=None,
        start_latent=None,
        negative=None,
    ) -> io.NodeOutput:
        from ..host.checks.text import unseen_words
        from ..host.sampling.rollout import prepare_rollout, run_rollout

        asked = request(
            frames,
            chunk,
            window,
            sink,
            indices=_indices(steps, indices),
            shift=shift or None,
            steps=guided_steps,
            guide_scale=guide_scale,
        )
        run = prepare_rollout(
            model, (positive, negative), asked, image=start_image, camera=camera, state=state, latent=start_latent
        )
        for words in (" ".join(run.notes), *unseen_words()):
            show_warning(words)
        return io.NodeOutput(*run_rollout(run, vae, seed, kv_cache))


def _told(indices: tuple[int, ...]) -> str:
    return ", ".join(map(str, indices))


def _indices(steps: str, custom: str) -> tuple[int, ...] | None:
    """Return the schedule's indices; None for the model's own. Raises InputError."""
    if steps != CUSTOM:
        return STEPS[steps]
    try:
        return tuple(int(index) for index in custom.split(","))
    except ValueError:
        raise InputError(f"indices are {custom!r}, expected numbers such as {_told(V2_INDICES)}") from None


def _check() -> None:
    """Check the node that ComfyUI is validating. Raises InputError, CameraError."""
    from ..host.checks.graph import check_rollout
    from ..sampling import few_step_schedule

    check_rollout()
    known = known_inputs()
    if known.get("steps") == CUSTOM and "indices" in known:
        few_step_schedule(_indices(CUSTOM, known["indices"]), CAUSAL_SHIFT)
